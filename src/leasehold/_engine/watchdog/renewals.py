"""Renewals: sends each batch in a job of its own, and applies the results to the leases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from leasehold._engine.lease import Later, Lease
from leasehold._engine.lease_states import HOLDING
from leasehold._engine.watchdog.lease_timers import RENEWALS_PER_LEASE
from leasehold._model import RenewalResult
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Store

BATCH = 500
"""Tickets in one call of `Store.renew`."""

log = logging.getLogger("leasehold")

Renewed = Callable[[Sequence[Lease], Sequence[RenewalResult], float], None]


class Renewer:
    """Sends renewals of one client.

    ``renewed(batch, results, sent)`` sets the next timers of the leases. ``later()`` makes a list for callbacks that
    are called when all leases of a batch were checked, or None where they are called at once.
    """

    def __init__(
        self, runtime: Runtime, store: Store, patience: float, renewed: Renewed, later: Callable[[], Later | None]
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = patience
        self._renewed = renewed
        self._later = later
        self.jobs: list[Job] = []  # renewals under way; some of them ended

    def renew_in_background(self, leases: Sequence[Lease]) -> None:
        """Renew leases in batches, in background jobs."""
        for start in range(0, len(leases), BATCH):
            self._start(leases[start : start + BATCH])

    def _start(self, batch: Sequence[Lease]) -> None:
        try:
            job = self._runtime.spawn(lambda: self._renew(batch), "leasehold-renew")
        except RuntimeError:  # no thread can be started: as if the store had not answered
            self._apply(batch, [RenewalResult.UNKNOWN] * len(batch), self._runtime.now())
        else:
            self.jobs = running(self.jobs, job)

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
        self._apply(batch, results, sent)

    def _apply(self, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float) -> None:
        later = self._later()
        try:
            for lease, result in zip(batch, results, strict=True):
                if lease.state in HOLDING:
                    apply_result(lease, result, sent, later)
            self._renewed(batch, results, sent)
        finally:
            for call in later or ():
                call()


def apply_result(lease: Lease, result: RenewalResult, sent: float, later: Later | None) -> None:
    """Apply the result of a renewal that was sent at ``sent`` to a lease that is held."""
    if result is RenewalResult.HELD:
        lease.renewed(sent)
    elif result is RenewalResult.UNKNOWN:
        lease.mark_in_doubt()
    elif result is RenewalResult.GONE and lease.confirmed <= sent:
        # A GONE from before the grant is ignored: the acquire overtook this renewal. QUEUED is always from before it.
        lease.mark_lost("the store no longer knows it (expired, broken or evicted)", later)


def running(jobs: Sequence[Job], job: Job) -> list[Job]:
    """Return those of the jobs that have not ended, and one more."""
    return [*(other for other in jobs if other.alive()), job]
