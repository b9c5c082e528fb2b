"""The watchdog: one schedule that keeps all tickets of a client alive, in batches, and ends those it cannot.

Theory of operation
-------------------
Every ticket is registered *before* its claim is sent and taken off *before* its leave is sent, so there is no moment
at which a ticket is on the server and nobody looks after it. A renewal that a leave overtakes finds nothing to renew.

A ticket is renewed at a third of its lease, waiting or holding. A renewal that fails is tried again, at growing
intervals, until the hold's deadline; the deadline itself is an entry in the schedule and needs no network. Therefore
the watchdog never does I/O on its own thread: it hands each batch to a job of its own, and a server that does not
answer cannot keep it from telling a holder in time. Nor can a holder that takes its time when it is called back: then
another thread takes over the schedule (`engine.backup_thread`). A job that hears of a loss makes its calls when all
else is done.

Who is told what, if something dies here: the client dies, and the store ends the leases; a batch dies without an
answer, and its holds are in doubt and tried again; the watchdog's thread is gone (a fork), and the next ticket
starts a new one; nobody can reach a hold any more, and the watchdog gives the lease up: first it tells the holder that
the lease is lost, in case somebody listens, then it leaves.

Most locks are held for milliseconds, and a schedule for them would cost more than they do. So a ticket is *fresh* at
first: in one dictionary, without a lock and without a place in any schedule, until the watchdog wakes the next time; it
sees to it that this is before the ticket is due. The order of steps is what makes that safe: a ticket is put down
before it is looked until when the watchdog sleeps, and the watchdog says until when before it looks for tickets.

A leave whose outcome is not known is on the schedule, too, to be repeated in the background (`engine.pending`).

The schedule belongs to one thread or task at a time. All others put into its inbox what they want done, and wake it.
They take no mutex for that: a signal handler may interrupt any of them, at any line, and call in again. One mutex is
left, to start or to end the thread; no renewal, deadline or call of a holder needs it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from leasehold._engine.lease import ENDED, HOLDING, Later, Lease, State
from leasehold._engine.watchdog.backup_thread import BackupThread
from leasehold._engine.watchdog.pending_releases import PendingRelease, ReleaseRetrier
from leasehold._engine.watchdog.timer_queue import TimerQueue
from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Store

RENEWALS_PER_LEASE = 3
"""A ticket is renewed when this part of its lease has passed, so that two renewals may fail before the deadline."""

RETRY = 0.05
"""First pause after a renewal without an answer, as a part of the lease; each further pause is half as long again."""

COALESCE = 1 / 30
"""Renewals due within this part of the shortest lease go in one batch."""

BATCH = 500
"""Tickets in one call of `Store.renew`."""

NEVER = float("inf")

LINGER = 30.0
"""Seconds after which a watchdog with nothing to do ends its thread; the next ticket starts another."""

log = logging.getLogger("leasehold")


class Watchdog:
    """Renews, tells, and pays debts, for one client."""

    def __init__(self, runtime: Runtime, store: Store, patience: float) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = patience
        self._retrier = ReleaseRetrier(runtime, store, patience, self._owe_at)
        self._reset()

    def _reset(self) -> None:
        self._starting = self._runtime.recursive_mutex()  # held to start the job, or to end it, and for nothing else
        self._wake = self._runtime.signal()
        self._inbox: deque[Callable[[], None]] = deque()  # what others want done with the schedule
        self._fresh: dict[Lease, float] = {}  # not looked at yet, and when each is to be renewed
        self._watched: dict[Lease, None] = {}  # also those whose renewal is under way, which no agenda has
        self._renewals: TimerQueue[Lease] = TimerQueue()  # only who has the schedule puts into these; anybody removes
        self._deadlines: TimerQueue[Lease] = TimerQueue()
        self._pending: TimerQueue[PendingRelease] = TimerQueue()
        self._alongside: list[Job] = []  # what pays debts, or still calls a holder back; some of them ended
        self._renewing: list[Job] = []  # renewals under way; some of them ended
        self._news: deque[tuple[RenewalResult, frozenset[str] | None]] = deque()
        self._sleeps_until = 0.0
        self._looks_by = NEVER  # when it is to look at those who are fresh, even if those who asked for it are gone
        self._job: Job | None = None
        self._in_charge: object = None  # stands for the run that has the schedule now
        self._backup_thread = BackupThread(self._runtime, self._take_over)
        self._closed = False

    # --- what the engine tells it ------------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        """Look after a ticket from now on; called before its claim is sent."""
        when = self._fresh[lease] = self._runtime.now() + lease.length / RENEWALS_PER_LEASE
        job = self._job
        if job is None or when < self._sleeps_until or not job.alive():
            self._ask(when, partial(self._see_by, when))

    def granted(self, lease: Lease) -> None:
        """Take note that the ticket holds now: if it is not to be renewed, only its deadline matters."""
        due = self._fresh.get(lease)
        if due is not None and lease.length >= lease.ticket.terms.lease:
            if lease.deadline < due:  # else it is looked at before, and says itself, then, that it holds
                self._ask(lease.deadline, partial(self._see_by, lease.deadline))
            return
        soonest = min(lease.deadline, self._runtime.now() + lease.length / RENEWALS_PER_LEASE)
        self._ask(soonest, partial(self._put_granted, lease))

    def forget(self, lease: Lease) -> None:
        """Look after a ticket no longer; called before its leave is sent."""
        if self._fresh.pop(lease, None) is None:
            self._drop(lease)

    def retry_release(self, name: str, ticket: Ticket) -> None:
        """Leave in the background, until the store confirms or the lease has ended by itself."""
        now = self._runtime.now()
        self._owe_at(PendingRelease(name, ticket, now + ticket.terms.lease), now)

    def on_report(self, result: RenewalResult, tickets: Collection[str] | None) -> None:
        """Take a store's report of what became of tickets, or of all, from any thread; see `ReportsLosses`."""
        self._news.append((result, None if tickets is None else frozenset(tickets)))
        self._wake.set()

    def expect_calls(self) -> None:
        """Make ready to call holders back, who may take their time."""
        if not self._backup_thread.is_prepared():
            self._ask(0.0, self._backup_thread.prepare)

    def leases(self) -> list[Lease]:
        """Return all that it looks after."""
        return list(dict.fromkeys((*self._fresh, *self._watched)))  # one that is taken in meanwhile is in both

    async def close(self, within: float) -> None:
        """End the thread or task, and try once more to leave what is owed; in about ``within`` seconds."""
        until = self._runtime.now() + within
        self._closed = True
        job, self._job = self._job, None
        self._wake.set()
        await self._backup_thread.close(within)
        if job is not None:
            await job.join(max(0.0, until - self._runtime.now()))
        await self._end(self._alongside, until)  # else the store would be closed while one asks, and a lease last on
        await self._end(self._renewing, 0.0)  # nobody needs the answers any more; a thread finds the store closed
        self._alongside, self._renewing = [], []
        self._take_in()
        for pending_release in list(self._pending):
            if self._runtime.now() < until:
                await self._retrier.pay([pending_release])

    async def _end(self, jobs: Sequence[Job], until: float) -> None:
        """Wait for jobs until then; those that have not ended are asked to, all at once."""
        for job in jobs:
            if (left := until - self._runtime.now()) > 0:
                await job.join(left)
        for job in jobs:
            job.cancel()
        for job in jobs:
            await job.join(0.0)

    def after_fork(self) -> None:
        """Forget, in a forked child, all that belongs to the parent."""
        belongs = self.leases()
        self._reset()
        for lease in belongs:
            lease.after_fork()

    def _drop(self, lease: Lease) -> None:
        self._watched.pop(lease, None)
        self._renewals.remove(lease)
        self._deadlines.remove(lease)

    def _keep(self, job: Job) -> None:
        """Keep a job that `close` waits for."""
        self._alongside = _with(self._alongside, job)

    # --- the schedule ------------------------------------------------------------------------------------------

    def _ask(self, when: float, what: Callable[[], None]) -> None:
        """Have whoever has the schedule do something with it, no later than at a reading of the clock."""
        self._inbox.append(what)
        if self._closed:
            return
        job = self._job
        if job is None or not job.alive():
            self._start()
        elif when < self._sleeps_until:
            self._wake.set()

    def _start(self) -> None:
        if self._starting._is_owned():  # by a frame that this signal handler interrupted: it goes on to start it
            return
        with self._starting:
            if self._in_charge is None and (self._job is None or not self._job.alive()):
                self._sleeps_until = 0.0
                self._job = self._runtime.spawn(self._run, "leasehold-watchdog")
            else:
                self._wake.set()

    def _see_by(self, when: float) -> None:
        """Look at those who are fresh by then."""
        self._looks_by = min(self._looks_by, when)

    def _put_granted(self, lease: Lease) -> None:
        if lease.state in ENDED or (lease not in self._fresh and lease not in self._watched):  # forgotten meanwhile
            return
        self._watched[lease] = None
        self._fresh.pop(lease, None)
        if not lease.renews:
            self._renewals.remove(lease)
        elif lease.length < lease.ticket.terms.lease or lease not in self._renewals:
            self._renewals.put(lease, self._runtime.now() + lease.length / RENEWALS_PER_LEASE)
        self._deadlines.put(lease, lease.deadline)

    def _owe_at(self, pending_release: PendingRelease, when: float) -> None:
        self._ask(when, partial(self._pending.put, pending_release, when))

    def _take_in(self) -> None:
        """Do what others asked for, and put those who are fresh on the agendas. Most were released before."""
        while self._inbox:
            self._inbox.popleft()()
        for lease, when in list(self._fresh.items()):
            self._watched[lease] = None  # before it is taken out there: who closes the client finds it in one of both
            if self._fresh.pop(lease, None) is None:  # released just now
                self._watched.pop(lease, None)
                continue
            if lease.state in HOLDING:
                self._deadlines.put(lease, lease.deadline)
            if lease.renews or lease.state not in HOLDING:
                self._renewals.put(lease, when)

    async def _run(self) -> None:
        mine = self._in_charge = object()
        try:
            while not self._closed and self._in_charge is mine:
                if not self._step():
                    return
                if not await self._sleep() and self._ends(mine):
                    return
        finally:
            if self._in_charge is mine:
                self._in_charge = None

    def _ends(self, mine: object) -> bool:
        """End the job, unless something came in just now: who comes later sees that there is none, and starts one."""
        with self._starting:
            job, self._job, self._in_charge = self._job, None, None
            if not self._fresh and not self._inbox:
                return True
            self._job, self._in_charge = job, mine
            return False

    async def _sleep(self) -> bool:
        """Sleep until something is due, or somebody asks; return whether there is anything left to do."""
        self._wake.clear()
        if self._closed:  # looked at after that: who closes says so before it wakes us
            return True
        self._take_in()
        now = self._runtime.now()
        times = [when for timers in self._timers() if (when := timers.next()) is not None]
        if self._looks_by <= now:  # it has just looked
            self._looks_by = NEVER
        if self._looks_by < NEVER:
            times.append(self._looks_by)
        self._sleeps_until = now if self._news else min(times, default=now + LINGER)
        if self._fresh or self._inbox:  # came in between: it may not have seen until when we sleep
            self._wake.set()
        await self._wake.wait(max(0.0, self._sleeps_until - now))
        self._sleeps_until = 0.0
        return bool(times or self._looks_by < NEVER or any(self._timers()) or self._news or self._inbox)

    async def _take_over(self, job: Job) -> None:
        """Go on with the schedule, while whoever had it calls holders back, and takes its time."""
        before, self._job = self._job, job
        if before is not None:
            self._keep(before)
        await self._run()

    def _timers(self) -> tuple[TimerQueue[Lease], TimerQueue[Lease], TimerQueue[PendingRelease]]:
        return self._renewals, self._deadlines, self._pending

    def _step(self) -> bool:
        """Look at all; return False if another has the schedule by then."""
        later = self._backup_thread.later()
        try:
            self._look_at_all(later)
        except Exception:
            log.exception("the watchdog stumbled; it goes on")
            self._put_back()
        return not later or self._backup_thread.call(later)

    def _put_back(self) -> None:
        """Put all down again, and renew them soon: whom it had taken out to look at stands on no agenda."""
        now = self._runtime.now()
        for lease in list(self._watched):
            self._renewals.put(lease, now + lease.length * RETRY)
            if lease.state in HOLDING:
                self._deadlines.put(lease, lease.deadline)

    def _look_at_all(self, later: Later | None) -> None:
        self._take_in()
        self._take_news(later)
        now = self._runtime.now()
        ended = self._deadlines.due(now)
        due = self._renewals.due(now)
        if due:
            due += self._renewals.due(now + COALESCE * min(lease.length for lease in due))
        pending = self._pending.due(now)
        if pending and (paying := self._retrier.release_in_background(pending)) is not None:
            self._keep(paying)
        lost: set[str] = set()
        for lease in ended:
            if lease.check_deadline(later):  # it was moved since it was put down
                self._deadlines.put(lease, lease.deadline)
            else:
                lost.add(lease.name)
                lease.settle(later)
                self.forget(lease)
        due += self._next_waiters(lost)
        batch = [lease for lease in dict.fromkeys(due) if self._is_to_renew(lease, now, later)]
        for start in range(0, len(batch), BATCH):
            self._renew_in_background(batch[start : start + BATCH])

    def _take_news(self, later: Later | None) -> None:
        """Tell holders what the store has heard; whoever is in doubt is renewed now."""
        while self._news:
            result, tickets = self._news.popleft()
            for lease in self.leases():
                if lease.state not in HOLDING or (tickets is not None and lease.ticket.id not in tickets):
                    continue
                if result is RenewalResult.GONE:
                    lease.gone("the store ended it (its session has expired)", later)
                    self.forget(lease)
                else:  # in doubt: there is no third word
                    lease.no_answer()
                    if lease.renews:
                        self._renewals.put(lease, self._runtime.now())

    def _next_waiters(self, lost: set[str]) -> list[Lease]:
        """Return who waits for these names: their holds ended by themselves, and no release tells anyone.

        A store need not let each waiter watch a holder of its own client; a renewal makes it look again.
        """
        if not lost:
            return []
        return [lease for lease in self.leases() if lease.state is State.QUEUED and lease.name in lost]

    def _is_to_renew(self, lease: Lease, now: float, later: Later | None) -> bool:
        if lease.state is not State.QUEUED and not lease.check_deadline(later):
            lease.settle(later)
            self.forget(lease)
            return False
        if not lease.is_kept():
            self._give_up(lease, later)
            return False
        if lease.state is State.QUEUED:
            return True
        return lease.renews and (lease.max_hold is None or now < lease.since + lease.max_hold)

    def _give_up(self, lease: Lease, later: Later | None) -> None:
        """Leave for those who cannot any more; whoever listens is told of a loss before anybody else can enter."""
        if lease.state is State.QUEUED:
            ended = lease.leaves()
        else:
            ended = lease.gone("it was never released, and nobody could any more: its hold was dropped", later)
        self.forget(lease)
        if ended:  # else another has ended it just now, and leaves
            self.retry_release(lease.name, lease.ticket)
            log.warning("lock %r was never released: its holder is gone; released in its name", lease.name)

    # --- renewing ----------------------------------------------------------------------------------------------

    def _renew_in_background(self, batch: Sequence[Lease]) -> None:
        try:
            job = self._runtime.spawn(lambda: self._renew(batch), "leasehold-renew")
        except RuntimeError:  # no thread to be had: as if the store had not answered
            self._answered(batch, [RenewalResult.UNKNOWN] * len(batch), self._runtime.now())
        else:
            self._renewing = _with(self._renewing, job)

    async def _renew(self, batch: Sequence[Lease]) -> None:
        sent = self._runtime.now()
        shortest = min(lease.length for lease in batch)
        within = min(self._patience, shortest / RENEWALS_PER_LEASE)
        try:
            results = await self._store.renew([(lease.name, lease.ticket) for lease in batch], within=within)
        except StoreUnavailable:
            results = [RenewalResult.UNKNOWN] * len(batch)
        except Exception:
            log.exception("a batch of renewals failed")
            results = [RenewalResult.UNKNOWN] * len(batch)
        self._answered(batch, results, sent)

    def _answered(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        later = self._backup_thread.later()
        try:
            for lease, result in zip(batch, results, strict=True):
                if lease.state in HOLDING:
                    self._holder_answered(lease, result, sent, later)
            self._ask(0.0, partial(self._plan_all, batch, results, sent))
        finally:
            for call in later or ():
                call()

    def _holder_answered(self, lease: Lease, result: RenewalResult, sent: float, later: Later | None) -> None:
        if result is RenewalResult.HELD:
            lease.renewed(sent)
        elif result is RenewalResult.UNKNOWN:
            lease.no_answer()
        elif result is RenewalResult.GONE and lease.confirmed <= sent:
            # QUEUED was said before the grant; and a claim may have overtaken a question that was asked before it.
            lease.gone("the store no longer knows it (expired, broken or evicted)", later)

    def _plan_all(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        for lease, result in zip(batch, results, strict=True):
            self._plan(lease, result, sent)

    def _plan(self, lease: Lease, result: RenewalResult, sent: float) -> None:
        """Put a lease down for what comes next."""
        length = lease.length
        if lease not in self._watched or lease.state in ENDED:
            self._drop(lease)
            return
        holding = lease.state in HOLDING
        if holding:
            self._deadlines.put(lease, lease.deadline)
        if holding and not lease.renews:
            return
        if result is RenewalResult.UNKNOWN:
            pause = length * RETRY * 1.5 ** min(max(lease.doubts, 1) - 1, 8)
            when = self._runtime.now() + min(pause, length / RENEWALS_PER_LEASE)
        else:
            when = sent + length / RENEWALS_PER_LEASE
        self._renewals.put(lease, when)


def _with(jobs: Sequence[Job], job: Job) -> list[Job]:
    """Return those of the jobs that have not ended, and one more."""
    return [*(other for other in jobs if other.alive()), job]
