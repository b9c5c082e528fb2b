"""The loop of each thread or task of a run: acquire a lock, work, write with its token, release.

It is written once for both flavors: in a thread, the client's runtime blocks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from leasehold._runtimes.base import Flavor
from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, StoreUnavailable, Unsupported
from leasehold.events import Event, Queued
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold_lab.history import Mode
from leasehold_lab.history.journal import Journal
from leasehold_lab.verify.clients.stall_detector import timed_callback
from leasehold_lab.verify.clients.transfers import transfer

LIMIT = 3
"""Permits of the semaphore."""

LONG = 0.05
"""The fraction of holds that last longer than a renewal interval."""

SLICES = 3
"""The most parts into which a hold is divided."""

PAUSE = 0.05
"""Seconds to wait after an error, so that no worker retries in a tight loop while the store is down."""


@dataclass(frozen=True, slots=True)
class Load:
    """How hard the clients work.

    Attributes:
        lease: seconds.
        names: how many locks of each kind.
        work: the longest time, in seconds, that a short hold is used.
        patience: the longest timeout of an acquire; None: one that waits has no timeout.
        expiry_delay: seconds by which the store may be late to expire a lease.
        long: the fraction of holds that last longer than a renewal interval.
        longest: the most leases that a long hold lasts.
        blocks: the fraction of holders that block their thread or loop, perhaps for longer than their lease.
        slices: the most parts of a short hold: after each, its holder checks the hold and writes.
        slow: a factor for how often holds are long or have a fixed lease. Such holds take most of the time, so a run
            with fewer of them has more holds.
        passed: the fraction of holds that one task or thread acquires and another one uses; see `transfers`.
        closes: leases after which each client is closed while its locks are in use, and replaced; 0 for never.

    """

    lease: float = 2.0
    names: int = 2
    work: float = 0.02
    patience: float | None = 4.0
    expiry_delay: float = 0.0
    long: float = LONG
    longest: float = 1.0
    blocks: float = 0.0
    slices: int = SLICES
    slow: float = 1.0
    passed: float = 0.0
    closes: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """One lock to acquire, and its mode."""

    lock: AsyncMutex
    mode: Mode = Mode.EXCLUSIVE
    permits: int = 1
    fair: bool = False
    fixed: bool = False  # the lease is not renewed, and often expires
    reenters: bool = False  # its holder may acquire it again


_acquiring: ContextVar[tuple[Journal, int] | None] = ContextVar("_acquiring", default=None)


def note_queueing(event: Event) -> None:
    """Record, as the client's observer, that the current acquire has a queue entry."""
    if isinstance(event, Queued) and (acquiring := _acquiring.get()) is not None:
        journal, n = acquiring
        journal.queued(n)


@contextmanager
def _current_acquire(journal: Journal, n: int) -> Generator[None]:
    reset = _acquiring.set((journal, n))
    try:
        yield
    finally:
        _acquiring.reset(reset)


class Worker:
    """One thread or task."""

    def __init__(
        self,
        client: AsyncClient,
        load: Load,
        journal: Journal,
        write: Callable[[str, str, int], bool],
        sleep: Callable[[float], Awaitable[None]],
        now: Callable[[], float],
        random_: random.Random,
        kinds: Collection[str] | None = None,
    ) -> None:
        self._load = load
        self._journal = journal
        self._write = write
        self._sleep = sleep
        self._now = now
        self._random = random_
        self._targets = targets(client, load, kinds)
        self._engine = client._engine
        self._flavor = client._engine.runtime.flavor

    @property
    def closed(self) -> bool:
        """Whether its client was closed."""
        return self._engine.closed

    async def run(self, until: Callable[[], bool]) -> None:
        """Work until ``until()`` is true or the client is closed."""
        while not until() and not self.closed:
            target = self._random.choice(self._targets)
            if not target.fixed or self._load.slow >= 1 or self._random.random() < self._load.slow:
                await self._once(target)

    async def _once(self, target: Target) -> None:
        if self._load.passed and self._random.random() < self._load.passed:
            await transfer(self, target)
            return
        got = list[AsyncHold]()
        n = self._record_request(target)
        await self._acquire(n, target, got)
        if got:
            await self._hold(n, target, got.pop())

    def _record_request(self, target: Target) -> int:
        """Record that an acquire begins; return its number."""
        return self._journal.asked(
            target.lock.name,
            target.mode,
            lease=self._load.lease + self._load.expiry_delay,
            permits=target.permits,
            limit=LIMIT if target.mode is Mode.PERMITS else 1,
            fair=target.fair,
            renews=not target.fixed,
        )

    async def _acquire(self, n: int, target: Target, got: list[AsyncHold]) -> None:
        """Acquire, record the outcome, and put the hold into ``got``; nothing else refers to it then."""
        share = self._random.choice((0.0, 1.0, 1.0, 1.0)) * self._random.uniform(0.05, 1.0)
        timeout = share and self._load.patience and share * self._load.patience
        try:
            with _current_acquire(self._journal, n):
                hold = await target.lock.acquire(timeout=timeout)
        except (StoreUnavailable, LeaseLost) as error:
            self._journal.failed(n, error)
            await self._sleep(PAUSE)
        except RuntimeError as error:
            if not self.closed:
                raise
            self._journal.failed(n, error)
        else:
            if hold is None:
                self._journal.refused(n)
            else:
                self._journal.granted(n, hold.token, hold._lease.since, hold._lease.deadline)
                self._listen(n, hold)
                got.append(hold)

    def _listen(self, n: int, hold: AsyncHold) -> None:
        """Record the loss of a hold, for as long as it is not released; another hold of its lease may last longer."""
        journal, lease = self._journal, hold._lease
        hold.on_lost(timed_callback(lambda _: journal.notified(n, lease.deadline)))

    async def _hold(self, n: int, target: Target, hold: AsyncHold) -> None:
        try:
            async with hold:
                await self._work(n, target, hold)
                self._journal.leaving(n)
                confirmed = await hold.release()
        except LeaseLost:
            return
        self._journal.freed(n, confirmed)

    async def _work(self, n: int, target: Target, hold: AsyncHold) -> None:
        length, slices = self._random.uniform(0, self._load.work), self._load.slices
        if target.fixed:  # most of these leases expire while another client waits
            length, slices = self._random.uniform(0.5, 1.5) * self._load.lease, SLICES
        elif self._random.random() < self._load.long * self._load.slow:
            length, slices = self._random.uniform(0, self._load.longest * self._load.lease), SLICES
        await self._use(n, target, hold, length, slices)

    async def _use(self, n: int, target: Target, hold: AsyncHold, length: float, slices: int) -> None:
        """Work for ``length`` seconds; after each slice, check the hold and write."""
        if self._load.blocks and self._random.random() < self._load.blocks:
            self._block(n)
        slices = self._random.randint(1, slices)
        for _ in range(slices):
            await self._sleep(length / slices)
            asked = self._now()
            hold.raise_if_lost()
            self._journal.checked(n, asked, hold._lease.deadline)
            if target.mode is Mode.EXCLUSIVE:
                self._write(self._journal.who, hold.name, hold.token)

    def _block(self, n: int) -> None:
        """Block the whole thread or event loop, as a call of a C library would, and record it."""
        length = self._random.uniform(0.5, 1.5) * self._load.lease
        time.sleep(length)
        whole = self._journal.who.partition(".")[0]
        self._journal.blocked(n, length, whole if self._flavor is Flavor.ASYNC else self._journal.who)


def targets(client: AsyncClient, load: Load, kinds: Collection[str] | None = None) -> list[Target]:
    """Return the targets of these kinds (or of all) that this store supports; one with more weight is repeated."""
    found: list[Target] = []
    for number in range(load.names):
        for kind, make in KINDS.items():
            if kinds is None or kind in kinds:
                try:
                    found += make(client, load, number)
                except Unsupported:
                    continue
    return found


def _plain(client: AsyncClient, load: Load, number: int) -> list[Target]:
    return [Target(client.lock(f"lock-{number}", lease=load.lease))] * 5


def _fixed(client: AsyncClient, load: Load, number: int) -> list[Target]:
    names = (f"fixed-{number}", f"fixed-{load.names + number}")  # twice as many, since each is held for about a lease
    return [Target(client.lock(name, lease=load.lease, renew=False), fixed=True) for name in names]


def _fair(client: AsyncClient, load: Load, number: int) -> list[Target]:
    return [Target(client.lock(f"fair-{number}", fair=True, lease=load.lease), fair=True)] * 3


def _sides(client: AsyncClient, load: Load, number: int) -> list[Target]:
    sides = client.rw_lock(f"read-write-{number}", lease=load.lease)
    reader = Target(sides.reader(), Mode.SHARED, reenters=True)
    return [reader] * 2 + [Target(sides.writer(), reenters=True)]


def _permits(client: AsyncClient, load: Load, number: int) -> list[Target]:
    semaphore = client.semaphore(f"permits-{number}", LIMIT, lease=load.lease)
    return [Target(semaphore.permits(count), Mode.PERMITS, count) for count in (1, 2)]


def _reentrant(client: AsyncClient, load: Load, number: int) -> list[Target]:
    lock = client.rlock(f"reentrant-{number}", lease=load.lease)
    return [Target(lock, reenters=True)] * 2 + [Target(client.multi_lock([lock], lease=load.lease))]


def _entries(client: AsyncClient, load: Load, number: int) -> list[Target]:
    """Return other ways to acquire the same read-write locks; an upgradeable reader coexists with readers."""
    sides = client.rw_lock(f"read-write-{number}", lease=load.lease)
    several = client.multi_lock([sides.writer()], lease=load.lease)
    return [Target(sides.upgradeable(), Mode.SHARED, reenters=True), Target(several)]


KINDS: Mapping[str, Callable[[AsyncClient, Load, int], list[Target]]] = {
    "lock": _plain,
    "fixed": _fixed,
    "fair": _fair,
    "read": _sides,
    "permits": _permits,
    "reentrant": _reentrant,
    "entries": _entries,
}
"""The makers of targets, by the first word of their names."""
