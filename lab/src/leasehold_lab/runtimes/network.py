"""A simulated network between a client and its store: the store has its own machine, and messages take time.

As on a real network, a request continues when its client is killed or paused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.store_api import BatchStore, Opener, Store, Watching
from leasehold_lab.runtimes.simulated import SimulatedRuntime

T = TypeVar("T")


class InVirtualTime:
    """Marks an opener whose store runs in virtual time, with its own network."""


@dataclass(frozen=True, slots=True)
class Network:
    """Opens a store on its own machine; ``latency`` is the least and the most seconds that a message takes."""

    opener: Opener
    server: SimulatedRuntime
    latency: tuple[float, float] = (0.0001, 0.001)

    def open(self, runtime: Runtime, namespace: str) -> RemoteStore:
        """Open the store for one client."""
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a simulated network serves clients of simulated harnesses only")
        return RemoteStore(self.opener.open(self.server, namespace), runtime, self.server, self.latency)


class RemoteStore:
    """A store as a client sees it through the network; validity counts by the clock of the client."""

    def __init__(
        self, inner: Store, runtime: SimulatedRuntime, server: SimulatedRuntime, latency: tuple[float, float]
    ) -> None:
        self._inner = inner
        self._runtime = runtime
        self._server = server
        self._latency = latency

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        answer = await self._ask(
            lambda: self._inner.try_acquire(name, ticket, join=join, within=within), "try_acquire", within
        )
        return answer._replace(since=since) if isinstance(answer, Granted) else answer

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        since, inner = self._runtime.now(), cast(BatchStore, self._inner)
        answers = await self._ask(
            lambda: inner.try_acquire_many(claims, keep=keep, within=within), "try_acquire_many", within
        )
        return [answer._replace(since=since) if isinstance(answer, Granted) else answer for answer in answers]

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        inner = cast(BatchStore, self._inner)
        return await self._ask(lambda: inner.release_many(releases, within=within), "release_many", within)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        return await self._ask(
            lambda: self._inner.release(name, ticket, reason=reason, within=within), "release", within
        )

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        return await self._ask(lambda: self._inner.renew(tickets, within=within), "renew", within)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        granted = await self._inner.wait(name, ticket, mark, timeout=timeout)
        assert granted is None, "a pushed grant would have the time of the server's clock"
        await self._runtime.sleep(self._delay())
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        return await self._ask(lambda: self._inner.inspect(prefix, exact=exact, within=within), "inspect", within)

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        return await self._ask(
            lambda: self._inner.compare_and_set(name, change, within=within), "compare_and_set", within
        )

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        await cast(Watching, self._inner).wait_for_cell(name, version, timeout=timeout)
        await self._runtime.sleep(self._delay())

    async def diagnose(self) -> list[Finding]:
        return await self._inner.diagnose()

    async def close(self) -> None:
        await self._inner.close()

    def after_fork(self) -> None:
        self._inner.after_fork()

    def _delay(self) -> float:
        return self._server.scheduler.random.uniform(*self._latency)

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, T]], what: str, within: float) -> T:
        """Send a request, and wait at most ``within`` seconds for the reply; the request outlives its client."""
        arrived = self._runtime.signal()
        reply: list[T | BaseException] = []

        async def travel() -> None:
            await self._server.sleep(self._delay())
            self._server.scheduler.note(self._runtime.machine.name, f"reaches the store with {what}")
            try:
                answer: T | BaseException = await call()
            except Exception as error:  # sent back as the reply
                answer = error
            await self._server.sleep(self._delay())
            reply.append(answer)
            arrived.set()

        self._server.spawn(travel, what)
        if not await arrived.wait(within):
            raise StoreUnavailable(f"no answer to {what} within {within:.3g} s", unknown=True)
        (answer,) = reply
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def __repr__(self) -> str:
        return f"<RemoteStore {self._inner!r}>"
