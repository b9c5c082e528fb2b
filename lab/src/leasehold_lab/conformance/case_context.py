"""The context of a conformance case: its namespace, its clients, and the kind of lock that it tests."""

from __future__ import annotations

import enum
import os
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from leasehold._inspection import LockInfo
from leasehold._model import Capabilities, LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold._validate import Meta
from leasehold.client import AsyncClient
from leasehold.errors import LeaseholdError
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold.store_api import Opener
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.runtimes.lateness import measured

E = TypeVar("E", bound=BaseException)
H = TypeVar("H", bound=AsyncHold)

NAME = "stock:42"

NOISE = 1.0
"""Seconds by which a busy machine may be late, at any moment of a case: no case fails for that.

Limits allow for more, where it was measured that this process got no processor (`CaseContext.ended_within`).
"""

SHORT = 0.4
"""Seconds of a lease that a case lets expire, and during which nothing must have happened."""

LASTING = 1.6
"""Seconds of a lease that a case keeps alive: a renewal, due after a third of it, may be late by `NOISE`.

So long is also a fixed lease, a delay or a time to live during which a case does something.
"""

GIVES_UP = 1.5
"""Seconds after which a waiter times out: long enough for the next one to queue, even on a busy machine."""

SOON = 5.0
"""Seconds within which an operation that does not depend on a lease must end."""

WITHIN = 5.0
"""Seconds that one call of the store may take."""

PUBLIC = ("leasehold.errors", "leasehold.guards")
"""Modules with the classes of errors that are documented."""

Case = Callable[[Harness, str | Opener], Coroutine[Any, Any, None]]
"""A case: takes the harness, and the URL or the opener of the store."""


class Variant(enum.Enum):
    """The kinds of locks that a case can test."""

    LOCK = "lock"
    FAIR_LOCK = "fair-lock"
    RLOCK = "rlock"
    FAIR_RLOCK = "fair-rlock"
    WRITER = "writer"
    ONE_PERMIT = "one-permit"
    ONE_NAME = "one-name"
    ELECTION = "election"

    @property
    def fair(self) -> bool:
        """Whether this lock serves in order of arrival."""
        return self in (Variant.FAIR_LOCK, Variant.FAIR_RLOCK)

    @property
    def kind(self) -> str:
        """The kind that `inspect` shows."""
        return {Variant.WRITER: "rw", Variant.ONE_PERMIT: "semaphore"}.get(self, "mutex")

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that this lock needs."""
        match self:
            case Variant.WRITER:
                return ("shared", "fair")
            case Variant.ONE_PERMIT:
                return ("permits", "fair")
            case Variant.ELECTION:
                return ("cells",)
        return ("fair",) if self.fair else ()


ALL = tuple(Variant)
EQUIVALENTS = (Variant.WRITER, Variant.ONE_PERMIT, Variant.ONE_NAME, Variant.ELECTION)
"""Other exclusive locks: a writer, a semaphore of one permit, a multi-lock of one name, a candidate."""

UNFAIR = (Variant.LOCK, Variant.RLOCK, *EQUIVALENTS)
MUTEX = (Variant.LOCK, *EQUIVALENTS)


@dataclass(frozen=True, slots=True)
class RegisteredCase:
    """A registered case: its id, its body, and the capabilities that it needs."""

    id: str
    body: Case
    needs: tuple[str, ...] = ()


REGISTER: defaultdict[str, list[RegisteredCase]] = defaultdict(list)
"""All cases by module."""


class CaseContext:
    """One run of one case. Its clients share a namespace of their own."""

    def __init__(
        self, harness: Harness, where: str | Opener, variant: Variant, late_since: Callable[[float], float]
    ) -> None:
        self.harness = harness
        self.late_since = late_since
        self.where = where
        self.variant = variant
        self.namespace = f"conformance-{secrets.token_hex(8)}"
        self._promised: Capabilities | None = None

    @property
    def name(self) -> str:
        """The name of the lock as `inspect` shows it."""
        return self.shown(NAME)

    def shown(self, name: str) -> str:
        """Return the name of a lock as `inspect` shows it."""
        return f"election/{name}" if self.variant is Variant.ELECTION else name

    def client(self, **options: Any) -> AsyncClient:
        """Make a client; the harness closes it."""
        client = self.harness.client(self.where, **{"namespace": self.namespace, **options})
        self._promised = client.store.capabilities
        return client

    @property
    def promised(self) -> Capabilities:
        """The capabilities of the store."""
        if self._promised is None:
            self.client()
        assert self._promised is not None
        return self._promised

    def meta(self, value: Meta) -> Meta | None:
        """Return what a holder shows to people; None where the store keeps none."""
        return value if self.promised.meta else None

    @property
    def short(self) -> float:
        """Seconds of a lease that a case lets expire: `SHORT`, or the shortest lease of the store."""
        return self.at_least_shortest(SHORT)

    @property
    def lasting(self) -> float:
        """Seconds of a lease that a case keeps alive: `LASTING`, or the shortest lease of the store."""
        return self.at_least_shortest(LASTING)

    def at_least_shortest(self, seconds: float) -> float:
        """Return for how many seconds the store keeps a lease or a cell with this duration."""
        return max(seconds, self.promised.shortest)

    def expired_after(self, seconds: float) -> float:
        """Return after how many seconds the store has surely expired a lease or a cell with this duration."""
        return self.at_least_shortest(seconds) + 0.1 + self.promised.expiry_delay

    def ended_within(self, start: float, seconds: float) -> None:
        """Check that since ``start`` at most so many seconds have passed; a machine that was late has more."""
        took, late = self.harness.now() - start, self.late_since(start)
        assert took < seconds + NOISE + late, f"{took} s, not {seconds} s; the machine was late by {late} s"

    def lock(self, client: AsyncClient | None = None, name: str = NAME, **options: Any) -> AsyncMutex:
        """Make the lock that the case tests, of the given client or of a new one."""
        client = self.client() if client is None else client
        if self.variant in (Variant.RLOCK, Variant.FAIR_RLOCK):
            return client.rlock(name, fair=self.variant.fair, **options)
        if self.variant is Variant.WRITER:
            return client.rw_lock(name, **options).writer()
        if self.variant is Variant.ONE_PERMIT:
            return client.semaphore(name, 1, **options).permits(1)
        if self.variant is Variant.ONE_NAME:
            return client.multi_lock([name], **options)
        if self.variant is Variant.ELECTION:
            return client.election(name, options.pop("meta", None), **options)
        return client.lock(name, fair=self.variant.fair, **options)

    async def holder(self, client: AsyncClient | None = None, name: str = NAME, **options: Any) -> AsyncHold:
        """Acquire the lock at once, which must succeed."""
        return held(await self.lock(client, name, **options).acquire(timeout=SOON))

    async def queued(self, client: AsyncClient, count: int, name: str | None = None) -> LockInfo:
        """Wait until ``count`` tickets wait for the name; return the result of `inspect`."""
        name = self.name if name is None else name
        until = self.harness.now() + SOON
        while True:
            info = await client.inspect(name)
            if info is not None and len(info.waiters) == count:
                return info
            assert self.harness.now() < until, f"{count} waiters expected, not {info}"
            await self.harness.sleep(0.005)


Body = Callable[[CaseContext], Coroutine[Any, Any, None]]


def case(variants: tuple[Variant, ...] = (Variant.LOCK,), needs: tuple[str, ...] = ()) -> Callable[[Body], Body]:
    """Register a body as one case for each variant, in the order of definition."""

    def register(body: Body) -> Body:
        for variant in variants:
            name = f"{variant.value}/{body.__name__}"
            REGISTER[body.__module__].append(RegisteredCase(name, _run(body, variant), _all(needs + variant.needs)))
        return body

    return register


def _all(needs: tuple[str, ...]) -> tuple[str, ...]:
    """Add the capabilities without which the library refuses to use others."""
    implied = set[str]()
    if "cells" in needs:
        implied.add("fencing")
    if "fair" in needs and {"shared", "permits"} & {*needs}:
        implied.add("fair_shared")
    return (*needs, *sorted(implied))


def _run(body: Body, variant: Variant) -> Case:
    async def run(harness: Harness, where: str | Opener) -> None:
        with measured(harness.runtime) as late_since:
            await body(CaseContext(harness, where, variant, late_since))

    run.__name__ = run.__qualname__ = body.__name__
    run.__doc__ = body.__doc__
    return run


def held(hold: H | None) -> H:
    """Return the hold; fail for None."""
    assert hold is not None, "the lock was not acquired"
    return hold


async def raised(expected: type[E], work: Awaitable[object]) -> E:
    """Await ``work``, and return the error that it must raise, in a documented class."""
    try:
        result = await work
    except expected as error:
        inside, caught = internal_classes(error), error
    else:
        raise AssertionError(f"{expected.__name__} expected, but it returned {result!r}")
    assert inside == []
    return caught


def internal_classes(error: BaseException | None) -> list[str]:
    """Return the classes of leasehold's errors in a traceback, of the error and its causes, that are not documented."""
    found = list[str]()
    while error is not None:
        cls = type(error)
        inside = cls.__module__.startswith("leasehold.") and cls.__module__ not in PUBLIC
        if inside and isinstance(error, LeaseholdError):
            found.append(f"{cls.__module__}.{cls.__name__}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


async def checked(hold: AsyncHold) -> None:
    """Call `AsyncHold.raise_if_lost`, as a coroutine."""
    hold.raise_if_lost()


def ticket(
    client: AsyncClient, mode: LockMode | None = None, *, lease: float = 30.0, lock_delay: float = 0.0
) -> Ticket:
    """Make a ticket as the engine does, for cases that call the store directly."""
    terms = LeaseTerms(mode or LockMode(), Owner.parse(client.owner), lease, lock_delay)
    return Ticket(ticket_id(os.urandom(16)), terms)
