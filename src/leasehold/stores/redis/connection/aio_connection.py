"""One asyncio connection: requests out in the order of the calls, replies and messages in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import OnMessage, OnSilence, no_answer
from leasehold.stores.redis.connection.replies import GONE, TOO_SLOW, OnReply, Replies

SILENT_FOR = 1.0
"""Seconds without a reply after which a connection has ended, if the command's own time limit is shorter.

A short lease has short time limits. A server that pauses for longer than these must not end the requests of all other
tasks. A connection that is dead must end all the same, so that the next requests have a new one. It ends earlier if no
pending command has time left. So a hold whose lease is shorter than one and a half of these seconds survives a dead
connection, unless other tasks have just sent requests on it.
"""


class AioConnection(Replies, asyncio.Protocol):
    """One connection that redis-py opened and authenticated; from then on our code alone uses it.

    Commands sent in one turn of the loop leave in few writes. If the server has nothing to do, one leaves at once. The
    others leave together at the end of the turn.

    A command whose time is over fails alone, and keeps its position in the order of replies until `SILENT_FOR`. The
    connection ends when all pending commands are late.
    """

    def __init__(
        self,
        connection: Any,
        where: str,
        on_message: OnMessage,
        on_silence: OnSilence,
        on_lost: Callable[[AioConnection], None],
    ) -> None:
        super().__init__(where, on_message)
        self.loop = asyncio.get_running_loop()
        self.generation = 0
        self.full = False  # whether the send buffer is full
        self._connection = connection
        self._on_silence = on_silence
        self._on_lost = on_lost
        self._unsent: list[bytes] = []
        self._resumed: asyncio.Future[None] | None = None  # while the send buffer is full
        self._timer: asyncio.TimerHandle | None = None
        self._checks_at = 0.0  # when the timer ends
        self._closed = self.loop.create_future()
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)

    def send(self, command: bytes, within: float) -> asyncio.Future[Any]:
        """Write a command; the future has its reply, or `StoreUnavailable` if the connection ends first."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        if self.open:
            self.post(command, within, partial(_settle, answer))
        else:
            answer.set_exception(no_answer(self.where, "the connection is closed", unknown=False))
        return answer

    def post(self, command: bytes, within: float, answered: OnReply) -> None:
        """Write a command; it must be open."""
        now, pending = self.loop.time(), self.pending
        until = now + within
        idle = not pending
        pending.append((answered, until, until if within > SILENT_FOR else now + SILENT_FOR))
        if self._timer is None or until < self._checks_at:
            self._set_timer(until)
        if idle:
            self._transport.write(command)
            return
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(command)

    async def writable(self) -> None:
        """Wait while the send buffer is full."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self.end("it was closed here")
        if not self.loop.is_closed():
            await asyncio.wait((self._closed,), timeout=1.0)

    def end(self, why: object) -> None:
        """Close at once, and fail all pending commands; if its loop was closed, only the latter."""
        if not self.open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._unsent.clear()
        super().end(why)
        if not self.loop.is_closed():  # else it can close nothing any more: the socket ends with the transport
            self.resume_writing()
            self._transport.abort()  # what is unsent must not be sent: its callers have seen it fail
        self._connection._writer = self._connection._reader = None
        self._on_lost(self)

    # --- called by the loop; `data_received` is that of `Replies` ------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending commands."""
        self.end(exc or GONE)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Hold back commands: the send buffer is full."""
        self.full = True
        self._resumed = self.loop.create_future()

    def resume_writing(self) -> None:
        """Let commands be sent again."""
        self.full = False
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    # --- inside ------------------------------------------------------------------------------------------------

    def _unsubscribed(self) -> None:
        self.generation = 0
        self._on_silence()

    def _flush(self) -> None:
        if self._unsent and self.open:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._checks_at = self.loop.call_at(when, self._check_time), when

    def _check_time(self) -> None:
        """Fail the commands that are late. End the connection if all are, or one is by too much."""
        self._timer = None
        now, pending = self.loop.time(), self.pending
        if not pending:
            return
        if all(until <= now for _, until, _ in pending) or any(ends <= now for _, _, ends in pending):
            self.end(TOO_SLOW)
            return
        for place, (answered, until, ends) in enumerate(tuple(pending)):
            if until <= now and answered is not _discard and self.open:
                pending[place] = _discard, until, ends
                answered(None, no_answer(self.where, TOO_SLOW, unknown=True))
        if pending:
            self._set_timer(min(ends if answered is _discard else until for answered, until, ends in pending))


def _discard(reply: Any, failure: StoreUnavailable | None) -> None:
    """Take the reply to a command that has failed."""


def _settle(answer: asyncio.Future[Any], reply: Any, failure: StoreUnavailable | None) -> None:
    if answer.done():  # the caller was cancelled
        return
    if failure is None:
        answer.set_result(reply)
    elif not answer.get_loop().is_closed():  # else no task waits
        answer.set_exception(failure)
