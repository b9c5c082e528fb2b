"""Cancels the wait of an acquire from another thread, task or signal handler.

Theory of operation
-------------------
A waiter sleeps inside its store, and each store sleeps in its own way. The release of the ticket ends the sleep in all
of them (`leasehold.store_api.Store.wait`), and it removes the queue entry. So a cancellation is a release:

1. `Cancellation.cancel` ends the lease of each attempt, and has the watchdog release its ticket. It takes no mutex,
   waits for nothing and sends nothing itself, so a signal handler may call it, whatever it interrupted: also the sleep
   of the event loop, which it ends.
2. The store wakes the waiter before it sends the release.
3. The waiter waits until that release was answered, and releases the ticket once more, as a request of its own may have
   arrived later. So the queue entry is gone when its acquire returns, and the process may end.

A grant may arrive at the same time. The first entry in a list decides, which is one atomic step. If that is the grant,
the acquire returns its hold. If it is the cancellation, step 3 gives the grant back, and the next waiter gets it.

A cancellation before the acquire is not missed. An attempt first adds itself to the list, then reads the flag; `cancel`
first sets the flag, then reads the list.
"""

from __future__ import annotations

from contextlib import suppress

from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease


class Cancellation:
    """Cancels waiting acquires: pass it to ``acquire(cancel=…)``, and call `cancel` from anywhere else.

    The acquire returns None, as after a timeout, and leaves the queue. If it is sending a request and that fails, it
    raises StoreUnavailable. One object may serve many acquires, of any
    locks and clients. It stays cancelled: an acquire that gets it later returns None at once. For new waits, create
    a new object.

    Example:
        ```python
        import threading

        stop = Cancellation()
        threading.Timer(0.1, stop.cancel).start()
        with client.lock("stock:42"):
            hold = client.lock("stock:42").acquire(timeout=60, cancel=stop)
        assert hold is None
        ```
    """

    __slots__ = ("_attempts", "_cancelled")

    def __init__(self) -> None:
        self._cancelled = False
        self._attempts: dict[int, Attempt] = {}

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End the waits of all acquires that got this, and return at once. Any thread or signal handler may call it.

        A waiter wakes within about a millisecond. An acquire that is sending a request (it connects, or the store is
        down) ends when that request ends, at the latest after the client's ``response_timeout``, or up to two seconds
        later. If the request fails, it raises StoreUnavailable and does not return None. An acquire that was granted
        before keeps its hold.
        """
        self._cancelled = True
        for attempt in list(self._attempts.copy().values()):  # not of `values()`: see `LeaseTimers.add_fresh`
            attempt.cancel()

    def _begin(self, key: int, engine: Engine, lease: Lease) -> Attempt:
        """List an attempt, in place of an earlier one with this key."""
        attempt = self._attempts[key] = Attempt(engine, lease)
        if self._cancelled:
            attempt.refuse()
        return attempt

    def _end(self, key: int) -> None:
        self._attempts.pop(key, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' cancelled' if self._cancelled else ''}>"


class Attempt:
    """One ticket that is requested, or waits, until it is granted or cancelled."""

    __slots__ = ("_engine", "_first", "_lease", "_tried")

    def __init__(self, engine: Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease
        self._first: list[bool] = []  # whether it was granted: the first entry counts
        self._tried = engine.runtime.signal()  # set after the first try of a cancellation's release, answered or not

    def granted(self) -> bool:
        """Accept a grant; return False if the attempt was cancelled first."""
        self._first.append(True)
        return self._first[0]

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled before it was granted."""
        return bool(self._first) and not self._first[0]

    def refuse(self) -> None:
        """Cancel the attempt before its first request."""
        self._first.append(False)

    def cancel(self) -> None:
        """Release the ticket, unless it was granted first. A forked child does nothing: the parent owns the ticket."""
        if not self._engine.check_owner(self._lease):
            return
        self._first.append(False)
        if self.cancelled:
            self._lease.begin_release()
            with suppress(RuntimeError):  # no thread can be started, or the loop is closed: the waiter releases it
                self._engine.watchdog.retry_release(self._lease.name, self._lease.ticket, self._tried.set)
                self._engine.runtime.wake()

    async def released(self) -> None:
        """Wait for the release that `cancel` started. The waiter's own release may end before it."""
        await self._tried.wait(self._engine.release_within)
