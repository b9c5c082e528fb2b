"""Locks that are broken on purpose: what the histories must find, and by which their power is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from leasehold._model import Granted, RenewalResult, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold.store_api import Opener
from leasehold.stores._sql.dialect import Dialect
from leasehold_lab.history import Promise
from leasehold_lab.runtimes.network import InVirtualTime
from models.history import Outcome
from models.scenario import Assumptions
from models.system import Spoilt
from models.systems import SYSTEMS


class Broken:
    """A good store; what is not spoilt in a subclass goes on to it."""

    def __init__(self, store: Any, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class CountsFromTheReply(Broken):
    """Counts a lease from when its grant was received."""

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Claim, and forget when it was asked."""
        answer: Granted | Wait = await self._store.try_acquire(name, ticket, join=join, within=within)
        return answer._replace(since=self._runtime.now()) if isinstance(answer, Granted) else answer


class SleepsOn(Broken):
    """Does not retry, whatever the store replies."""

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep to the end."""
        await self._runtime.sleep(timeout)
        return None


class RenewsInWordsOnly(Broken):
    """Reports every ticket as renewed, without a request."""

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> list[RenewalResult]:
        """Say so."""
        return [RenewalResult.HELD for _ in tickets]


class GivesWhatIsTaken(Broken):
    """Lets in, now and then, who should wait."""

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Claim, and sometimes take a wait for a grant."""
        since = self._runtime.now()
        answer: Granted | Wait = await self._store.try_acquire(name, ticket, join=join, within=within)
        if isinstance(answer, Wait) and self._runtime.jitter() < 0.1:
            return Granted(self._runtime.wall_us(), since, ticket.terms.lease)
        return answer


def tells_one_term(store: Any, runtime: Runtime) -> Any:
    """Let an etcd store see one Raft term only, so that it believes any leader."""
    call = store._gateway.call

    async def told(path: str, body: Any, until: float, **options: Any) -> Any:
        answer = await call(path, body, until, **options)
        answer.setdefault("header", {})["raft_term"] = "1"
        return answer

    store._gateway.call = told
    return store


def locks_no_rows(store: Any, runtime: Runtime) -> Any:
    """Let a store of lease rows read what it should lock."""
    dialect: Dialect = store._dialect
    store._dialect = replace(dialect, lock_name=dialect.lock_name.replace("FOR UPDATE", ""))
    return store


@dataclass(frozen=True)
class Spoils(InVirtualTime):
    """Opens a store and spoils it."""

    opener: Opener
    how: Callable[[Any, Runtime], Any]

    def open(self, runtime: Runtime, namespace: str) -> Any:
        """Open the store for one client."""
        return self.how(self.opener.open(runtime, namespace), runtime)


def forgets_whose_it_is(text: bytes) -> bytes:
    """Let a release free the name for any holder."""
    before = b"\n  redis.call('ZREM', queue, '')"
    return text.replace(b"if holder ~= ticket then" + before, b"if not holder then" + before)


def wrapped(how: Callable[[Any, Runtime], Any]) -> Spoilt:
    """Spoil each store that is opened."""
    return Spoilt(wrap=lambda opener: Spoils(opener, how))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A lock that is broken: on which system, how, and which promises it breaks."""

    system: str
    spoilt: Spoilt
    breaks: Set[Promise]

    def shown_by(self, outcome: Outcome) -> bool:
        """Return whether a history shows it."""
        if outcome.scenario.assumptions is not Assumptions.KEPT:
            return False
        return any(violation.promise in self.breaks for violation in outcome.verdict.violations)


LOSES = {Promise.EXCLUSION, Promise.LOSS_NOTICE, Promise.TOKENS, Promise.FENCING}

MISTAKES: Mapping[str, Mistake] = {
    "no look at the ticket in release.lua": Mistake(
        "redis", Spoilt(forgets_whose_it_is), {Promise.EXCLUSION, Promise.LOSS_NOTICE}
    ),
    "lease counted from the reply": Mistake("redis", wrapped(CountsFromTheReply), {Promise.EXCLUSION}),
    **{
        f"no look after subscribing, {system}": Mistake(system, wrapped(SleepsOn), {Promise.WAKE_UP, Promise.FIFO})
        for system in SYSTEMS
        if system != "redlock"  # which may take so long by right
    },
    **{
        f"renews in words only, {system}": Mistake(system, wrapped(RenewsInWordsOnly), {Promise.EXCLUSION})
        for system in SYSTEMS
        if system != "zookeeper"  # where it is the session that lasts
    },
    **{
        f"rows are not locked, {system}": Mistake(system, wrapped(locks_no_rows), LOSES)
        for system in ("postgres", "mysql")
    },
    "believes a leader that was replaced, etcd": Mistake("etcd", wrapped(tells_one_term), {Promise.EXCLUSION}),
    **{f"gives what is taken, {system}": Mistake(system, wrapped(GivesWhatIsTaken), LOSES) for system in SYSTEMS},
}
"""By what is wrong."""
