"""Locks that are broken on purpose: the simulation must find them, and show them in a few lines."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest

from leasehold.model import Granted, Ticket, Wait
from leasehold.runtimes.base import Runtime
from leasehold.stores.base import Opener
from leasehold.testing.history import Promise
from leasehold.testing.models.party import Outcome, run
from leasehold.testing.models.report import failure, picture
from leasehold.testing.models.scenario import Assumptions, Scenario
from leasehold.testing.models.shrinking import shrink
from leasehold.testing.models.system import GOOD, Spoilt
from leasehold.testing.network import InVirtualTime

MOST = 1500
"""Seeds within which a broken lock must be found; the hardest is in about one of a hundred histories."""


class Broken:
    """A good store; what is not spoilt in a subclass goes on to it."""

    def __init__(self, store: Any, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class CountsFromTheReply(Broken):
    async def claim(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        answer = await self._store.claim(name, ticket, join=join, within=within)
        return replace(answer, since=self._runtime.now()) if isinstance(answer, Granted) else answer


class SleepsOn(Broken):
    async def changed(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._runtime.sleep(timeout)
        return None


class GivesWhatIsTaken(Broken):
    """Lets in, now and then, who should wait."""

    async def claim(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        answer = await self._store.claim(name, ticket, join=join, within=within)
        if isinstance(answer, Wait) and self._runtime.jitter() < 0.1:
            return Granted(self._runtime.wall_us(), since, ticket.terms.lease)
        return answer


@dataclass(frozen=True)
class Spoils(InVirtualTime):
    opener: Opener
    how: Callable[[Any, Runtime], Any]

    def open(self, runtime: Runtime, namespace: str) -> Any:
        return self.how(self.opener.open(runtime, namespace), runtime)


def forgets_whose_it_is(text: bytes) -> bytes:
    """Let a leave let go whoever holds."""
    return text.replace(
        b"if holder ~= ticket then\n  local was_there = crowded()", b"if not holder then\n  local was_there = crowded()"
    )


def wrapped(how: Callable[[Any, Runtime], Any]) -> Spoilt:
    return Spoilt(wrap=lambda opener: Spoils(opener, how))


LOSES = {Promise.EXCLUSION, Promise.TOLD, Promise.TOKENS, Promise.FENCED}

BROKEN: dict[str, tuple[str, Spoilt, set[Promise]]] = {
    "no look at the ticket in leave.lua": ("redis", Spoilt(forgets_whose_it_is), {Promise.EXCLUSION, Promise.TOLD}),
    "lease counted from the reply": ("redis", wrapped(CountsFromTheReply), {Promise.EXCLUSION}),
    **{
        f"no look after subscribing, {system}": (system, wrapped(SleepsOn), {Promise.WOKEN, Promise.TURNS})
        for system in ("redis", "sentinel", "postgres", "etcd", "zookeeper")  # Redlock may take so long by right
    },
    **{
        f"gives what is taken, {system}": (system, wrapped(GivesWhatIsTaken), LOSES)
        for system in ("redis", "sentinel", "redlock", "postgres", "etcd", "zookeeper")
    },
}


def found(which: str) -> tuple[int, Outcome]:
    system, spoilt, promises = BROKEN[which]
    first = random.Random(which).getrandbits(32)
    for seed in range(first, first + MOST):
        outcome = run(seed, system, spoilt)
        broken = {violation.promise for violation in outcome.verdict.violations}
        if outcome.scenario.assumptions is Assumptions.KEPT and broken & promises:
            return seed - first + 1, outcome
    pytest.fail(f"{which}: not found in {MOST} histories")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_lock_is_found(which: str) -> None:
    count, outcome = found(which)
    print(f"\nfound by history {count}: {outcome.verdict.violations[0].what}")
    assert run(outcome.scenario.seed, BROKEN[which][0], GOOD).ok


@pytest.mark.timeout(300)
def test_a_history_that_fails_is_made_small() -> None:
    """Most get as small as the mistake allows; some are stuck, since to leave anything out changes all that follows."""
    which = "no look at the ticket in leave.lua"
    system, spoilt, promises = BROKEN[which]
    outcomes = (run(seed, system, spoilt) for seed in range(2000))
    fail = (it for it in outcomes if {violation.promise for violation in it.verdict.violations} & promises)
    sizes = list[tuple[int, int, int]]()
    for outcome in islice(fail, 7):
        small = shrink(outcome, spoilt)
        assert small.broken == outcome.broken
        assert _size(small.scenario) <= _size(outcome.scenario)
        text = failure(outcome, spoilt)
        assert picture(small) in text
        assert f"show --system redis {outcome.scenario.seed}" in text
        sizes.append(_size(small.scenario))
    assert len(sizes) == 7
    assert min(sizes) <= (2, 4, 1)
    assert sum(operations <= 6 for _, operations, _ in sizes) >= 4


def _size(scenario: Scenario) -> tuple[int, int, int]:
    return len(scenario.actors), scenario.operations, len(scenario.strikes)
