"""Histories of the shipped Redis store on the model: every promise kept, seeds replay, and broken locks are found."""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from leasehold.model import Granted, Ticket, Wait
from leasehold.runtimes.base import Runtime
from leasehold.stores.base import Opener
from leasehold.testing.history import Promise
from leasehold.testing.models.faults import Kind
from leasehold.testing.models.party import GOOD, Assumptions, Outcome, Spoilt, run
from leasehold.testing.network import InVirtualTime

BUDGET = 45.0
"""Seconds of one core by day."""

PATIENCE = 3
"""How many times as long it may take where others use the cores as well."""

NIGHTLY = 20

REPLAYS = 200

MOST = 300
"""Seeds within which a broken lock must be found; the hardest is in about one of 27 histories."""


@dataclass
class Tally:
    """What many histories had in them."""

    histories: int = 0
    operations: int = 0
    lost: int = 0
    waited: int = 0
    fenced_off: int = 0
    messages: int = 0
    lost_messages: int = 0
    repeated: int = 0

    def add(self, outcome: Outcome) -> None:
        self.histories += 1
        self.operations += outcome.verdict.checked
        self.lost += sum(hold.told is not None for hold in outcome.history.holds)
        self.waited += sum(hold.queued is not None for hold in outcome.history.holds)
        self.fenced_off += sum(not write.accepted for write in outcome.history.writes)
        self.messages += outcome.counts.messages
        self.lost_messages += outcome.counts.lost_messages
        self.repeated += outcome.counts.repeated


def histories(budget: float) -> tuple[Tally, Counter[Kind]]:
    first, begin, until = secrets.randbits(40), time.process_time(), time.monotonic() + PATIENCE * budget
    tally, kinds = Tally(), Counter[Kind]()
    while time.process_time() - begin < budget and time.monotonic() < until:
        outcome = run(first + tally.histories)
        assert outcome.ok, outcome.report()
        tally.add(outcome)
        kinds.update(fault.kind for fault in outcome.faults)
    return tally, kinds


def check_histories(budget: float) -> None:
    tally, kinds = histories(budget)
    print(f"\n{tally}\n" + ", ".join(f"{kind.name.lower()} {count}" for kind, count in kinds.items()))
    assert kinds.keys() == set(Kind), "some kinds of fault never struck"
    assert min(tally.lost, tally.waited, tally.fenced_off, tally.lost_messages, tally.repeated) > 0, tally


@pytest.mark.timeout(300)
def test_every_promise_is_kept() -> None:
    check_histories(BUDGET)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_every_promise_is_kept_by_night() -> None:
    check_histories(BUDGET * NIGHTLY)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [REPLAYS, pytest.param(1000, marks=pytest.mark.nightly)])
def test_the_same_seed_gives_the_same_history(count: int) -> None:
    first = secrets.randbits(40)
    for seed in range(first, first + count // 2):
        assert run(seed).trace == run(seed).trace, f"seed {seed} does not replay"
    assert run(first).trace != run(first + 1).trace


# --- control: locks that are broken on purpose ---------------------------------------------------------------------


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


BROKEN = {
    "no look at the ticket in leave.lua": (Spoilt(forgets_whose_it_is), {Promise.EXCLUSION, Promise.TOLD}),
    "lease counted from the reply": (
        Spoilt(wrap=lambda opener: Spoils(opener, CountsFromTheReply)),
        {Promise.EXCLUSION},
    ),
    "no look after subscribing": (Spoilt(wrap=lambda opener: Spoils(opener, SleepsOn)), {Promise.WOKEN, Promise.TURNS}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_lock_is_found(which: str) -> None:
    spoilt, promises = BROKEN[which]
    first = random.Random(which).getrandbits(32)
    for seed in range(first, first + MOST):
        outcome = run(seed, spoilt)
        found = {violation.promise for violation in outcome.verdict.violations}
        if outcome.assumptions is Assumptions.KEPT and found & promises:
            print(f"\nfound by history {seed - first + 1}: {outcome.verdict.violations[0].what}")
            assert run(seed, GOOD).ok
            return
    pytest.fail(f"{which}: not found in {MOST} histories")
