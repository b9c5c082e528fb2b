"""All leases that a watchdog watches, and when each is to be renewed and when it ends.

Theory of operation
-------------------
Most locks are held for milliseconds, and timers for them would cost more than the locks themselves. So a new lease is
*fresh*: it is in one dictionary, without a mutex and without a timer. The next time that the watchdog wakes, it gives
timers to the leases that are still there. It takes care to wake before the first of them is due.

Only the thread or task that runs the schedule adds to the timers. Any thread may remove.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import ENDED, HOLDING
from leasehold._engine.watchdog.timer_queue import TimerQueue
from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime

RENEWALS_PER_LEASE = 3
"""A lease is renewed after a third of its length, so that two renewals may fail before the deadline."""

RETRY = 0.05
"""First pause after a renewal without an answer, as a part of the lease; each further pause is half as long again."""


class LeaseTimers:
    """The leases of one client. `Watchdog` documents which thread may call what."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.fresh: dict[Lease, float] = {}  # without timers yet, and when each is to be renewed
        self.watched: dict[Lease, None] = {}  # includes those whose renewal is under way, which have no renewal timer
        self.renewals: TimerQueue[Lease] = TimerQueue()
        self.deadlines: TimerQueue[Lease] = TimerQueue()

    def leases(self) -> list[Lease]:
        """Return all leases."""
        return list(dict.fromkeys((*self.fresh, *self.watched)))  # one that gets its timers meanwhile is in both

    def drop(self, lease: Lease) -> None:
        """Remove a lease and its timers, if it has them."""
        self.watched.pop(lease, None)
        self.renewals.remove(lease)
        self.deadlines.remove(lease)

    def add_granted(self, lease: Lease) -> None:
        """Set the timers of a lease that was granted, or renewed by its holder."""
        if lease.state in ENDED or (lease not in self.fresh and lease not in self.watched):  # forgotten meanwhile
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
        for lease, when in list(self.fresh.items()):
            self.watched[lease] = None  # before it is removed there: a close must find it in one of both
            if self.fresh.pop(lease, None) is None:  # released just now
                self.watched.pop(lease, None)
                continue
            if lease.state in HOLDING:
                self.deadlines.put(lease, lease.deadline)
            if lease.renews or lease.state not in HOLDING:
                self.renewals.put(lease, when)

    def add_again(self) -> None:
        """Set all timers again, with renewals soon: a failed check has removed some of them."""
        now = self._runtime.now()
        for lease in list(self.watched):
            self.renewals.put(lease, now + lease.length * RETRY)
            if lease.state in HOLDING:
                self.deadlines.put(lease, lease.deadline)

    def add_renewed(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        """Set the timers of leases after a renewal that was sent at ``sent``."""
        for lease, result in zip(batch, results, strict=True):
            self._add_renewed(lease, result, sent)

    def _add_renewed(self, lease: Lease, result: RenewalResult, sent: float) -> None:
        length = lease.length
        if lease not in self.watched or lease.state in ENDED:
            self.drop(lease)
            return
        holding = lease.state in HOLDING
        if holding:
            self.deadlines.put(lease, lease.deadline)
        if holding and not lease.renews:
            return
        if result is RenewalResult.UNKNOWN:
            pause = length * RETRY * 1.5 ** min(max(lease.doubts, 1) - 1, 8)
            when = self._runtime.now() + min(pause, length / RENEWALS_PER_LEASE)
        else:
            when = sent + length / RENEWALS_PER_LEASE
        self.renewals.put(lease, when)
