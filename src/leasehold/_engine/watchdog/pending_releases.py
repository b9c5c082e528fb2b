"""Releases without an answer. They are repeated until the store confirms them, or the lease has expired.

The watchdog's schedule decides when each is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold._model import ReleaseReason, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import Store

RETRY_PAUSE = 0.1
"""Seconds before a pending release is sent again, at least; with jitter up to five times as long."""

RELEASE_WITHIN = 1.0
"""Seconds to wait for the answer to one release, at most."""

log = logging.getLogger("leasehold")


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A release that was not confirmed. ``until``: boot-time clock at which the lease has expired."""

    name: str
    ticket: Ticket
    until: float


class ReleaseRetrier:
    """Repeats the releases of one client; ``schedule`` sets when one is sent again, by the boot-time clock."""

    def __init__(
        self, runtime: Runtime, store: Store, patience: float, schedule: Callable[[PendingRelease, float], None]
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._patience = min(patience, RELEASE_WITHIN)
        self._schedule = schedule

    def release_in_background(self, pending: Sequence[PendingRelease]) -> Job | None:
        """Send releases in a job and return it; if no thread can be started, schedule them again and return None."""
        try:
            return self._runtime.spawn(lambda: self.send(pending), "leasehold-release")
        except RuntimeError:  # no thread can be started: later
            for pending_release in pending:
                self._schedule(pending_release, self._runtime.now() + RETRY_PAUSE)
            return None

    async def send(self, pending: Sequence[PendingRelease]) -> None:
        """Send each release; schedule one without an answer again, unless its lease has expired."""
        for pending_release in pending:
            try:
                was_there = await self._store.release(
                    pending_release.name, pending_release.ticket, reason=ReleaseReason.RELEASE, within=self._patience
                )
                log.debug(
                    "released %r late; the store %s it", pending_release.name, "knew" if was_there else "did not know"
                )
            except StoreUnavailable:
                now = self._runtime.now()
                if now < pending_release.until:
                    self._schedule(pending_release, now + RETRY_PAUSE * (1 + 4 * self._runtime.jitter()))
            except Exception:
                log.exception("a late release of %r failed", pending_release.name)
