"""The requests of the watchdog, each sent in a background job: renewals in batches, and releases that had no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from leasehold._engine.lease import Later, Lease
from leasehold._engine.lease_states import HOLDING
from leasehold._engine.retry import Contact, documented
from leasehold._engine.watchdog.timers import RENEWALS_PER_LEASE
from leasehold._model import ReleaseReason, RenewalResult, Ticket
from leasehold._runtimes.base import Job, Runtime, call_each
from leasehold._runtimes.log import log
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Store

BATCH = 500  # tickets in one call of `Store.renew`
RELEASE_WITHIN = 1.0  # seconds that a release may take to be confirmed; then it is repeated in the background
RETRY_PAUSE = 0.1  # seconds before a pending release is sent again, at least; with jitter up to five times as long

RENEW, RELEASE = "leasehold-renew", "leasehold-release"  # the names of the jobs

Renewed = Callable[[Sequence[Lease], Sequence[RenewalResult], float], None]


class Renewer:
    """Sends renewals of one client, and applies the results to the leases.

    ``renewed(batch, results, sent)`` sets the next timers of the leases. ``later()`` makes a list for callbacks that
    are called when all leases of a batch were checked, or None where they are called at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        patience: float,
        contact: Contact,
        renewed: Renewed,
        later: Callable[[], Later | None],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = patience
        self._contact = contact
        self._renewed = renewed
        self._later = later
        self.jobs: list[Job] = []  # the jobs of renewals, also some that have ended

    def renew_in_background(self, leases: Sequence[Lease]) -> None:
        """Renew leases in batches, in background jobs."""
        for start in range(0, len(leases), BATCH):
            self._start(leases[start : start + BATCH])

    def _start(self, batch: Sequence[Lease]) -> None:
        try:
            job = self._runtime.spawn_loop(lambda: self._renew(batch), RENEW)
        except RuntimeError as error:  # no thread can be started: as if the store had not answered
            failure = StoreUnavailable(f"the thread of a renewal cannot be started: {error}")
            self._apply(batch, [RenewalResult.UNKNOWN] * len(batch), self._runtime.now(), failure)
        else:
            self.jobs = running(self.jobs, job)

    async def _renew(self, batch: Sequence[Lease]) -> None:
        sent = self._runtime.now()
        within = min(self._patience, min(lease.length for lease in batch) / RENEWALS_PER_LEASE)
        results: Sequence[RenewalResult] | None = None
        failure: StoreUnavailable | None = None
        try:
            request = self._store.renew([(lease.name, lease.ticket) for lease in batch], within=within)
            results = await self._runtime.attempt(request, RENEW, None)  # None if it was cancelled
        except StoreUnavailable as error:
            # The leases keep this error. With its traceback it would keep this frame, and so the leases, alive.
            failure = documented(error).with_traceback(None)
            self._contact.failed(batch[0], "renew", failure)
        except Exception:
            log.exception("a batch of renewals failed")
        else:
            if results is not None and self._contact.lost_since is not None:
                self._contact.answered(batch[0])
        self._apply(batch, results or [RenewalResult.UNKNOWN] * len(batch), sent, failure)

    def _apply(
        self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float, failure: StoreUnavailable | None
    ) -> None:
        later = self._later()
        try:
            pairs = zip(batch, results, strict=True)
            applied = (partial(apply_result, *pair, sent, later, failure) for pair in pairs if pair[0].state in HOLDING)
            call_each(chain(applied, [partial(self._renewed, batch, results, sent)]))  # a handler may raise in any
        finally:
            call_each(later or ())


def apply_result(
    lease: Lease, result: RenewalResult, sent: float, later: Later | None, failure: StoreUnavailable | None
) -> None:
    """Apply the result of a renewal that was sent at ``sent`` to a lease that is held."""
    if result is RenewalResult.HELD:
        lease.renewed(sent)
    elif result is RenewalResult.UNKNOWN:
        lease.mark_in_doubt(failure)
    elif result is RenewalResult.GONE and lease.confirmed <= sent:
        # A GONE sent before the grant is ignored: the acquire overtook this renewal. A QUEUED is always older.
        try:
            lease.mark_lost("the store no longer knows it (expired, broken or evicted)", later)
        finally:  # an observer is called before the callbacks, and may be interrupted
            lease.complete_end(later)


def running(jobs: Sequence[Job], job: Job) -> list[Job]:
    """Return those of the jobs that have not ended, and one more."""
    return [*(other for other in jobs if other.alive()), job]


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A release that was not confirmed: it is repeated until it is, or until the lease has expired."""

    name: str
    ticket: Ticket
    until: float  # boot-time clock at which the lease has expired
    tried: Callable[[], None] | None = field(default=None, compare=False)  # called after each try


class ReleaseRetrier:
    """Repeats the releases of one client; ``schedule`` sets when one is sent again, by the boot-time clock."""

    def __init__(
        self, runtime: Runtime, store: Store, patience: float, schedule: Callable[[PendingRelease, float], None]
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = min(patience, RELEASE_WITHIN)
        self._schedule = schedule
        self._under_way: dict[PendingRelease, None] = {}

    def resume(self) -> None:
        """Schedule again what was under way in an event loop that was closed."""
        while self._under_way:
            self._schedule(self._under_way.popitem()[0], self._runtime.now())

    def release_in_background(self, pending: Sequence[PendingRelease]) -> Job | None:
        """Send releases in a job and return it; if no thread can be started, schedule them again and return None."""
        self._under_way.update(dict.fromkeys(pending))
        try:
            return self._runtime.spawn_loop(lambda: self.send(pending), RELEASE)
        except RuntimeError:  # no thread can be started: later
            for each in pending:
                self._under_way.pop(each, None)
                self._schedule(each, self._runtime.now() + RETRY_PAUSE)
            return None

    async def send(self, pending: Sequence[PendingRelease], until: float = float("inf")) -> None:
        """Send each release while there is time; schedule one without an answer again, unless its lease has expired."""
        for each in pending:
            if self._runtime.now() >= until:
                return
            was_there: bool | None = None
            pause = RETRY_PAUSE
            try:
                was_there = await self._runtime.attempt(self._release(each), RELEASE, None)
            except Exception:
                log.exception("a late release of %r failed", each.name)
                pause = max(pause, (each.until - self._runtime.now()) / 20)  # a mistake must not fill the log
            if was_there is not None:
                log.debug("released %r late; the store %s it", each.name, "knew" if was_there else "did not know")
            elif (now := self._runtime.now()) < each.until:
                self._schedule(each, now + pause * (1 + 4 * self._runtime.jitter()))
            self._under_way.pop(each, None)
            if each.tried is not None:
                each.tried()

    async def _release(self, each: PendingRelease) -> bool | None:
        """Release; return whether the store knew it, None without an answer."""
        try:
            return await self._store.release(
                each.name, each.ticket, reason=ReleaseReason.RELEASE, within=self._patience
            )
        except StoreUnavailable:
            return None
