"""Many histories, on several processors, and what they had in them.

Seeds are numbered on from the first, and each belongs to one system, in turn by its share; so the first seed and the
count say everything, whatever the number of processes.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from unittest.mock import patch

from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import TABLE, State, Transition
from leasehold._model import Granted
from models.history import Outcome, run
from models.report import failure
from models.scenario import Assumptions
from models.system import GOOD

P = TypeVar("P")
R = TypeVar("R")

SHARES: Mapping[str, int] = {
    "redis": 33,
    "postgres": 11,
    "postgres-session": 3,
    "mysql": 5,
    "mysql-session": 3,
    "etcd": 12,
    "zookeeper": 13,
    "cluster": 9,
    "sentinel": 8,
    "redlock": 3,
}
"""Histories of each system in a hundred. One of Redlock costs as much as eight of Redis, since it has five
nodes, and one of MySQL as much as three."""

CHUNK = 200
"""Histories that a process does before it tells of them."""

MOST_TOLD = 3
"""Failures of a chunk that are made small and told in full."""


@dataclass
class Tally:
    """What many histories had in them.

    Attributes:
        histories: by system.
        broken: how many of them had servers that do not keep their word.
        passed: in how many of them holds were passed on; ``dropped``: how many holds were dropped there.
        operations: as the checker counts them.
        faults: by system and kind.
        turns: how often a hold took each turn of its table.
        failures: what was broken, in full.
        failed: how many histories failed.
        seconds: of processors.

    """

    histories: Counter[str] = field(default_factory=Counter[str])
    broken: int = 0
    passed: int = 0
    dropped: int = 0
    operations: int = 0
    granted: int = 0
    waited: int = 0
    lost: int = 0
    fenced_off: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    turns: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])
    failed: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count a history."""
        system = outcome.scenario.system
        self.histories[system] += 1
        self.broken += outcome.scenario.assumptions is Assumptions.BROKEN
        self.passed += outcome.scenario.passed > 0
        self.operations += outcome.verdict.checked
        for hold in outcome.history.holds:
            self.granted += hold.granted is not None
            self.waited += hold.queued is not None
            self.lost += hold.notified is not None
            self.dropped += hold.dropped is not None
        self.fenced_off += outcome.verdict.fenced_off
        self.faults.update(f"{system} {fault.kind.name.lower()}" for fault in outcome.faults)
        if not outcome.ok:
            self.failed += 1
            if len(self.failures) < MOST_TOLD:
                self.failures.append(failure(outcome))

    def join(self, other: Tally) -> None:
        """Count those of another."""
        for name in ("histories", "faults", "turns"):
            getattr(self, name).update(getattr(other, name))
        for name in (
            "broken",
            "passed",
            "dropped",
            "operations",
            "granted",
            "waited",
            "lost",
            "fenced_off",
            "failed",
            "seconds",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures

    @property
    def count(self) -> int:
        """How many histories there were."""
        return self.histories.total()

    def unreached(self) -> list[str]:
        """Return the turns of a hold's table that no history took."""
        return [name for name in map(named, TABLE) if not self.turns[name]]

    def summary(self) -> str:
        """Say it in a few lines."""
        systems = ", ".join(f"{name} {count}" for name, count in self.histories.items())
        turns = ", ".join(f"{name} {self.turns[name]}" for name in map(named, TABLE))
        return "\n".join(
            [
                f"counted simulation: histories={self.count} operations={self.operations} failed={self.failed}",
                f"systems: {systems}; servers that break their word in {self.broken}",
                f"holds passed on in {self.passed}; {self.dropped} dropped",
                f"acquires: {self.granted} granted, {self.waited} waited, {self.lost} lost; "
                f"{self.fenced_off} writes fenced off",
                f"faults: {self.faults.total()} of {len(self.faults)} kinds by system",
                f"turns: {turns}; never taken: {', '.join(self.unreached()) or 'none'}",
                f"{self.seconds:.0f} s of processors, "
                f"{self.count / max(self.seconds, 0.001):.0f} histories a second of one",
            ]
        )


def named(move: tuple[State, Transition]) -> str:
    """Return a name for a turn of the table."""
    return f"{move[0].value}/{move[1].value}"


def plan(first: int, count: int, shares: Mapping[str, int] = SHARES) -> Iterator[tuple[str, int, int]]:
    """Yield systems, with a first seed and a count for each piece of work; the dear ones first."""
    total = sum(shares.values())
    begun, wanted = 0, 0
    pieces = list[tuple[str, int, int]]()
    for system, share in shares.items():
        wanted += share
        until = count * wanted // total
        for start in range(begun, until, CHUNK):
            pieces.append((system, first + start, min(CHUNK, until - start)))
        begun = until
    yield from reversed(pieces)


def run_piece(piece: tuple[str, int, int], *, passed: bool | None = None) -> Tally:
    """Play the histories of one piece of work; ``passed`` as for `draw`."""
    system, first, count = piece
    tally, begin = Tally(), time.process_time()
    with counting(tally.turns), _tidied_rarely():
        for seed in range(first, first + count):
            tally.add(run(seed, system, GOOD, passed=passed))
    tally.seconds = time.process_time() - begin
    return tally


def run_many(
    first: int, count: int, jobs: int, shares: Mapping[str, int] = SHARES, *, passed: bool | None = None
) -> Tally:
    """Play so many histories in so many processes; ``passed`` as for `draw`."""
    tally = Tally()
    for part in in_processes(partial(run_piece, passed=passed), plan(first, count, shares), jobs):
        tally.join(part)
    return tally


def in_processes(work: Callable[[P], R], pieces: Iterable[P], jobs: int) -> Iterator[R]:
    """Yield what ``work`` makes of each piece, in so many processes, in any order."""
    if jobs == 1:
        yield from map(work, pieces)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, pieces)


@contextmanager
def counting(turns: Counter[str]) -> Generator[None]:
    """Count the turns that holds of this process take."""
    plain, granted, begin_release = Lease._transition, Lease.granted, Lease.begin_release

    def count(before: State, turn: Transition, moved: bool) -> bool:
        if moved:
            turns[_NAMES[before, turn]] += 1
        return moved

    def counted(lease: Lease, turn: Transition, why: str = "") -> bool:
        return count(lease.state, turn, plain(lease, turn, why))

    def counted_grant(lease: Lease, grant: Granted) -> bool:
        return count(lease.state, Transition.GRANTED, granted(lease, grant))

    def counted_release(lease: Lease) -> bool:
        return count(lease.state, Transition.RELEASED, begin_release(lease))

    # The turns that every acquire and release takes are written out in the methods for them.
    with (
        patch.object(Lease, "_transition", counted),
        patch.object(Lease, "granted", counted_grant),
        patch.object(Lease, "begin_release", counted_release),
    ):
        yield


_NAMES = {move: named(move) for move in TABLE}


@contextmanager
def _tidied_rarely() -> Generator[None]:
    """Collect garbage seldom: a history leaves cycles behind, and is small."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def digests(piece: tuple[str, int, int]) -> list[tuple[str, int, str]]:
    """Return for each history of a piece its system, its seed, and a digest of all that happened."""
    system, first, count = piece
    found = list[tuple[str, int, str]]()
    for seed in range(first, first + count):
        found.append((system, seed, hashlib.sha256(run(seed, system).trace().encode()).hexdigest()))
    return found
