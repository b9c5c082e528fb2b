"""The measures: each is one row of the result, run for each contestant that can take part."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from leasehold_lab.bench.contestant import Mode
from leasehold_lab.bench.places import StoreKind


class Trial(enum.StrEnum):
    """The kinds of trials: pairs of acquire and release, hand-overs, many idle holders, many idle waiters."""

    PAIRS = "pairs"
    HANDOVER = "handover"
    HELD = "held"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Measure:
    """One row.

    Attributes:
        key: for the command line and JSON.
        title: for people.
        trial: its kind.
        mode: how the contestants are called.
        concurrency: threads, tasks or processes that contend or alternate.
        floor: key of the contestant that does the least that the network protocol allows.
        work: seconds of work inside the lock.
        full: only in a full run.
        processes: whether the contenders are processes, not tasks of one process.
        place: the kind of store.
        also: keys of further floors, for comparison.
        names: number of lock names, divided among the threads or tasks.
        disturbed: whether one server fails during the trial. leasehold with all servers is measured, too, to compare.

    """

    key: str
    title: str
    trial: Trial
    mode: Mode
    concurrency: int
    floor: str
    work: float = 0.0
    full: bool = False
    processes: bool = False
    place: StoreKind = StoreKind.REDIS
    also: tuple[str, ...] = ()
    names: int = 1000
    disturbed: bool = False

    @property
    def idle(self) -> bool:
        """Whether it measures the cost of idle holders or waiters."""
        return self.trial in (Trial.HELD, Trial.WAITING)

    def is_called(self, word: str) -> bool:
        """Return whether ``word`` is the key, or a prefix of it that consists of whole parts."""
        return f"{self.key}-".startswith(f"{word}-")


FEW = 8
"""Names of each thread at the slower stores. The warm-up uses each of them, so no first use is measured."""


def _pairs(key: str, title: str, mode: Mode, concurrency: int) -> Measure:
    return Measure(key, title, Trial.PAIRS, mode, concurrency, "floor-scripts")


def _other_store(place: StoreKind, title: str, threads: int, floor: str, *also: str) -> Measure:
    inside = "1 thread" if threads == 1 else f"{threads} threads"
    title = f"{title}, acquire + release, {inside}"
    return Measure(
        f"{place}-{threads}",
        title,
        Trial.PAIRS,
        Mode.BLOCKING,
        threads,
        floor,
        place=place,
        also=also,
        names=FEW * threads,
    )


def _failing(mode: Mode, inside: str) -> Measure:
    return Measure(
        f"redlock-failing-{mode}",
        f"Redlock on five servers, one of which fails, acquire + release, {inside}",
        Trial.PAIRS,
        mode,
        1,
        "leasehold",
        place=StoreKind.REDLOCK,
        names=FEW,
        disturbed=True,
    )


def _processes(count: int, work_ms: int, *, full: bool = False) -> Measure:
    inside = f"{work_ms} ms inside" if work_ms else "no work inside"
    return Measure(
        f"handover-{count}" + (f"-{work_ms}ms" if work_ms else ""),
        f"hand-over on one name, {count} processes, {inside}",
        Trial.HANDOVER,
        Mode.BLOCKING,
        count,
        "floor-token",
        work=work_ms / 1000,
        full=full,
        processes=True,
    )


MEASURES: tuple[Measure, ...] = (
    _pairs("blocking-1", "acquire + release, 1 thread", Mode.BLOCKING, 1),
    _pairs("blocking-8", "acquire + release, 8 threads", Mode.BLOCKING, 8),
    _pairs("asyncio-1", "acquire + release, 1 asyncio task", Mode.ASYNCIO, 1),
    _pairs("asyncio-100", "acquire + release, 100 asyncio tasks", Mode.ASYNCIO, 100),
    _pairs("asyncio-1000", "acquire + release, 1,000 asyncio tasks", Mode.ASYNCIO, 1000),
    _processes(2, 0),
    _processes(10, 0),
    _processes(100, 0, full=True),
    _processes(10, 1),
    _processes(100, 1, full=True),
    Measure(
        "handover-asyncio-1000",
        "hand-over on one name, 1,000 asyncio tasks, no work inside",
        Trial.HANDOVER,
        Mode.ASYNCIO,
        1000,
        "floor-token",
    ),
    _other_store(StoreKind.REDLOCK, "Redlock on five servers", 1, "floor-majority"),
    _failing(Mode.BLOCKING, "1 thread"),
    _failing(Mode.ASYNCIO, "1 asyncio task"),
    _other_store(StoreKind.FILE, "SQLite file", 1, "floor-sqlite", "floor-synced"),
    _other_store(StoreKind.POSTGRES, "PostgreSQL", 1, "floor-postgresql", "floor-synced"),
    _other_store(StoreKind.POSTGRES, "PostgreSQL", 8, "floor-postgresql"),
    _other_store(StoreKind.MYSQL, "MySQL or MariaDB", 1, "floor-mysql", "floor-synced"),
    _other_store(StoreKind.MYSQL, "MySQL or MariaDB", 8, "floor-mysql"),
    _other_store(StoreKind.ZOOKEEPER, "ZooKeeper", 1, "floor-zookeeper", "floor-synced"),
    _other_store(StoreKind.ZOOKEEPER, "ZooKeeper", 8, "floor-zookeeper"),
    _other_store(StoreKind.ETCD, "etcd", 1, "floor-etcd", "floor-synced"),
    _other_store(StoreKind.ETCD, "etcd", 8, "floor-etcd"),
    Measure(
        "held-10000",
        "10,000 locks held by tasks and renewed",
        Trial.HELD,
        Mode.ASYNCIO,
        10_000,
        "floor-renewals",
        full=True,
    ),
    Measure(
        "held-blocking-10000",
        "10,000 locks held by a thread and renewed",
        Trial.HELD,
        Mode.BLOCKING,
        10_000,
        "",
        full=True,
    ),
    Measure(
        "waiting-10000", "10,000 asyncio tasks wait for one name", Trial.WAITING, Mode.ASYNCIO, 10_000, "", full=True
    ),
)

LONG_SECONDS = 12.0
"""The least length of a trial that holds or waits. Within it, each lock is renewed once."""
