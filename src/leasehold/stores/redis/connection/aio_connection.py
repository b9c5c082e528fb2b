"""One asyncio connection: requests out in the order of the calls, replies and messages in (RESP3).

The server replies in order, so the oldest pending request takes the next reply. A cancelled call keeps its position in
that order, and its reply is discarded, so a reply never reaches another caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from leasehold.stores.redis.connection.base import MESSAGES, OnMessage, OnSilence, ReplyError, no_answer


class Connection(asyncio.Protocol):
    """One connection that redis-py opened and authenticated; from then on our code alone uses it.

    Commands sent in one turn of the loop leave in few writes. The first leaves at once, so that the server starts at
    once; the rest leave together at the end of the turn.
    """

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
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._wrote = False  # in this turn of the loop
        self.full = False  # whether the send buffer is full
        self._resumed: asyncio.Future[None] | None = None  # while it is full
        self._timer: asyncio.TimerHandle | None = None
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
        self._pending.append((answer, until))
        if self._timer is None or until < self._timer.when():
            self._set_timer(until)
        if self._wrote:
            self._unsent.append(command)
        else:
            self._wrote = True
            self._transport.write(command)
            self.loop.call_soon(self._flush)
        return answer

    async def writable(self) -> None:
        """Wait while the send buffer is full."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self.end("it was closed here")
        await asyncio.wait((self._closed,), timeout=1.0)

    # --- called by the loop ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Match replies to commands, in order, and pass messages on."""
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if isinstance(reply, hiredis.PushNotification):
                    self._pushed(reply)
                elif self._pending:
                    self._answer(reply)
                else:
                    self.end("it sent a reply without a command")
                    return
        except hiredis.ProtocolError as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending commands."""
        self.end(exc or "it closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    def eof_received(self) -> bool:
        """Close the connection."""
        return False

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

    def _answer(self, reply: Any) -> None:
        answer, _ = self._pending.popleft()
        if not answer.done():  # else the caller was cancelled
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
        if self._unsent and self.open:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._check_time)

    def _check_time(self) -> None:
        """End the connection if a command has waited too long: the replies of all later ones wait behind it."""
        self._timer = None
        earliest = min((until for _, until in self._pending), default=None)
        if earliest is None:
            return
        if earliest <= self.loop.time():
            self.end("it answered too slowly")
        else:
            self._set_timer(earliest)

    def end(self, why: object) -> None:
        """Close at once, and fail all pending commands."""
        if not self.open:
            return
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        pending, self._pending = self._pending, deque()
        self._unsent.clear()
        for answer, _ in pending:
            if not answer.done():
                answer.set_exception(no_answer(self._where, why, unknown=True))
        self._transport.abort()  # what is unsent must not be sent: its callers have seen it fail
        self._connection._writer = self._connection._reader = None
        self._on_lost(self)
