"""The asyncio transport: all tasks of a client share one connection, which carries calls and messages alike (RESP3).

Calls made in one turn of the loop leave in few writes: the first at once, so that the server starts at once, the rest
joined at the end of the turn. Replies come in the order of the calls. A cancelled call leaves its place in that
order, and its reply is thrown away when it comes, so nobody ever reads the answer to somebody else's question.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import hiredis
import redis

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import (
    HELLO,
    MESSAGES,
    HungUp,
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
"""Seconds, at least, for what is done once for all: a caller in a hurry gives up earlier, for itself alone."""

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
        """Send a command if that takes no waiting, and return the future of its reply; None if it does."""
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
                self._subscribing.add_done_callback(_seen)
            await self._shared(self._subscribing, within)
        return connection.generation

    def generation(self) -> int:
        connection = self._live()
        return 0 if connection is None else connection.generation

    def hear(self, subscriber: Subscriber, timeout: float) -> Coroutine[Any, Any, object]:
        signal = subscriber.ready(self._runtime)
        if subscriber.news:  # it came before there was a signal
            signal.set()
        return signal.wait(timeout)

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()

    def disturbed(self) -> bool:
        return False  # the loop reads what comes

    def hang_up(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.end("it was left for another server")

    def retune(self, channel: bytes) -> None:
        self._channel = channel

    def facts(self) -> dict[str, str]:
        return self._facts

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        ours = [each for each in (self._connecting, self._subscribing) if each is not None and not each.done()]
        ended = [each for each in ours if each.get_loop() is asyncio.get_running_loop() and each.cancel()]
        if ended:
            await asyncio.wait(ended)  # the connection that they were making is closed then
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
        """Connect once for all who need it; one that is cancelled or in a hurry does not stop it."""
        if self._closed:
            raise no_answer(self._settings.where, "the client is closed", unknown=False)
        task = self._connecting
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._connecting = asyncio.ensure_future(self._connect(max(within, COMMON_WITHIN)))
            task.add_done_callback(_seen)
        return await self._shared(task, within)

    async def _shared(self, task: asyncio.Task[T], within: float) -> T:
        """Wait for what one task does for all, with a limit of one's own."""
        await asyncio.wait((task,), timeout=within)
        if not task.done():
            raise no_answer(self._settings.where, "it answered too slowly", unknown=False)
        if task.cancelled():
            raise no_answer(self._settings.where, "the client is closed", unknown=False)
        return task.result()

    async def _connect(self, within: float) -> Connection:
        """Connect and check who answers; once more if it hangs up before that."""
        until = self._runtime.now() + within
        try:
            return await self._connect_once(within)
        except HungUp:
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
            raise failed  # out here it has no context: local variables in the frames of redis-py show the password
        connection = Connection(connection, where, self._heard, self._on_silence, self._lost)
        try:
            self._facts = check_handshake(await connection.send(HELLO, within), self._settings)
        except BaseException as error:
            await connection.close()
            if isinstance(error, StoreUnavailable) and error.unknown:
                raise HungUp(str(no_answer(where, "it broke off the handshake", unknown=False))) from None
            raise
        self._connection = connection
        return connection

    async def _subscribe(self, connection: Connection, within: float) -> int:
        asked = subscriptions(self._channel, version_of(self._facts))
        for reply in await asyncio.gather(*[connection.send(command, within) for command in asked]):
            if isinstance(reply, ReplyError):
                raise refused(self._settings.where, reply)
        self._count += 1
        connection.generation = self._count
        return connection.generation

    def _heard(self, message: bytes) -> None:
        self._on_message(message)

    def _lost(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        if connection.generation:
            self._on_silence()


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever asked has it; nobody may be left to ask


class Connection(asyncio.Protocol):
    """One connection that redis-py made and shook hands on; from then on it is ours."""

    def __init__(
        self,
        connection: Any,
        where: str,
        on_message: OnMessage,
        on_silence: OnSilence,
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.open = True
        self.generation = 0
        self._connection = connection
        self._where = where
        self._on_message = on_message
        self._on_silence = on_silence
        self._on_lost = on_lost
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._joined: list[bytes] = []
        self._wrote = False  # in this turn of the loop
        self.full = False  # whether the server takes nothing more
        self._resumed: asyncio.Future[None] | None = None  # while it is full
        self._watch: asyncio.TimerHandle | None = None
        self._closed = self.loop.create_future()
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)

    def send(self, command: bytes, within: float) -> asyncio.Future[Any]:
        """Write a command; the future has its reply, or `StoreUnavailable` if the connection ends first."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        if not self.open:
            answer.set_exception(no_answer(self._where, "the connection is closed", unknown=False))
            return answer
        until = self.loop.time() + within
        self._asked.append((answer, until))
        if self._watch is None or until < self._watch.when():
            self._watch_until(until)
        if self._wrote:
            self._joined.append(command)
        else:
            self._wrote = True
            self._transport.write(command)
            self.loop.call_soon(self._flush)
        return answer

    async def writable(self) -> None:
        """Wait while the server takes nothing more."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)

    async def close(self) -> None:
        """Close, and wait until it is closed."""
        self.end("it was closed here")
        await asyncio.wait((self._closed,), timeout=1.0)

    # --- called by the loop ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Match replies to questions, in order, and pass messages on."""
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if isinstance(reply, hiredis.PushNotification):
                    self._pushed(reply)
                elif self._asked:
                    self._answer(reply)
                else:
                    self.end("it answered a question that nobody asked")
                    return
        except hiredis.ProtocolError as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait for an answer that none will come."""
        self.end(exc or "it closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    def eof_received(self) -> bool:
        """Close."""
        return False

    def pause_writing(self) -> None:
        """Hold back calls: the server takes nothing more."""
        self.full = True
        self._resumed = self.loop.create_future()

    def resume_writing(self) -> None:
        """Let calls go on."""
        self.full = False
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    # --- inside ------------------------------------------------------------------------------------------------

    def _answer(self, reply: Any) -> None:
        answer, _ = self._asked.popleft()
        if not answer.done():  # else its caller was cancelled
            answer.set_result(reply)

    def _pushed(self, push: Sequence[Any]) -> None:
        if push[0] in MESSAGES:
            self._on_message(push[2])
        elif push[0] == b"sunsubscribe":  # its slot has moved to another node
            self.generation = 0
            self._on_silence()
        elif push[0] in (b"subscribe", b"ssubscribe"):
            self._answer(push)  # in RESP3 a subscription is confirmed by a push, in the order of replies

    def _flush(self) -> None:
        self._wrote = False
        if self._joined and self.open:
            self._transport.write(b"".join(self._joined))
        self._joined.clear()

    def _watch_until(self, when: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        """End the connection if the oldest question has waited too long: all later ones wait behind it."""
        self._watch = None
        earliest = min((until for _, until in self._asked), default=None)
        if earliest is None:
            return
        if earliest <= self.loop.time():
            self.end("it answered too slowly")
        else:
            self._watch_until(earliest)

    def end(self, why: object) -> None:
        """Close at once; who waits for an answer is told that none will come."""
        if not self.open:
            return
        self.open = False
        if self._watch is not None:
            self._watch.cancel()
        self.resume_writing()
        asked, self._asked = self._asked, deque()
        self._joined.clear()
        for answer, _ in asked:
            if not answer.done():
                answer.set_exception(no_answer(self._where, why, unknown=True))
        self._transport.abort()  # what is unsent is not to be sent: its callers have been told that it is lost
        self._connection._writer = self._connection._reader = None
        self._on_lost(self)
