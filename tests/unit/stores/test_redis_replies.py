"""Bytes of a server become replies, in the order of the commands, and messages, however they are cut; or time is up."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
from redis import RedisError

from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection import aio_connection
from leasehold.stores.redis.connection.aio_connection import AioConnection
from leasehold.stores.redis.connection.base import Redirected, ReplyError, RetryableError, SlotMigrating, refused
from leasehold.stores.redis.connection.connection import Connection
from leasehold.stores.redis.connection.replies import Replies
from leasehold.stores.redis.connection.settings import PROVIDER_FAILED, connect_error

RUNTIME = BlockingRuntime()
FIRST, ERROR = b"+FIRST\r\n", b"-NOPERM no\r\n"
MESSAGE = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nword\r\n"
SHARDED = b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$4\r\nmore\r\n"
SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
UNSUBSCRIBED = b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"


class Asked(Replies):
    """A connection on which commands were sent, and what came of each."""

    def __init__(self, commands: int) -> None:
        self.messages = list[bytes]()
        super().__init__("there", self.messages.append)
        self.came: list[Any] = [None] * commands
        for number in range(commands):
            self.pending.append((lambda reply, failure, at=number: self._take(at, failure or reply), 0.0, 0.0))

    def _take(self, number: int, came: Any) -> None:
        assert self.came[number] is None, "one reply for each command"
        self.came[number] = came


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_each_command_gets_its_reply_and_messages_come_between(size: int) -> None:
    asked = Asked(3)
    data = MESSAGE + FIRST + SHARDED + SUBSCRIBED + MESSAGE + ERROR
    for start in range(0, len(data), size):
        asked.data_received(data[start : start + size])
    assert asked.came[0] == b"FIRST"
    assert asked.came[1] == [b"subscribe", b"c", 1]
    assert isinstance(asked.came[2], ReplyError)
    assert asked.messages == [b"word", b"more", b"word"]
    assert asked.open
    assert not asked.pending


@pytest.mark.parametrize(("data", "why"), [(b"what is this", "Protocol"), (UNSUBSCRIBED, "slot of its channel")])
def test_what_ends_it_is_the_reason_why_no_reply_comes(data: bytes, why: str) -> None:
    asked = Asked(2)
    asked.data_received(FIRST + data)
    assert asked.came[0] == b"FIRST"
    lost = asked.came[1]
    assert isinstance(lost, StoreUnavailable)
    assert lost.unknown
    assert why in str(lost)
    assert not asked.open


def test_a_reply_without_a_command_ends_it() -> None:
    asked = Asked(1)
    asked.data_received(FIRST * 2)
    assert asked.came == [b"FIRST"]
    assert not asked.open


@pytest.mark.parametrize(
    "text", ["MOVED 7 10.0.0.1:6379", "ASK 7 10.0.0.1:6379", "TRYAGAIN moving", "NOPERM no", "ERR x"]
)
def test_an_error_is_copied_as_it_is(text: str) -> None:
    """The engine tells observers a copy of each error of a request."""
    error = refused("there", ReplyError(text))
    same = copy(error)
    assert type(same) is type(error)
    assert str(same) == str(error)
    assert vars(same) == vars(error)
    if isinstance(error, Redirected):
        assert (same.slot, same.address, same.ask) == (7, ("10.0.0.1", 6379), text.startswith("ASK"))  # type: ignore[attr-defined]


def test_each_call_has_its_own_time_limit() -> None:
    """The kernel's time limit is the same for all, and short; a call with a longer limit reads again."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Connection(SimpleNamespace(_sock=ours), RUNTIME, "there", lambda _: None)
        theirs.sendall(b"+FIRST\r\n")
        assert line.exchange(b"x", 1, RUNTIME.now() + 0.5) == [b"FIRST"]
        answer = threading.Timer(0.7, theirs.sendall, (b"+SECOND\r\n",))
        answer.start()
        assert line.exchange(b"x", 1, RUNTIME.now() + 4.0) == [b"SECOND"]
        answer.join()
        for limit in (0.1, 0.4):
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match="too slowly"):
                line.exchange(b"x", 1, RUNTIME.now() + limit)
            assert time.monotonic() - start > limit - 0.02, "a tick of the kernel's clock"


@pytest.mark.parametrize("command", [b"x", b"x" * 2**24], ids=["no reply", "a full buffer"])
def test_signals_do_not_lengthen_a_time_limit(command: bytes) -> None:
    """A timer, or children that end: the system call that waits begins anew after each signal, with its full limit."""
    ours, theirs = socket.socketpair()
    me, over = threading.get_ident(), threading.Event()

    def strike() -> None:
        until = time.monotonic() + 5.0
        while not over.wait(0.02) and time.monotonic() < until:
            signal.pthread_kill(me, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    striking = threading.Thread(target=strike)
    try:
        with ours, theirs:
            line = Connection(SimpleNamespace(_sock=ours), RUNTIME, "there", lambda _: None)
            striking.start()
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match="too slowly"):
                line.exchange(command, 1, RUNTIME.now() + 0.2)
            took = time.monotonic() - start
    finally:
        over.set()
        striking.join()
        signal.signal(signal.SIGUSR1, before)
    assert took < 2.5


def test_a_subscription_that_another_thread_has_just_ended_has_news() -> None:
    """Under Sentinel all threads look for a message of a failover before each command, and the first ends it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Connection(SimpleNamespace(_sock=ours, disconnect=ours.close), RUNTIME, "there", lambda _: None)
        assert line.quiet()
        line.close()
        assert not line.quiet()


LEFT = "Script attempted to access a non local key in a cluster node script: 0, on @user:1."


@pytest.mark.parametrize("before", ["ERR ", "ERR Error running script (call to f_0): "])
def test_a_script_whose_key_has_left_may_have_been_carried_out(before: str) -> None:
    """It may have written before, and deleted the key itself."""
    assert refused("there", ReplyError(before + LEFT)).unknown
    error = refused("there", ReplyError(f"{before}TRYAGAIN ERR {LEFT}"))  # the script knows that it has not
    assert isinstance(error, SlotMigrating)
    assert not error.unknown


# --- asyncio: all tasks share one connection, each with its own time limit ------------------------------------------


def on_a_socket(body: Callable[[AioConnection, socket.socket, list[str]], Coroutine[Any, Any, None]]) -> None:
    """Run ``body`` on a connection, the server's end of it, and a list of how it ended."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            ended = list[str]()
            connection = AioConnection(
                SimpleNamespace(_reader=reader, _writer=writer),
                "there",
                lambda message: None,
                lambda: ended.append("silent"),
                lambda connection: ended.append("lost"),
            )
            await body(connection, theirs, ended)
            await connection.close()

    asyncio.run(asyncio.wait_for(run(), 30.0))


def test_a_command_that_is_late_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short lease has short limits: the commands of all other tasks keep theirs, and each gets its own reply."""
    monkeypatch.setattr(aio_connection, "SILENT_FOR", 60.0, raising=False)

    async def body(connection: AioConnection, server: socket.socket, ended: list[str]) -> None:
        first, late, last = (connection.send(b"?", within) for within in (60.0, 0.02, 60.0))
        with pytest.raises(StoreUnavailable, match="too slowly") as failed:
            await late
        assert failed.value.unknown
        later = connection.send(b"?", 60.0)
        assert connection.open
        server.sendall(b"+1\r\n+2\r\n+3\r\n+4\r\n")
        assert await asyncio.gather(first, last, later) == [b"1", b"3", b"4"]
        assert not connection.pending
        assert ended == []

    on_a_socket(body)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_connection_on_which_every_command_is_late_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """No other command loses time by that, and a hold with a short lease needs another connection soon."""
    monkeypatch.setattr(aio_connection, "SILENT_FOR", 3600.0)

    async def body(connection: AioConnection, server: socket.socket, ended: list[str]) -> None:
        first, last = (connection.send(b"?", seconds) for seconds in (0.02, 0.2))
        if cancelled:
            last.cancel()
        with pytest.raises(StoreUnavailable, match="too slowly"):
            await first
        await asyncio.wait((connection._closed,))
        assert not connection.open
        assert ended == ["lost"]
        if not cancelled:
            with pytest.raises(StoreUnavailable, match="too slowly"):
                await last

    on_a_socket(body)


@pytest.mark.parametrize("within", [0.02, 0.4])
def test_a_silent_connection_ends_soon_after_its_first_command_is_late(
    monkeypatch: pytest.MonkeyPatch, within: float
) -> None:
    """All that wait there would wait for nothing, for their whole time, and so would all commands after them."""
    monkeypatch.setattr(aio_connection, "SILENT_FOR", 0.2, raising=False)

    async def body(connection: AioConnection, server: socket.socket, ended: list[str]) -> None:
        began = connection.loop.time()
        late, other = (connection.send(b"?", seconds) for seconds in (within, 3600.0))
        for answer in (late, other):
            with pytest.raises(StoreUnavailable, match="too slowly"):
                await answer
        assert connection.loop.time() - began >= max(within, 0.2) * 0.95
        assert not connection.open
        assert ended == ["lost"]

    on_a_socket(body)


@pytest.mark.parametrize("text", ["Error: unknown command 'get-token'", "Connection reset by peer", "no answer"])
def test_what_a_credential_provider_says_is_not_taken_for_words_of_the_server(text: str) -> None:
    error = connect_error(RedisError(f"{PROVIDER_FAILED}: OSError: {text}"), "h:1")
    assert type(error) is RetryableError
    assert "check the service that it asks" in str(error)
