"""The transport that follows the primary: it finds out which server that is, talks to it, and leaves it when it is not.

Theory of operation
-------------------
Behind it is one transport of a single server at a time, unchanged. A guide (the sentinels) says which server that is;
the server itself confirms it, since each new connection asks for its role. The question is put again

* after each failure: no connection, a lost reply, a server that answers that it is a replica, or still loading;
* when the guide hears that another was chosen, even if the old one goes on answering its side of a network.

What was certainly not carried out is sent again, to whoever is the primary then, until the caller's time is over. What
may have been carried out is the caller's to repeat, who knows what a second answer means. If the guide is silent, the
server that was the primary last is asked on: it still says itself whether it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.cluster.routing import RoutedPipelining
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
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.single_flight import SingleFlight

FIRST_PAUSE = 0.02
"""Seconds before the primary is looked for again; each further pause is twice as long, with jitter."""

LONGEST_PAUSE = 0.5
"""Seconds: a failover is noticed at most so much later than it could be."""

RETRY_RESOLVER_AFTER = 1.0
"""Seconds for which a guide that did not answer is not asked again, while a primary is known from before."""

EPOCHS = 1 << 32
"""Subscriptions that one server can have seen before their numbers meet those of the next."""


class PrimaryResolver(Protocol):
    """Knows which server is the primary."""

    @property
    def where(self) -> str:
        """What to call it in messages to people."""
        ...

    async def primary(self, within: float) -> Settings:
        """Find out.

        Raises:
            StoreUnavailable: it cannot tell.
        """
        ...

    def moved(self) -> bool:
        """Say, without waiting, whether it has heard since that another server is the primary."""
        ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...


class PrimaryTransport:
    """See `leasehold.stores.redis.connection.base.Transport`. It looks for the primary at the first call."""

    def __init__(
        self,
        runtime: Runtime,
        resolver: PrimaryResolver,
        make: MakeTransport,
        channel: bytes,
        on_message: OnMessage,
        on_silence: OnSilence,
    ) -> None:
        self._runtime = runtime
        self._resolver = resolver
        self._make = make
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._transport: Transport | None = None
        self._address = ""
        self._generation = 0
        self._doubtful = True
        self._resolve_at = 0.0
        self._closed = False
        self._together = SingleFlight(runtime)

    def pipelining(self) -> RoutedPipelining:
        """Return what asks the primary without waiting, as long as it is known who that is."""
        return RoutedPipelining(self._runtime, self._known, self._served, self._lost_one)

    @property
    def address(self) -> str:
        """The server that was the primary last; empty before the first call."""
        return self._address

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self._ask([command], within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        return await self._ask(commands, within)

    async def _ask(self, commands: Sequence[bytes], within: float) -> list[Any]:
        until, pause = self._runtime.now() + within, FIRST_PAUSE
        while True:
            left = max(until - self._runtime.now(), 0.001)
            transport = self._transport
            try:
                if transport is None or self._doubtful or self._resolver.moved():
                    transport = await self._settle(left)
                    left = max(until - self._runtime.now(), 0.001)
                if len(commands) == 1:
                    replies = [await transport.call(commands[0], within=left)]
                else:
                    replies = await transport.call_all(commands, within=left)
            except StoreUnavailable as error:
                self._doubtful = True
                if self._closed and not error.unknown:
                    raise self._is_closed() from None
                if not isinstance(error, RetryableError) or not await self._pause(pause, until):
                    raise
            else:
                passing = [reply for reply in replies if isinstance(reply, ReplyError) and reply.code in PASSING]
                if not passing:
                    return replies
                self._leave(transport)
                if not await self._pause(pause, until):
                    return replies
            pause = min(2 * pause, LONGEST_PAUSE)

    async def listen(self, within: float) -> int:
        transport = self._transport
        if transport is None or self._doubtful or self._resolver.moved():
            transport = await self._settle(within)
        try:
            return self._numbered(await transport.listen(within), transport)
        except StoreUnavailable:
            self._doubtful = True
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
            self._leave(transport)

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
        await self._resolver.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        self._together = SingleFlight(self._runtime)
        self._doubtful, self._closed = True, False
        self._resolver.after_fork()
        if (transport := self._transport) is not None:
            transport.after_fork(channel)

    # --- inside ------------------------------------------------------------------------------------------------

    def _known(self, command: bytes) -> Transport | None:
        return None if self._doubtful or self._closed or self._resolver.moved() else self._transport

    def _served(self) -> list[Transport]:
        return [] if self._transport is None else [self._transport]

    def _lost_one(self, transport: Transport) -> None:
        if transport is self._transport:
            self._doubtful = True

    def _leave(self, transport: Transport) -> None:
        """End the connections to a server that says itself that it is not the one."""
        self._doubtful = True
        transport.hang_up()

    def _is_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._resolver.where}: the client is closed")

    def _numbered(self, generation: int, transport: Transport) -> int:
        return self._generation * EPOCHS + generation if generation and transport is self._transport else 0

    async def _pause(self, seconds: float, until: float) -> bool:
        """Wait before the next attempt; say whether there is time for one."""
        seconds *= 0.5 + self._runtime.jitter() / 2
        if self._runtime.now() + seconds >= until:
            return False
        await self._runtime.sleep(seconds)
        return True

    async def _settle(self, within: float) -> Transport:
        """Return the wire of the primary, found out by one for all who need it now."""
        if self._closed:
            raise self._is_closed()

        async def find() -> None:
            await self._find(within)

        await self._together.run(find, within)
        transport = self._transport
        if transport is None:
            raise RetryableError(f"{self._resolver.where}: the primary is still being looked for")
        return transport

    async def _find(self, within: float) -> None:
        if self._transport is not None and self._runtime.now() < self._resolve_at:
            return
        try:
            settings = await self._resolver.primary(within)
        except RetryableError:
            if self._transport is None:
                raise
            self._resolve_at = self._runtime.now() + RETRY_RESOLVER_AFTER
            return  # whoever asks the last one is told by itself whether it still is; the doubt stays
        self._doubtful = False
        if settings.where == self._address:
            return
        old = self._transport
        made = self._make(self._runtime, settings, self._channel, self._on_message, self._on_silence)
        self._generation += 1
        self._transport, self._address = made, settings.where
        if self._closed:  # meanwhile: nobody else would close it
            await made.close()
        if old is not None:
            await old.close()
            self._on_silence()  # what the old one would have told is lost: whoever waits asks again
