"""A store with planned faults: wrap any opener, in any harness, to test how your code handles them.

Theory of operation
-------------------
Each call of a store is a request and a reply, and either can be lost, doubled or late. `Faulty` numbers the calls and
calls a *plan* for each: ``plan(call)`` returns a `Fault`, or None for no fault. The caller sees what a real store would
show: `StoreUnavailable`, with ``unknown`` true if it cannot know whether the request was executed.

Example:
    ```python
    from leasehold.stores import registry

    store = Faulty(registry.opener("memory:"), nth(0, Fault(Kind.DROP_REPLY), method="try_acquire"))
    with Client(store) as locks:
        with locks.lock("stock:42"):  # the first request is executed, its reply is lost, and it is repeated
            ...
    ```

"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.store_api import BatchStore, Opener, Store, Watching

T = TypeVar("T")


class Kind(enum.Enum):
    """The kinds of faults of a call."""

    REFUSE = "refuse"  # not executed, and the caller knows
    DROP_REQUEST = "drop request"  # not executed; the caller cannot know
    DROP_REPLY = "drop reply"  # executed; the caller cannot know
    DUPLICATE = "duplicate"  # executed twice; the second answer counts
    DELAY_REQUEST = "delay request"  # executed later, within the caller's timeout; else as LATE
    DELAY_REPLY = "delay reply"  # executed now, answered later, within the caller's timeout
    LATE = "late"  # the caller times out; the request is executed after that
    DEAF = "deaf"  # `wait` and `wait_for_cell` only: the message that wakes the waiter is lost


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind, and its seconds: until the error is raised, or of the delay."""

    kind: Kind
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the store: its number through this opener, from 0, its method, and its name."""

    number: int
    method: str
    name: str


Plan = Callable[[Call], Fault | None]

METHODS = ("try_acquire", "try_acquire_many", "release", "release_many", "renew", "inspect", "compare_and_set")
"""All methods of a store except `wait`."""


def nth(number: int, fault: Fault, *, method: str | None = None) -> Plan:
    """Plan one fault: at the call of that number, from 0; only calls of ``method`` count if it is given."""
    met = -1

    def plan(call: Call) -> Fault | None:
        nonlocal met
        if method is not None and call.method != method:
            return None
        met += 1
        return fault if met == number else None

    return plan


def always(fault: Fault, methods: Iterable[str] = METHODS) -> Plan:
    """Plan a fault at each call of some methods."""
    concerned = frozenset(methods)
    return lambda call: fault if call.method in concerned else None


def sometimes(chance: random.Random, rates: Mapping[Kind, float], longest: float) -> Plan:
    """Plan random faults: each kind at its rate, taking up to ``longest`` seconds."""

    def plan(call: Call) -> Fault | None:
        draw = chance.random()
        for kind, rate in rates.items():
            if (kind is Kind.DEAF) != (call.method in ("wait", "wait_for_cell")):
                continue
            draw -= rate
            if draw < 0:
                return Fault(kind, chance.uniform(0.0, longest))
        return None

    return plan


@dataclass(eq=False)
class Faulty:
    """An opener that wraps another; all its stores share its plan. ``calls`` lists the calls so far."""

    opener: Opener
    plan: Plan
    calls: list[Call] = field(default_factory=list[Call])

    def open(self, runtime: Runtime, namespace: str) -> FaultyStore:
        """Open the store."""
        return FaultyStore(self.opener.open(runtime, namespace), runtime, self)

    def over(self, opener: Opener) -> Faulty:
        """Wrap another opener with the same plan and the same count."""
        return replace(self, opener=opener)


class FaultyStore:
    """A store with planned faults."""

    def __init__(self, inner: Store, runtime: Runtime, faulty: Faulty) -> None:
        self._inner = inner
        self._runtime = runtime
        self._faulty = faulty
        self._mutex = runtime.mutex()
        self._deaf: dict[str, Signal] = {}  # by ticket id: the waiters whose message was lost

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        answer = await self._meet(
            "try_acquire", name, within, lambda: self._inner.try_acquire(name, ticket, join=join, within=within)
        )
        return _since(answer, since)

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        since, inner = self._runtime.now(), cast(BatchStore, self._inner)
        name = claims[0][0] if claims else ""
        answers = await self._meet(
            "try_acquire_many", name, within, lambda: inner.try_acquire_many(claims, keep=keep, within=within)
        )
        return [_since(answer, since) for answer in answers]

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        name, inner = releases[0][0] if releases else "", cast(BatchStore, self._inner)
        return await self._meet("release_many", name, within, lambda: inner.release_many(releases, within=within))

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        return await self._meet(
            "release", name, within, lambda: self._inner.release(name, ticket, reason=reason, within=within)
        )

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        name = tickets[0][0] if tickets else ""
        results = await self._meet("renew", name, within, lambda: self._inner.renew(tickets, within=within))
        for (_, ticket), result in zip(tickets, results, strict=True):
            deaf = self._deaf.get(ticket.id)
            if deaf is not None and result is not RenewalResult.QUEUED:
                deaf.set()  # the renewal reports what the lost message said
        return results

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        fault = self._next("wait", name)
        if fault is None:
            return await self._inner.wait(name, ticket, mark, timeout=timeout)
        if fault.kind is not Kind.DEAF:
            raise await self._failure("wait", fault, timeout)
        signal = self._deaf[ticket.id] = self._runtime.signal()
        try:
            await signal.wait(timeout)
        finally:
            del self._deaf[ticket.id]
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        return await self._meet(
            "inspect", prefix, within, lambda: self._inner.inspect(prefix, exact=exact, within=within)
        )

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        return await self._meet(
            "compare_and_set", name, within, lambda: self._inner.compare_and_set(name, change, within=within)
        )

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        fault = self._next("wait_for_cell", name)
        if fault is None:
            await cast(Watching, self._inner).wait_for_cell(name, version, timeout=timeout)
        elif fault.kind is Kind.DEAF:
            await self._runtime.sleep(timeout)
        else:
            raise await self._failure("wait_for_cell", fault, timeout)

    async def diagnose(self) -> list[Finding]:
        return await self._inner.diagnose()

    async def close(self) -> None:
        await self._inner.close()

    def after_fork(self) -> None:
        self._mutex = self._runtime.mutex()
        self._deaf.clear()
        self._inner.after_fork()

    def _next(self, method: str, name: str) -> Fault | None:
        with self._mutex:
            call = Call(len(self._faulty.calls), method, name)
            self._faulty.calls.append(call)
            return self._faulty.plan(call)

    async def _meet(self, method: str, name: str, within: float, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        fault = self._next(method, name)
        if fault is None:
            return await request()
        match fault.kind:
            case Kind.DUPLICATE:
                await request()
                return await request()
            case Kind.DELAY_REQUEST if fault.seconds < within:
                await self._runtime.sleep(fault.seconds)
                return await request()
            case Kind.DELAY_REPLY if fault.seconds < within:
                answer = await request()
                await self._runtime.sleep(fault.seconds)
                return answer
            case Kind.DELAY_REPLY | Kind.DROP_REPLY:
                await request()
            case Kind.DELAY_REQUEST | Kind.LATE:
                self._runtime.spawn(lambda: self._later(request, fault.seconds), "late request")
        raise await self._failure(method, fault, within)

    async def _later(self, request: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> None:
        await self._runtime.sleep(seconds)
        try:
            await request()
        except StoreUnavailable:  # the caller has given up
            pass

    async def _failure(self, method: str, fault: Fault, within: float) -> StoreUnavailable:
        if fault.kind is not Kind.LATE:
            await self._runtime.sleep(min(fault.seconds, within))
        unknown = fault.kind is not Kind.REFUSE
        return StoreUnavailable(f"{method} met a planned fault: {fault.kind.value}", unknown=unknown)

    def __repr__(self) -> str:
        return f"<FaultyStore {self._inner!r}>"


def _since(answer: Granted | Wait, since: float) -> Granted | Wait:
    """Let a grant count from before the caller's request, unless it counts from earlier still, as with a session."""
    return answer._replace(since=min(since, answer.since)) if isinstance(answer, Granted) else answer
