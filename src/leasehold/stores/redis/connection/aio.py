"""The asyncio transport: all tasks of a client share one connection, for calls and messages alike (RESP3)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import redis

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.aio_connection import Connection
from leasehold.stores.redis.connection.base import (
    HELLO,
    HandshakeAborted,
    OnMessage,
    OnSilence,
    ReplyError,
    Subscriber,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.stores.redis.connection.settings import Settings, check_handshake, connect_error

COMMON_WITHIN = 2.0
"""Seconds, at least, to connect or subscribe for all tasks; a task with less time gives up earlier, alone."""

T = TypeVar("T")


class AioTransport:
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._count = 0
        self._facts: dict[str, str] = {}
        self._inherited: list[Connection | None] = []
        self._forget()

    def _forget(self) -> None:
        self._closed = False
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._subscribing: asyncio.Task[int] | None = None

    async def call(self, command: bytes, *, within: float) -> Any:
        connection = self._live() or await self._connected(within)
        if connection.full:
            await connection.writable()
        return await connection.send(command, within)

    def post(self, command: bytes, within: float) -> asyncio.Future[Any] | None:
        """Send a command and return the future of its reply; None if that would have to wait."""
        connection = self._live()
        return None if connection is None or connection.full else connection.send(command, within)

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        connection = self._live() or await self._connected(within)
        await connection.writable()
        return list(await asyncio.gather(*[connection.send(command, within) for command in commands]))

    async def listen(self, within: float) -> int:
        connection = self._live() or await self._connected(within)
        if connection.generation == 0:
            if self._subscribing is None or self._subscribing.done():
                self._subscribing = asyncio.ensure_future(self._subscribe(connection, max(within, COMMON_WITHIN)))
                self._subscribing.add_done_callback(_retrieve)
            await self._shared(self._subscribing, within)
        return connection.generation

    def generation(self) -> int:
        connection = self._live()
        return 0 if connection is None else connection.generation

    def receive(self, subscriber: Subscriber, timeout: float) -> Coroutine[Any, Any, object]:
        signal = subscriber.ready(self._runtime)
        if subscriber.news:  # set before the signal existed
            signal.set()
        return signal.wait(timeout)

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()

    def has_unread(self) -> bool:
        return False  # the loop reads what comes

    def hang_up(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.end("the client left it for another server")

    def set_channel(self, channel: bytes) -> None:
        self._channel = channel

    def facts(self) -> dict[str, str]:
        return self._facts

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        ours = [each for each in (self._connecting, self._subscribing) if each is not None and not each.done()]
        ended = [each for each in ours if each.get_loop() is asyncio.get_running_loop() and each.cancel()]
        if ended:
            await asyncio.wait(ended)  # by then the connection that they were opening is closed
        if connection is not None:
            await connection.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        self._inherited.append(
            self._connection
        )  # closing it, as its finalizer does, would make the parent's loop deaf to it
        self._forget()

    def _live(self) -> Connection | None:
        connection = self._connection
        return (
            connection
            if connection is not None and connection.open and connection.loop is asyncio.get_running_loop()
            else None
        )

    async def _connected(self, within: float) -> Connection:
        """Connect once for all tasks that need it; a task that is cancelled, or has little time, does not stop that."""
        if self._closed:
            raise no_answer(self._settings.where, "the client is closed", unknown=False)
        task = self._connecting
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._connecting = asyncio.ensure_future(self._connect(max(within, COMMON_WITHIN)))
            task.add_done_callback(_retrieve)
        return await self._shared(task, within)

    async def _shared(self, task: asyncio.Task[T], within: float) -> T:
        """Wait for the work that one task does for all, with a time limit of one's own."""
        await asyncio.wait((task,), timeout=within)
        if not task.done():
            raise no_answer(self._settings.where, "it answered too slowly", unknown=False)
        if task.cancelled():
            raise no_answer(self._settings.where, "the client is closed", unknown=False)
        return task.result()

    async def _connect(self, within: float) -> Connection:
        """Connect and check the server; retry once if it drops the connection during the handshake."""
        until = self._runtime.now() + within
        try:
            return await self._connect_once(within)
        except HandshakeAborted:
            left = until - self._runtime.now()
            if left <= 0:
                raise
        return await self._connect_once(left)

    async def _connect_once(self, within: float) -> Connection:
        connection = self._settings.connection(Flavor.ASYNC, within)
        where = self._settings.where
        failed: Exception | None = None
        try:
            async with asyncio.timeout(within):
                await connection.connect()
        except BaseException as error:
            connection._close()
            if not isinstance(error, redis.RedisError | OSError | ValueError):
                raise
            failed = connect_error(error, where)
        if failed is not None:
            raise failed  # outside `except`, so without context: local variables in redis-py's frames show the password
        connection = Connection(connection, where, self._received, self._on_silence, self._lost)
        try:
            self._facts = check_handshake(await connection.send(HELLO, within), self._settings)
        except BaseException as error:
            await connection.close()
            if isinstance(error, StoreUnavailable) and error.unknown:
                raise HandshakeAborted(
                    str(no_answer(where, "it closed the connection during the handshake", unknown=False))
                ) from None
            raise
        self._connection = connection
        return connection

    async def _subscribe(self, connection: Connection, within: float) -> int:
        commands = subscriptions(self._channel, version_of(self._facts))
        for reply in await asyncio.gather(*[connection.send(command, within) for command in commands]):
            if isinstance(reply, ReplyError):
                raise refused(self._settings.where, reply)
        self._count += 1
        connection.generation = self._count
        return connection.generation

    def _received(self, message: bytes) -> None:
        self._on_message(message)

    def _lost(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        if connection.generation:
            self._on_silence()


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the callers have it, and none may be left
