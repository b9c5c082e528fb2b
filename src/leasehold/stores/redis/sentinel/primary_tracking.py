"""The transport to the primary: it finds the primary, uses it, and leaves it after a failover.

Theory of operation
-------------------
It uses one transport to one server at a time. The sentinels name the primary. The server confirms it, since each new
connection asks for its role. The primary is resolved again

* after each failure: no connection, a lost reply, a server that answers that it is a replica, or is loading;
* when a message says that another primary was chosen, even if the old one still replies on its side of a partition.

A command that was certainly not carried out is sent again, to the new primary, within the caller's time. A command that
may have been carried out is not: the caller knows what a second reply means. If no sentinel replies, the last
primary is used on: it still reports itself whether it is one. After the message of a failover it is not used until the
sentinels have been silent for `SILENT_AFTER`: a caller with little time cannot tell whether they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import (
    PASSING,
    MakeTransport,
    OnMessage,
    OnSilence,
    ReplyError,
    RetryableError,
    Subscriber,
    Transport,
)
from leasehold.stores.redis.connection.failover import Retries, SingleFlight
from leasehold.stores.redis.connection.pipelining import PipelinedConnection, Pipelining
from leasehold.stores.redis.connection.replies import OnReply
from leasehold.stores.redis.sentinel.sentinel import Sentinels

ASK_AGAIN_AFTER = 1.0
"""Seconds for which sentinels that did not reply are not asked again, while the last primary is known."""

GENERATIONS = 1 << 32
"""Most subscriptions of one server, so that their numbers differ from those of the next server."""


class PrimaryTransport:
    """See `leasehold.stores.redis.connection.base.Transport`. It resolves the primary at the first call."""

    def __init__(
        self,
        runtime: Runtime,
        sentinels: Sentinels,
        make: MakeTransport,
        channel: bytes,
        on_message: OnMessage,
        on_silence: OnSilence,
    ) -> None:
        self._runtime = runtime
        self._sentinels = sentinels
        self._make = make
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._transport: Transport | None = None
        self._pipelining: Pipelining | None = None
        self._address = ""
        self._generation = 0
        self._in_doubt = True
        self._resolve_at = 0.0
        self._closed = False
        self._single_flight = SingleFlight(runtime)

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self._send([command], within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        return await self._send(commands, within)

    async def _send(self, commands: Sequence[bytes], within: float) -> list[Any]:
        until, retries = self._runtime.now() + within, None
        while True:
            left = max(until - self._runtime.now(), 0.001)
            try:
                transport = None if self._in_doubt or self._sentinels.moved() else self._transport
                if transport is None:
                    transport = await self._resolved(left)
                    left = max(until - self._runtime.now(), 0.001)
                if len(commands) == 1:
                    replies = [await transport.call(commands[0], within=left)]
                else:
                    replies = await transport.call_all(commands, within=left)
            except StoreUnavailable as error:
                self._in_doubt = True
                if self._closed and not error.unknown:
                    raise self._is_closed() from None
                retries = retries or Retries(self._runtime, until)
                if not isinstance(error, RetryableError) or not await retries.pause():
                    raise
            else:
                codes = {reply.code for reply in replies if isinstance(reply, ReplyError)} & PASSING
                if not codes:
                    return replies
                self._in_doubt = True
                if codes != {"NOREPLICAS"}:  # after that the connections are good, and waiters keep theirs
                    transport.hang_up()
                retries = retries or Retries(self._runtime, until)
                if not await retries.pause():
                    return replies

    async def listen(self, within: float) -> int:
        transport = None if self._in_doubt or self._sentinels.moved() else self._transport
        if transport is None:
            transport = await self._resolved(within)
        try:
            return self._numbered(await transport.listen(within), transport)
        except StoreUnavailable:
            self._in_doubt = True
            raise

    def generation(self) -> int:
        transport = self._transport
        return 0 if transport is None else self._numbered(transport.generation(), transport)

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        if (transport := self._transport) is not None:
            await transport.receive(subscriber, timeout)

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()
        if (transport := self._transport) is not None:
            transport.notify(subscriber)

    def has_unread(self) -> bool:
        return self._transport is not None and self._transport.has_unread()

    def hang_up(self) -> None:
        if (transport := self._transport) is not None:
            self._in_doubt = True
            transport.hang_up()

    def set_channel(self, channel: bytes) -> None:
        self._channel = channel
        if (transport := self._transport) is not None:
            transport.set_channel(channel)

    def facts(self) -> dict[str, str]:
        return {} if self._transport is None else self._transport.facts()

    async def close(self) -> None:
        self._closed = True
        if (transport := self._transport) is not None:
            await transport.close()
        await self._sentinels.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        self._single_flight = SingleFlight(self._runtime)
        self._in_doubt, self._closed = True, False
        self._sentinels.after_fork()
        if (transport := self._transport) is not None:
            transport.after_fork(channel)

    # --- pipelining: only to a primary that is known without waiting; else `call` finds it ------------------------

    def post(self, command: bytes, until: float, answered: OnReply, taken: list[PipelinedConnection]) -> bool:
        if self._in_doubt or self._closed or self._sentinels.moved() or (primary := self._pipelining) is None:
            return False

        def answered_or_lost(reply: Any, failure: StoreUnavailable | None) -> None:
            if failure is not None and primary is self._pipelining:
                self._in_doubt = True
            answered(reply, failure)

        return primary.post(command, until, answered_or_lost, taken)

    def add(self, within: float) -> None:
        if (primary := self._pipelining) is None:
            return
        try:
            primary.add(within)
        except (StoreUnavailable, Unsupported):
            self._in_doubt = self._in_doubt or primary is self._pipelining
            raise

    def read(self, now: float) -> bool:
        return self._pipelining is not None and self._pipelining.read(now)

    # --- inside ------------------------------------------------------------------------------------------------

    def _is_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._sentinels.where}: the client is closed")

    def _numbered(self, generation: int, transport: Transport) -> int:
        return self._generation * GENERATIONS + generation if generation and transport is self._transport else 0

    async def _resolved(self, within: float) -> Transport:
        """Return the transport to the primary, resolved by one caller for all that need it now."""
        if self._closed:
            raise self._is_closed()
        until, left = self._runtime.now() + within, within
        while not await self._single_flight.run(partial(self._find, left), left):
            if not self._in_doubt or self._falls_back():
                break
            left = until - self._runtime.now()  # the other caller failed, was cancelled, or still asks
            if left <= 0:
                raise RetryableError(f"{self._sentinels.where}: the primary is still being resolved")
        transport = self._transport
        if transport is None:
            raise RetryableError(f"{self._sentinels.where}: the primary is still being resolved")
        return transport

    def _falls_back(self) -> bool:
        """Return whether the last primary is used unasked: the sentinels are silent, and were asked just before."""
        return self._transport is not None and self._sentinels.silent() and self._runtime.now() < self._resolve_at

    async def _find(self, within: float) -> None:
        if self._falls_back():
            return
        if not self._sentinels.due():
            self._in_doubt = True  # meanwhile: all wait for the answer, whatever else caused the question
        try:
            settings = await self._sentinels.primary(within)
        except RetryableError:
            silent = self._sentinels.silent()
            if self._transport is None or (self._sentinels.announced and not silent):
                raise
            if silent:  # else this caller decides for itself only
                self._resolve_at = self._runtime.now() + ASK_AGAIN_AFTER
            return  # use the last one, which reports whether it still is the primary; it stays in doubt
        if settings.where == self._address:
            self._in_doubt = False
            return
        old = self._transport
        made = self._make(self._runtime, settings, self._channel, self._on_message, self._on_silence)
        self._generation += 1
        self._transport, self._address = made, settings.where
        self._pipelining = made if isinstance(made, Pipelining) else None
        self._in_doubt = False  # only now: other threads use what they find here
        if self._closed:  # meanwhile: nothing else would close it
            await made.close()
        if old is not None:
            await old.close()
            self._on_silence()  # messages of the old one are lost: waiters retry
