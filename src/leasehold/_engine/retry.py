"""Requests that are sent again when the store did not answer, and what users and observers learn of them.

Inside a store, subclasses of `StoreUnavailable` tell its parts whether a retry or another server helps. Error trackers
group by class, so an error that leaves the library has the documented one, with the same message, facts and cause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import Any, TypeVar

from leasehold._engine.lease import Lease
from leasehold._model import View
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreRefused, StoreUnavailable
from leasehold.events import Reconnected, RequestFailed, SelectiveObserver
from leasehold.store_api import Store

T = TypeVar("T")

FIRST_PAUSE = 0.005  # seconds before a request without an answer is sent again; later pauses double, with jitter
LONGEST_PAUSE = 1.0  # seconds between two attempts to reach a store that does not answer, at most

Request = Callable[[float], Coroutine[Any, Any, T]]
"""Sends a request once, and waits for its answer for at most so many seconds."""


async def repeat(
    runtime: Runtime, request: Request[T], within: float, *, through_outage: bool = False
) -> tuple[T, bool]:
    """Send a request until it has an answer, for at most ``within`` seconds; ``through_outage``: after a refusal, too.

    Return the answer, and whether an earlier sending had no answer and may arrive later.
    """
    until = runtime.now() + within
    try:
        return await request(within), False
    except StoreUnavailable as error:
        failed = error
    try:
        return await retry(runtime, failed, request, until, through_outage=through_outage)
    finally:
        del failed  # see `asked`


async def retry(
    runtime: Runtime, failed: StoreUnavailable, request: Request[T], until: float, *, through_outage: bool = False
) -> tuple[T, bool]:
    """Continue as `repeat` does after a first failure, until a reading of the clock."""
    pause, repeated = FIRST_PAUSE, False
    while True:
        left = until - runtime.now() - pause
        if left <= 0 or failed.lasting or not (failed.unknown or through_outage):
            failed.unknown = failed.unknown or repeated  # the store may have executed what it refuses now
            try:
                raise documented(failed)
            finally:
                del failed  # see `asked`
        repeated = repeated or failed.unknown
        await runtime.sleep(pause * (0.5 + runtime.jitter() / 2))
        pause = min(pause * 2, LONGEST_PAUSE)
        try:
            return await request(max(until - runtime.now(), FIRST_PAUSE)), repeated
        except StoreUnavailable as error:
            failed = error


def documented(error: StoreUnavailable) -> StoreUnavailable:
    """Return the error itself, or a copy in its documented class if its own is internal to this library."""
    if type(error) in (StoreUnavailable, StoreRefused) or not type(error).__module__.startswith("leasehold."):
        return error
    copied = (StoreRefused if isinstance(error, StoreRefused) else StoreUnavailable)(error.message)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied.with_traceback(error.__traceback__)


async def asked(answer: Awaitable[T]) -> T:
    """Return a store's answer.

    Raises:
        StoreUnavailable: there is none; never in an internal class.
    """
    try:
        return await answer
    except StoreUnavailable as error:
        failed = documented(error)
    try:
        raise failed  # outside of `except`, so that a traceback does not show the internal class as its context
    finally:
        del failed  # else the error and this frame refer to each other, and keep the callers' frames, and so a hold


async def views_of(store: Store, name: str, within: float) -> list[View]:
    """Return what a store shows of one name: nothing or one view. Raises as `asked` does."""
    return await asked(store.inspect(name, exact=True, within=within))


class Contact:
    """Whether the store answers one client's requests for locks."""

    def __init__(self, observer: SelectiveObserver) -> None:
        self._observer = observer
        self.lost_since: float | None = None  # boot-time clock at the first failure since the last answer

    def failed(self, lease: Lease, request: str, error: StoreUnavailable) -> None:
        """Record a failure, for a lease or for a batch that begins with it."""
        if self.lost_since is None:
            self.lost_since = lease._runtime.now()
        if self._observer.wants(RequestFailed):
            # A copy has no traceback: who keeps the event must not keep our frame, which has the lease
            self._observer(RequestFailed(*lease.event_fields(), request, error=copy(documented(error))))

    def answered(self, lease: Lease) -> None:
        """Record an answer."""
        since, self.lost_since = self.lost_since, None
        if since is not None and self._observer.wants(Reconnected):
            self._observer(Reconnected(*lease.event_fields(), lease._runtime.now() - since))
