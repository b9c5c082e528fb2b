"""The asyncio transport: all tasks of a client share one connection, for calls and messages alike (RESP3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold._model import Ticket
from leasehold._runtimes.base import Flavor
from leasehold.stores._common.slots import Slot
from leasehold.stores.redis.connection.aio_connection import AioConnection
from leasehold.stores.redis.connection.aio_sleep import Sleep, Takes, Timers
from leasehold.stores.redis.connection.base import Subscriber
from leasehold.stores.redis.connection.handshake import ServerTransport
from leasehold.stores.redis.connection.pipelining import PipelinedConnection
from leasehold.stores.redis.connection.replies import GONE, TOO_SLOW, OnReply

COMMON_WITHIN = 2.0
"""Seconds, at least, to connect or subscribe for all tasks; a task with less time gives up earlier, alone."""

T = TypeVar("T")


class AioTransport(ServerTransport[AioConnection]):
    """See `leasehold.stores.redis.connection.base.Transport`, and `leasehold.stores.redis.connection.pipelining`."""

    flavor = Flavor.ASYNC
    _count = 0
    _inherited: tuple[AioConnection | None, ...] = ()

    def _forget(self) -> None:
        super()._forget()
        self._connection: AioConnection | None = None
        self._connecting: asyncio.Task[AioConnection] | None = None
        self._subscribing: asyncio.Task[int] | None = None
        self._timers = Timers(self._runtime.now)

    def call(self, command: bytes, *, within: float) -> Awaitable[Any]:
        """Send at once if that is possible: most often this is the future of the reply, and no coroutine is made."""
        connection = self._live()
        if connection is None or connection.full:
            return self._call_later(command, within)
        return connection.send(command, within)

    async def _call_later(self, command: bytes, within: float) -> Any:
        connection = self._live() or await self._connected(within)
        await connection.writable()
        return await connection.send(command, within)

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        connection = self._live() or await self._connected(within)
        await connection.writable()
        return await self._exchange(connection, commands, within)

    async def listen(self, within: float) -> int:
        connection = self._live() or await self._connected(within)
        if connection.generation == 0:
            task = self._subscribing
            if task is None or _ends(task) or task.get_loop() is not connection.loop:
                task = self._subscribing = asyncio.ensure_future(self._listen(connection, max(within, COMMON_WITHIN)))
                task.add_done_callback(_retrieve)
            await self._shared(task, within)
        return connection.generation

    def generation(self) -> int:
        connection = self._live()
        return 0 if connection is None else connection.generation

    def receive(self, subscriber: Subscriber, timeout: float) -> Coroutine[Any, Any, object]:
        signal = subscriber.ready(self._runtime)
        if subscriber.news:  # set before the signal existed
            signal.set()
        return signal.wait(timeout)

    def sleep(self, takes: Takes, slot: Slot, ticket: Ticket, timeout: float) -> Sleep:
        """Return what sleeps for a waiting ticket, when it is awaited; see `Sleep`."""
        return Sleep(self._timers, takes, slot, ticket, self._runtime.now() + timeout)

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()

    def has_unread(self) -> bool:
        return False  # the loop reads what comes

    def hang_up(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.end("the client left it for another server")

    async def close(self) -> None:
        await self._closing(*self._end_all())

    def _end_all(self) -> tuple[list[asyncio.Task[Any]], AioConnection | None]:
        """End all at once: a caller that is cancelled later leaves nothing open. Return what `_closing` waits for."""
        self._closed = True
        self._timers.close()
        connection, self._connection = self._connection, None
        ours = [each for each in (self._connecting, self._subscribing) if each is not None and not each.done()]
        ended = [each for each in ours if each.get_loop() is asyncio.get_running_loop() and each.cancel()]
        if connection is not None:
            connection.end("it was closed here")
        return ended, connection

    async def _closing(self, ended: Sequence[asyncio.Task[Any]], connection: AioConnection | None) -> None:
        if ended:
            await asyncio.wait(ended)  # by then the connection that they were opening is closed
        if connection is not None:
            await connection.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        # Kept: closing it, as its finalizer does, would make the parent's loop deaf to it.
        self._inherited = (*self._inherited, self._connection)
        self._forget()

    # --- pipelining: the loop reads the one connection, and calls open it ------------------------------------------

    def post(self, command: bytes, until: float, answered: OnReply, taken: list[PipelinedConnection]) -> bool:
        connection = self._live()
        if connection is None or connection.full:
            return False
        connection.post(command, max(until - self._runtime.now(), 0.001), answered)
        return True

    def add(self, within: float) -> None: ...

    def read(self, now: float) -> bool:
        return False

    # --- inside ------------------------------------------------------------------------------------------------

    def _live(self) -> AioConnection | None:
        connection = self._connection
        if connection is not None and connection.open and connection.loop is asyncio.get_running_loop():
            return connection
        return None

    async def _connected(self, within: float) -> AioConnection:
        """Connect once for all tasks that need it; a task that is cancelled, or has little time, does not stop that."""
        if self._closed:
            raise self._no_answer("the client is closed")
        if (old := self._connection) is not None and old.loop.is_closed():
            old.end("its event loop was closed")  # what was pending there has no answer
        task = self._connecting
        if task is None or _ends(task) or task.get_loop() is not asyncio.get_running_loop():
            task = self._connecting = asyncio.ensure_future(self._begin(max(within, COMMON_WITHIN)))
            task.add_done_callback(_retrieve)
        return await self._shared(task, within)

    async def _shared(self, task: asyncio.Task[T], within: float) -> T:
        """Wait for the work that one task does for all, with a time limit of one's own."""
        await asyncio.wait((task,), timeout=within)
        if not task.done():
            raise self._no_answer(TOO_SLOW)
        if task.cancelled():
            raise self._no_answer("the client is closed" if self._closed else GONE)
        return task.result()

    async def _begin(self, within: float) -> AioConnection:
        self._connection = await self.connect(within)
        return self._connection

    async def _listen(self, connection: AioConnection, within: float) -> int:
        await self._subscribe(connection, within)
        if not connection.open:  # it ended before it was subscribed: no waiter would learn that
            raise self._no_answer(GONE)
        self._count += 1
        connection.generation = self._count
        return connection.generation

    def _lost(self, connection: AioConnection) -> None:
        if self._connection is connection:
            self._connection = None
        if connection.generation:
            self._on_silence()

    # --- connecting --------------------------------------------------------------------------------------------

    async def _open(self, made: Any, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await made.connect()
        except BaseException:
            writer, made._writer, made._reader = made._writer, None, None
            if writer is not None:
                writer.transport.abort()
            raise

    def _take_over(self, made: Any) -> AioConnection:
        return AioConnection(made, self.where, self._on_message, self._on_silence, self._lost)

    async def _exchange(self, connection: AioConnection, commands: Sequence[bytes], within: float) -> list[Any]:
        return list(await asyncio.gather(*[connection.send(command, within) for command in commands]))

    async def _end(self, connection: AioConnection) -> None:
        await connection.close()


def _ends(task: asyncio.Task[Any]) -> bool:
    return task.done() or task.cancelling() > 0  # a program may cancel all its tasks


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the callers have it, and none may be left
