"""A descriptor has one owner: no thread closes one on which another thread waits, or which another thread has taken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores import registry
from leasehold.stores._common.slots import Slot
from leasehold.stores.etcd.http.base import Endpoint, Unanswered
from leasehold.stores.etcd.http.blocking import BlockingHttp, SocketConnection
from leasehold.stores.etcd.http.pool import ResponseStream
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


def alongside(work: Callable[[], object]) -> None:
    """Run something in another thread, to its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


class Interrupted:
    """A socket or poll with which another thread does something just as this one is about to wait on it."""

    def __init__(self, inner: Any, method: str, meanwhile: Callable[[], object]) -> None:
        self._inner, self._method, self._meanwhile = inner, method, meanwhile

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name != self._method:
            return value

        def call(*args: Any) -> Any:
            meanwhile, self._meanwhile = self._meanwhile, lambda: None
            alongside(meanwhile)
            return value(*args)

        return call


class RedisLine:
    """A connection with a subscription."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.open = True
        self.closed = False

    def data_received(self, data: bytes) -> None:
        assert not data

    def receive(self) -> bool:
        if not self.socket.recv(100):
            raise EOFError
        return False

    def hang_up(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("how", ["hang_up", "close"])
def test_a_subscription_is_not_closed_while_a_thread_reads_it(
    ends: tuple[socket.socket, socket.socket], how: str
) -> None:
    line, seen = RedisLine(ends[0]), list[tuple[bool, int]]()
    runtime = BlockingRuntime()
    ear = Slot("x", "ticket")
    silences = list[None]()

    async def subscribe(within: float) -> Any:
        return line

    channel = Channel(runtime, subscribe, "there", lambda: silences.append(None))
    finish(channel.open(1.0))
    bell = channel._wake_up
    assert bell is not None

    def ends_it() -> None:
        getattr(channel, how)()
        seen.append((line.closed, bell.fd))

    channel._poll = cast(Any, Interrupted(channel._poll, "poll", ends_it))
    finish(channel.receive(ear, 5.0))
    assert seen == [(False, seen[0][1])]
    assert seen[0][1] > 0
    assert line.closed, "whoever read it closes it"
    assert (bell.fd < 0) is (how == "close")
    channel.close()
    runtime.close()


def test_a_stream_is_not_closed_while_a_thread_reads_it(ends: tuple[socket.socket, socket.socket]) -> None:
    runtime = BlockingRuntime()
    http, seen = BlockingHttp(runtime), list[int]()
    line = SocketConnection(runtime, Endpoint("there", 1), ends[0])
    pieces = ResponseStream(http, line)

    def ends_it() -> None:
        pieces.close()
        seen.append(ends[0].fileno())

    line._socket = cast(Any, Interrupted(ends[0], "recv", ends_it))
    with pytest.raises(Unanswered):
        finish(pieces.read(5.0))
    assert seen[0] > 0
    assert ends[0].fileno() < 0, "whoever read it closes it"
    runtime.close()


def test_a_stream_that_nobody_reads_is_closed_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    runtime = BlockingRuntime()
    pieces = ResponseStream(BlockingHttp(runtime), SocketConnection(runtime, Endpoint("there", 1), ends[0]))
    pieces.close()
    assert ends[0].fileno() < 0
    with pytest.raises(Unanswered):
        finish(pieces.read(5.0))
    runtime.close()


class Hurried(list[Any]):
    """Idle connections that another thread drops just as this one takes one."""

    transport: BlockingTransport

    def pop(self, *index: Any) -> Any:
        transport, self.pop = self.transport, super().pop  # type: ignore[method-assign]
        alongside(transport.hang_up)
        return super().pop(*index)


def test_a_connection_that_is_dropped_is_not_taken(redis_server: Any, namespace: str) -> None:
    runtime = BlockingRuntime()
    store = cast(Any, registry.opener(redis_server.url).open(runtime, namespace))
    finish(store.inspect("x", exact=True))
    transport: BlockingTransport = store._transport
    transport._idle = idle = Hurried(transport._idle)
    idle.transport = transport
    assert idle
    try:
        finish(store.inspect("x", exact=True))
    except StoreUnavailable:
        pass  # it may have been dropped just then
    finish(store.close())
    runtime.close()
