"""What is *owed*: leaves whose outcome is not known. They are repeated until the store confirms them.

After its lease a ticket is gone by itself, and nothing is owed. When each is tried is on the watchdog's schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold._model import ReleaseReason, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Store

LEAVE_AGAIN = 0.1
"""Seconds before an owed leave is tried again, at least; with jitter up to five times as long."""

LEAVE_WITHIN = 1.0
"""Seconds for which the answer to one is waited for, at most."""

log = logging.getLogger("leasehold")


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A leave that was not confirmed. ``until``: boot-time clock at which the lease has ended by itself."""

    name: str
    ticket: Ticket
    until: float


class ReleaseRetrier:
    """Pays the debts of one client; ``again`` puts one down to be paid at a reading of the clock."""

    def __init__(
        self, runtime: Runtime, store: Store, patience: float, again: Callable[[PendingRelease, float], None]
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = min(patience, LEAVE_WITHIN)
        self._again = again

    def release_in_background(self, pending: Sequence[PendingRelease]) -> Job | None:
        """Begin to pay in a job, and return it; None, and all are put down again, if there is none to be had."""
        try:
            return self._runtime.spawn(lambda: self.pay(pending), "leasehold-leave")
        except RuntimeError:  # no thread to be had: later
            for pending_release in pending:
                self._again(pending_release, self._runtime.now() + LEAVE_AGAIN)
            return None

    async def pay(self, pending: Sequence[PendingRelease]) -> None:
        """Leave for each; one without an answer is put down again, unless it is over by then."""
        for pending_release in pending:
            try:
                left = await self._store.release(
                    pending_release.name, pending_release.ticket, reason=ReleaseReason.RELEASE, within=self._patience
                )
                log.debug("left %r late; it was %s", pending_release.name, "there" if left else "gone")
            except StoreUnavailable:
                now = self._runtime.now()
                if now < pending_release.until:
                    self._again(pending_release, now + LEAVE_AGAIN * (1 + 4 * self._runtime.jitter()))
            except Exception:
                log.exception("a late leave of %r failed", pending_release.name)
