"""The locks of the asyncio client: a method for each, with every option spelled out."""

from __future__ import annotations

from collections.abc import Iterable

from leasehold import _validate, primitives
from leasehold._model import Kind, LockMode, Nested
from leasehold._validate import Meta, Seconds
from leasehold.client.aio_base import AsyncClientBase
from leasehold.primitives.locks.lock import AsyncLock, AsyncMutex
from leasehold.primitives.locks.options import DEFAULT_LEASE, Options
from leasehold.primitives.locks.rlock import AsyncRLock


class AsyncClientLocks(AsyncClientBase):
    """What makes locks in one store, for asyncio."""

    def lock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
        nested: Nested = "warn",
    ) -> AsyncLock:
        """Make an exclusive lock, for ``async with`` and ``acquire``; this does not acquire it.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            fair: serve waiters in order of arrival, even after a lease expired.
            lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``async with`` and ``acquire`` wait at most; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.
            nested: what an acquire does that would wait for a hold of its own thread or task: ``warn`` waits, and warns
                if it has no timeout; ``raise`` raises RuntimeError. An `rlock` may be acquired again.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        checked = self._exclusive(bool(fair), lease, renew, max_hold, lock_delay, timeout, meta)
        _validate.nested(nested)
        return AsyncLock(self._engine, _validate.name(name), checked, nested)

    def rlock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> AsyncRLock:
        """Make a lock that its holder (the task, or the thread) may acquire again; each acquire needs a release.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            fair: serve waiters in order of arrival, even after a lease expired.
            lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``async with`` and ``acquire`` wait at most; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        checked = self._exclusive(bool(fair), lease, renew, max_hold, lock_delay, timeout, meta)
        return AsyncRLock(self._engine, _validate.name(name), checked, self._entries)

    def rw_lock(
        self,
        name: str,
        *,
        fair: bool = True,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> primitives.AsyncRWLock:
        """Make a read-write lock, with ``reader()`` and ``writer()``: many readers at a time, or one writer.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            fair: readers and writers enter in order of arrival, readers that follow each other together. False lets
                readers pass waiting writers: they wait less, but a steady flow of them starves writers.
            lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``async with`` and ``acquire`` wait at most; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        mode = primitives.Role.READER.mode(fair=bool(fair))
        checked = Options.checked(self._engine, mode, lease, renew, max_hold, lock_delay, timeout, meta)
        return primitives.AsyncRWLock(self._engine, _validate.name(name), checked, self._entries)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        fair: bool = True,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> primitives.AsyncSemaphore:
        """Make a semaphore: at most ``permits`` permits are out at a time.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            permits: from 1 to 1,000,000. All who use the name at the same time must pass the same number.
            fair: serve waiters in order of arrival. False lets small requests pass, and starve, a larger one.
            lease: seconds for which the store keeps a permit without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``async with`` and ``acquire`` wait at most; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.

        Returns:
            The semaphore, which acquires one permit, and ``permits(n)``, which acquires several.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        mode = LockMode(Kind.SEMAPHORE, limit=primitives.permits_of(permits), fair=bool(fair))
        checked = Options.checked(self._engine, mode, lease, renew, max_hold, lock_delay, timeout, meta)
        return primitives.AsyncSemaphore(self._engine, _validate.name(name), checked)

    def multi_lock(
        self,
        locks: Iterable[str | AsyncMutex | primitives.AsyncSemaphore],
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> primitives.AsyncMultiLock:
        """Make one lock of several, which are held all or none.

        Args:
            locks: names, and lock objects of this or other clients: ``lock``, ``rlock``, ``reader()`` and ``writer()``,
                semaphores and ``permits(n)``. A lock object keeps its own options, except the timeout: that of the
                multi-lock counts. A name that occurs twice is locked once. All clients acquire in order of the names,
                which excludes deadlocks.
            fair: for the names: serve waiters in order of arrival, even after a lease expired.
            lease: seconds for which the store keeps each name without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds to wait at most for all of them together; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        checked = self._exclusive(bool(fair), lease, renew, max_hold, lock_delay, timeout, meta)
        members = primitives.members_of(
            locks, lambda name: AsyncLock(self._engine, _validate.name(name), checked, "warn")
        )
        return primitives.AsyncMultiLock(self._engine, members, checked)

    def synchronized(
        self,
        name: primitives.Naming,
        *,
        hold: str | None = None,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> primitives.AsyncSynchronized:
        """Make a decorator for coroutine functions: each call runs under the `rlock` that its arguments name.

        Args:
            name: a format string over the arguments, as ``order:{order_id}`` or ``user:{order.user.id}``; or a function
                that takes the same arguments and returns the name.
            hold: the keyword-only argument of the function that receives the hold, for its token; None for none.
            fair: serve waiters in order of arrival, even after a lease expired.
            lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds to wait at most, then the call raises `AcquireTimeout`; None waits without end.
            meta: shown by `inspect`: a text or a mapping, at most 1 KiB as JSON.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        checked = self._exclusive(bool(fair), lease, renew, max_hold, lock_delay, timeout, meta)
        return primitives.AsyncSynchronized(self._engine, name, hold, checked, self._entries)

    def _exclusive(
        self,
        fair: bool,
        lease: Seconds,
        renew: bool,
        max_hold: Seconds | None,
        lock_delay: Seconds,
        timeout: Seconds | None,
        meta: Meta | None,
    ) -> Options:
        """Check the options of a lock. Those of a lock with the defaults, as most are, are made once.

        The defaults are recognized by identity, which calls nothing; an equal value is checked like any other.
        """
        if (
            lease is DEFAULT_LEASE
            and renew is True
            and max_hold is None
            and timeout is None
            and meta is None
            and type(lock_delay) is float
            and not lock_delay
        ):
            usual = self._usual.get(fair)
            if usual is None:
                usual = self._usual[fair] = Options.checked(self._engine, LockMode(fair=fair))
            return usual
        return Options.checked(self._engine, LockMode(fair=fair), lease, renew, max_hold, lock_delay, timeout, meta)
