"""Detects that the server has closed the connection of a hold of ``mode=session`` between two requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from leasehold._model import RenewalResult
from leasehold._runtimes.base import Job, Runtime
from leasehold.store_api import LossCallback

WATCH_EVERY = 0.025
"""Seconds between two checks of the connections of holds. A check is local, takes microseconds and sends nothing."""


class Watch:
    """The watch of one client: a job that runs while there are holds."""

    def __init__(
        self, runtime: Runtime, any_held: Callable[[], bool], closed_connections: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        """Make one; ``closed_connections`` returns the tickets whose connections were closed since the last call."""
        self._runtime = runtime
        self._any_held = any_held
        self._closed_connections = closed_connections
        self._on_loss: LossCallback | None = None
        self._job: Job | None = None

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` from now on for each hold whose connection ends."""
        self._on_loss = callback

    def begin(self) -> None:
        """Start the job: there is a hold."""
        if self._job is None or not self._job.alive():
            self._job = self._runtime.spawn(self._check, "leasehold-watch")

    async def close(self) -> None:
        """Wait for the job, which ends when no hold is left."""
        if self._job is not None:
            await self._job.join(1.0)

    def after_fork(self) -> None:
        """Forget the parent's job in a forked child."""
        self._job = None

    async def _check(self) -> None:
        while self._any_held():
            await self._runtime.sleep(WATCH_EVERY)
            for ticket in await self._closed_connections():
                if self._on_loss is not None:
                    self._on_loss(RenewalResult.GONE, (ticket,))
