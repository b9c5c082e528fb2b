"""The watchdog: renews all leases of a client in batches, ends those that expired, and notifies their holders.

Theory of operation
-------------------
A ticket is registered *before* its request is sent and removed *before* its release is sent. So a ticket that the store
may know is always watched. A renewal that a release overtakes finds nothing to renew.

A ticket is renewed after a third of its lease, whether it waits or holds. A renewal that fails is retried, at growing
intervals, until the deadline. The deadline itself is a timer and needs no network.

The watchdog never does I/O on its own thread: each batch of renewals is a job of its own (`background`). So a server
that does not answer cannot delay the loss notice of a holder. A slow `on_lost` callback cannot delay the others either:
another thread takes over the schedule (`backup_thread`). A job that discovers a loss calls back when it has done all
else. A release without an answer is a timer, too, and is repeated in the background.

What happens when something dies:

* the client: the store ends the leases;
* a job that renews: its leases are in doubt, and are renewed again;
* the watchdog's thread (after a fork) or its event loop: the next ticket, or use in a loop, starts a new job;
* every reference to a hold: the watchdog marks the lease as lost, calls back, and then releases it.

A new lease has no timers yet (`timers`). The order of steps makes that safe. An acquire adds its lease first and
reads afterwards until when the watchdog sleeps. The watchdog sets that time first and looks for new leases afterwards.

One thread or task at a time runs the schedule. All others put actions into its inbox and wake it. They take no mutex: a
signal handler may interrupt any of them, at any line, and call again. One mutex is left. It is held for a moment while
the thread, or a run of the schedule, starts or ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from leasehold._engine.lease import Later, Lease
from leasehold._engine.lease_states import HOLDING, State
from leasehold._engine.retry import Contact
from leasehold._engine.watchdog.background import PendingRelease, ReleaseRetrier, Renewer, running
from leasehold._engine.watchdog.backup_thread import BackupThread
from leasehold._engine.watchdog.timers import RENEWALS_PER_LEASE, LeaseTimers, TimerQueue, renewable_until
from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import ENDINGS, Job, Runtime
from leasehold._runtimes.log import log
from leasehold.store_api import Store

COALESCE = 1 / 30  # renewals that are due within this part of the shortest lease go into one batch
NEVER = float("inf")
AFTER_AN_ERROR = 0.1  # seconds until it continues after a mistake
LINGER = 30.0  # seconds after which a watchdog with nothing to do ends its thread; the next ticket starts another


class Watchdog:
    """Renews, ends and notifies, for one client."""

    def __init__(self, runtime: Runtime, store: Store, patience: float, contact: Contact) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = patience
        self._contact = contact
        self.engine: object = None  # kept as long as a thread or task has leases to watch: see its theory of operation
        self._reset()

    def _reset(self) -> None:
        self._starting = self._runtime.recursive_mutex()  # held only while the job or its run starts or ends
        self._wake = self._runtime.signal()
        self._inbox: deque[Callable[[], None]] = deque()  # actions of other threads on the schedule
        self._timers = LeaseTimers(self._runtime)
        self._pending: TimerQueue[PendingRelease] = TimerQueue()
        self._background: list[Job] = []  # jobs that repeat releases, or still call back; some of them ended
        self._reports: deque[tuple[RenewalResult, frozenset[str] | None]] = deque()
        self._sleeps_until, self._wake_at = 0.0, NEVER  # it must check the fresh leases then, even if all were released
        self._job: Job | None = None
        self._current_run: object = None  # identifies the run that has the schedule now
        self._backup_thread = BackupThread(self._runtime, self._take_over)
        facts = self._runtime, self._store, self._patience, self._contact
        self._renewer = Renewer(*facts, self._schedule_renewed, self._backup_thread.later)
        self._retrier = ReleaseRetrier(self._runtime, self._store, self._patience, self._schedule_release)
        self._closed = False

    # --- for the engine ----------------------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        """Watch a lease from now on; called before its request is sent."""
        when = self._timers.fresh[lease] = self._runtime.now() + lease.length / RENEWALS_PER_LEASE
        job = self._job
        if job is None or when < self._sleeps_until or not job.alive():
            self._submit(when, partial(self._wake_by, when))

    def granted(self, lease: Lease) -> None:
        """Set the timers of a lease that is held now. A fixed lease needs only its deadline."""
        self._timers.held[lease.name] = lease
        due = self._timers.fresh.get(lease)
        if due is not None and lease.length >= lease.ticket.terms.lease:
            if lease.deadline < due:  # else it is checked before, and gets both timers then
                self._submit(lease.deadline, partial(self._wake_by, lease.deadline))
            return
        soonest = min(lease.deadline, self._runtime.now() + lease.length / RENEWALS_PER_LEASE)
        self._submit(soonest, partial(self._timers.add_granted, lease))

    def forget(self, lease: Lease) -> None:
        """Stop watching a lease; called before its release is sent."""
        if self._timers.fresh.pop(lease, None) is None:
            self._timers.drop(lease)
        else:
            self._timers.end_holding(lease)

    def retry_release(self, name: str, ticket: Ticket, tried: Callable[[], None] | None = None) -> None:
        """Release in the background, until the store confirms or the lease has expired; call ``tried`` after a try."""
        now = self._runtime.now()
        self._schedule_release(PendingRelease(name, ticket, now + ticket.terms.lease, tried), now)

    def on_report(self, result: RenewalResult, tickets: Collection[str] | None) -> None:
        """Take a store's report on some tickets, or on all, from any thread; see `ReportsLosses`."""
        self._reports.append((result, None if tickets is None else frozenset(tickets)))
        self._wake.set()

    def prepare_callbacks(self) -> None:
        """Start the backup thread, for callbacks that may be slow."""
        if not self._backup_thread.is_prepared():
            self._submit(0.0, self._backup_thread.prepare)

    def resume(self) -> None:
        """Go on in another event loop: the job has ended with the last one, and so have requests under way."""
        self._retrier.resume()
        if self.leases() or self._pending or self._inbox:
            self._submit(0.0, self._timers.add_again)

    def leases(self) -> list[Lease]:
        """Return all leases that it watches."""
        return self._timers.leases()

    def holder_of(self, name: str) -> Lease | None:
        """Return the lease that was granted last for ``name``, if it still holds."""
        lease = self._timers.held.get(name)
        return lease if lease is not None and lease.remaining() > 0 else None

    async def close(self, within: float, unsent: Sequence[Lease]) -> None:
        """End the thread or task; send ``unsent`` and each pending release once more, in about ``within`` seconds."""
        until = self._runtime.now() + within
        self._closed = True
        job, self._job = self._job, None
        self._wake.set()
        await self._backup_thread.close(within)
        if job is not None:
            await job.join(max(0.0, until - self._runtime.now()))
        await self._end(self._background, until)  # else the store would be closed during a release
        await self._end(self._renewer.jobs, 0.0)  # the results are not needed any more; a thread finds the store closed
        self._background, self._renewer.jobs = [], []
        self._drain_inbox()
        last = {lease.ticket.id: PendingRelease(lease.name, lease.ticket, until, None) for lease in unsent}
        last |= {each.ticket.id: each for each in self._pending}
        await self._retrier.send(list(last.values()), until)

    async def _end(self, jobs: Sequence[Job], until: float) -> None:
        """Wait for jobs until a reading of the clock; then cancel all that have not ended."""
        for job in jobs:
            if (left := until - self._runtime.now()) > 0:
                await job.join(left)
        for job in jobs:
            job.cancel()
        for job in jobs:
            await job.join(0.0)

    def after_fork(self) -> None:
        """Forget, in a forked child, all leases: they belong to the parent."""
        inherited = self.leases()
        self._reset()
        for lease in inherited:
            lease.after_fork()

    # --- the schedule ------------------------------------------------------------------------------------------

    def _submit(self, when: float, action: Callable[[], None]) -> None:
        """Have the thread that runs the schedule execute an action, no later than at a reading of the clock."""
        self._inbox.append(action)
        if self._closed:
            return
        job = self._job
        if job is None or not job.alive():
            self._start()
        elif when < self._sleeps_until:
            self._wake.set()

    def _start(self) -> None:
        if self._starting._is_owned():  # by a frame that this signal handler interrupted: that frame starts the job
            return
        with self._starting:
            if self._current_run is None and (self._job is None or not self._job.alive()):
                self._sleeps_until = 0.0
                self._job = self._runtime.spawn_loop(self._run_job, "leasehold-watchdog")
            else:
                self._wake.set()

    def _wake_by(self, when: float) -> None:
        """Check the fresh leases no later than at a reading of the clock."""
        self._wake_at = min(self._wake_at, when)

    def _schedule_renewed(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        self._submit(0.0, partial(self._timers.add_renewed, batch, results, sent))

    def _schedule_release(self, pending_release: PendingRelease, when: float) -> None:
        self._submit(when, partial(self._pending.put, pending_release, when))

    def _drain_inbox(self) -> None:
        """Execute the actions of other threads, and set the timers of the fresh leases."""
        while self._inbox:
            self._inbox.popleft()()
        self._timers.add_fresh()

    async def _run_job(self) -> None:
        try:
            await self._run()
        except BaseException as error:
            if not (self._closed or self._current_run or isinstance(error, ENDINGS)):
                self._timers.add_again()  # of a signal handler: the program may go on with its event loop
                self._job = None
                self._start()
            raise

    async def _run(self) -> None:
        mine = object()
        try:
            with self._starting:
                self._current_run = mine
            while not self._closed and self._current_run is mine:
                try:
                    if not self._step() or (not await self._sleep() and self._stop_if_idle(mine)):
                        return
                except Exception:  # a mistake, which must neither end the renewals nor fill the log
                    self._inbox.append(self._timers.add_again)
                    log.exception("a check of the leases failed; the watchdog continues")
                    await self._runtime.sleep(AFTER_AN_ERROR)
        finally:
            with self._starting:  # another run may begin just now
                last = self._current_run is mine
                if last:
                    self._current_run = None
            if not last:  # the other one may have missed a wake-up
                self._wake.set()

    def _stop_if_idle(self, mine: object) -> bool:
        """End the job, unless something arrived just now. Whatever arrives later finds no job and starts one."""
        with self._starting:
            if self._current_run is not mine:  # another run has the schedule
                return True
            job, self._job, self._current_run = self._job, None, None
            if not self._timers.fresh and not self._inbox:
                return True
            self._job, self._current_run = job, mine
            return False

    async def _sleep(self) -> bool:
        """Sleep until a timer is due or another thread wakes it; return whether anything is left to do."""
        self._wake.clear()
        if self._closed:  # checked after the clear: a close sets this before it wakes us
            return True
        self._drain_inbox()
        now = self._runtime.now()
        times = [when for timers in self._queues() if (when := timers.next()) is not None]
        if self._wake_at <= now:  # it has just checked
            self._wake_at = NEVER
        if self._wake_at < NEVER:
            times.append(self._wake_at)
        self._sleeps_until = now if self._reports else min(times, default=now + LINGER)
        if self._timers.fresh or self._inbox:  # arrived meanwhile: it may not have seen until when we sleep
            self._wake.set()
        await self._wake.wait(max(0.0, self._sleeps_until - now))
        self._sleeps_until = 0.0
        return bool(times or self._wake_at < NEVER or any(self._queues()) or self._reports or self._inbox)

    async def _take_over(self, job: Job) -> None:
        """Run the schedule while the job that had it makes slow callbacks."""
        before, self._job = self._job, job
        if before is not None:
            self._background = running(self._background, before)
        await self._run()

    def _queues(self) -> tuple[TimerQueue[Lease], TimerQueue[Lease], TimerQueue[PendingRelease]]:
        return self._timers.renewals, self._timers.deadlines, self._pending

    def _step(self) -> bool:
        """Check all leases; return False if another job runs the schedule now."""
        later = self._backup_thread.later()
        try:
            self._check_all(later)
        finally:
            mine = not later or self._backup_thread.call(later)
        return mine

    def _check_all(self, later: Later | None) -> None:
        self._drain_inbox()
        self._apply_reports(later)
        now = self._runtime.now()
        ended = self._timers.deadlines.due(now)
        due = self._timers.renewals.due(now)
        if due:
            due += self._timers.renewals.due(now + COALESCE * min(lease.length for lease in due))
        pending = self._pending.due(now)
        if pending and (job := self._retrier.release_in_background(pending)) is not None:
            self._background = running(self._background, job)
        lost: set[str] = set()
        for lease in ended:
            if lease.check_deadline(later):  # a renewal has moved the deadline
                self._timers.deadlines.put(lease, lease.deadline)
            else:
                lost.add(lease.name)
                lease.complete_end(later)
                self.forget(lease)
        due += self._timers.waiters_for(lost)
        self._renewer.renew_in_background(
            [lease for lease in dict.fromkeys(due) if self._needs_renewal(lease, now, later)]
        )

    def _apply_reports(self, later: Later | None) -> None:
        """Apply the reports of the store; a lease that is in doubt is renewed now."""
        while self._reports:
            result, tickets = self._reports.popleft()
            for lease in self.leases():
                if lease.state not in HOLDING or (tickets is not None and lease.ticket.id not in tickets):
                    continue
                if result is RenewalResult.GONE:
                    lease.mark_lost("the store ended it (its session has expired)", later)
                    self.forget(lease)
                else:  # in doubt: a store reports nothing else
                    lease.mark_in_doubt()
                    if lease.renews:
                        self._timers.renewals.put(lease, self._runtime.now())

    def _needs_renewal(self, lease: Lease, now: float, later: Later | None) -> bool:
        if lease.state is not State.QUEUED and not lease.check_deadline(later):
            lease.complete_end(later)
            self.forget(lease)
            return False
        if not lease.is_reachable():
            self._release_abandoned(lease, later)
            return False
        return lease.state is State.QUEUED or (lease.renews and now < renewable_until(lease))

    def _release_abandoned(self, lease: Lease, later: Later | None) -> None:
        """Release a lease whose handle is gone; its callbacks are called before another client can acquire."""
        if lease.state is State.QUEUED:
            ended = lease.begin_release()
        else:
            ended = lease.mark_lost("its hold was dropped without a release", later)
        self.forget(lease)
        if ended:  # else another call has ended it just now, and releases it
            self.retry_release(lease.name, lease.ticket)
            log.warning("lock %r was never released and its hold was dropped; the watchdog released it", lease.name)
