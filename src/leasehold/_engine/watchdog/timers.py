"""All leases that a watchdog watches, and when each is to be renewed and when it ends.

Theory of operation
-------------------
Most locks are held for milliseconds, and timers for them would cost more than the locks themselves. So a new lease is
*fresh*: it is in one dictionary, without a mutex and without a timer. The next time that the watchdog wakes, it gives
timers to the leases that are still there. It takes care to wake before the first of them is due.

Only the thread or task that runs the schedule adds to the timers. Any thread may remove.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import ENDED, HOLDING, State
from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime

T = TypeVar("T", bound=Hashable)

RENEWALS_PER_LEASE = 3  # renewed after a third of its length, a lease outlives two failed renewals
RETRY = 0.05  # pause after a renewal without an answer, as a part of the lease; later ones are half as long again


def renewable_until(lease: Lease) -> float:
    """Return the boot-time clock reading from which the ``max_hold`` of a lease permits no renewal."""
    if lease.max_hold is None:
        return float("inf")
    extra = lease.ticket.terms.lease - lease.length  # requested beyond what a store with sessions granted
    return lease.since + lease.max_hold + extra


class TimerQueue(Generic[T]):
    """At most one timer for each item. Entries of moved and removed items stay in the heap until they come to its top.

    `put` costs O(log n), and the heap has at most about twice as many entries as there are items. Only the thread that
    runs the schedule may call `put`, `next` and `due`. Any thread may call `remove` at any time: it is atomic.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._when: dict[T, float] = {}
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._when)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._when))

    def __contains__(self, item: T) -> bool:
        return item in self._when

    def put(self, item: T, when: float) -> None:
        """Set the timer of ``item``, or move it."""
        self._when[item] = when
        heapq.heappush(self._heap, (when, next(self._count), item))
        if len(self._heap) > 2 * len(self._when) + 64:
            self._heap = [entry for entry in self._heap if self._when.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def put_earlier(self, item: T, when: float) -> None:
        """Set the timer of ``item``, or move it if it is later."""
        self.put(item, min(when, self._when.get(item, when)))

    def remove(self, item: T) -> None:
        """Remove the timer of ``item``, if it has one."""
        self._when.pop(item, None)

    def due(self, now: float) -> list[T]:
        """Remove and return all items whose time is not after ``now``, earliest first."""
        items: list[T] = []
        while (when := self.next()) is not None and when <= now:
            item = heapq.heappop(self._heap)[2]
            if self._when.pop(item, None) is not None:  # another thread may have removed it just now
                items.append(item)
        return items

    def next(self) -> float | None:
        """Return the earliest time, or None."""
        while self._heap:
            when, _, item = self._heap[0]
            if self._when.get(item) == when:
                return when
            heapq.heappop(self._heap)
        return None


class LeaseTimers:
    """The leases of one client. `Watchdog` documents which thread may call what."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.fresh: dict[Lease, float] = {}  # without timers yet, and when each is to be renewed
        self.watched: dict[Lease, None] = {}  # includes those whose renewal is under way, which have no renewal timer
        self.held: dict[str, Lease] = {}  # by name; of several holders the last
        self.renewals: TimerQueue[Lease] = TimerQueue()
        self.deadlines: TimerQueue[Lease] = TimerQueue()

    def leases(self) -> list[Lease]:
        """Return all leases."""
        return list(dict.fromkeys((*self.fresh, *self.watched)))  # one that gets its timers meanwhile is in both

    def waiters_for(self, names: set[str]) -> list[Lease]:
        """Return those that wait for these names, which expired here: no release notifies them.

        A store need not let a waiter watch a holder of its own client; a renewal makes it check again.
        """
        return [each for each in self.leases() if each.state is State.QUEUED and each.name in names] if names else []

    def drop(self, lease: Lease) -> None:
        """Remove a lease and its timers, if it has them."""
        self.watched.pop(lease, None)
        self.renewals.remove(lease)
        self.deadlines.remove(lease)
        self.end_holding(lease)

    def end_holding(self, lease: Lease) -> None:
        """Remove a lease from those that hold, unless another was granted for its name meanwhile."""
        if self.held.get(lease.name) is lease:
            last = self.held.pop(lease.name, lease)
            if last is not lease:  # granted just now, by another thread
                self.held.setdefault(lease.name, last)

    def add_granted(self, lease: Lease) -> None:
        """Set the timers of a lease that was granted, or renewed by its holder."""
        if lease.state in ENDED or (lease not in self.fresh and lease not in self.watched):  # forgotten meanwhile
            self.end_holding(lease)
            return
        self.watched[lease] = None
        self.fresh.pop(lease, None)
        if not lease.renews:
            self.renewals.remove(lease)
        elif lease.length < lease.ticket.terms.lease or lease not in self.renewals:
            self.renewals.put(lease, self._runtime.now() + lease.length / RENEWALS_PER_LEASE)
        self.deadlines.put(lease, lease.deadline)

    def add_fresh(self) -> None:
        """Set the timers of the leases that are still fresh. Most were released before."""
        # Not `list(self.fresh.items())`: its tuples can start the collector, whose finalizers let another thread run.
        for lease, when in list(self.fresh.copy().items()):
            self.watched[lease] = None  # before it is removed there: a close must find it in one of both
            if self.fresh.pop(lease, None) is None:  # released just now
                self.watched.pop(lease, None)
                continue
            if lease.state in HOLDING:
                self.deadlines.put(lease, lease.deadline)
            if lease.renews or lease.state not in HOLDING:
                self.renewals.put(lease, when)

    def add_again(self) -> None:
        """Set all timers again, with renewals soon: a failed check has removed some of them.

        None is moved to a later time: the check may fail again and again, or one event loop soon follow the other.
        """
        now = self._runtime.now()
        for lease in list(self.watched):
            self.renewals.put_earlier(lease, now + lease.length * RETRY)
            if lease.state in HOLDING:
                self.deadlines.put(lease, lease.deadline)

    def add_renewed(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        """Set the timers of leases after a renewal that was sent at ``sent``."""
        for lease, result in zip(batch, results, strict=True):
            if lease not in self.watched or lease.state in ENDED:
                self.drop(lease)
                continue
            if lease.state in HOLDING:
                self.deadlines.put(lease, lease.deadline)
                if not lease.renews:
                    continue
            if result is RenewalResult.UNKNOWN:
                pause = lease.length * RETRY * 1.5 ** min(max(lease.doubts, 1) - 1, 8)
                when = self._runtime.now() + min(pause, lease.length / RENEWALS_PER_LEASE)
            else:
                when = sent + lease.length / RENEWALS_PER_LEASE
            self.renewals.put(lease, when)
