"""The asyncio client: a method for each primitive."""

from __future__ import annotations

from typing import Any, TypeVar

from leasehold import _validate, primitives
from leasehold._model import Kind, LockMode
from leasehold._validate import Meta, Seconds
from leasehold.client.aio_locks import AsyncClientLocks
from leasehold.primitives.locks.options import DEFAULT_LEASE, LATCH_TTL, TICK_TTL, VERSIONED_TTL, Options

T = TypeVar("T")


class AsyncClient(AsyncClientLocks):
    """Locks in one store, for asyncio. One client serves any number of tasks of one event loop.

    Example:
        ```python
        async with AsyncClient.from_url("redis://localhost:6379") as locks:
            async with locks.lock("stock:42") as hold:
                await sell(42, fence=hold.token)
        ```
    """

    def election(
        self,
        name: str,
        value: Meta | None = None,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        timeout: Seconds | None = None,
    ) -> primitives.AsyncElection:
        """Make one candidate, or observer, of an election. It does not campaign yet.

        Args:
            name: 1 to 512 bytes of UTF-8 with the prefix ``election/``, under which `inspect` shows it.
            value: published while it leads, as its address: a text or a mapping, at most 1 KiB as JSON.
            fair: candidates lead in order of arrival, even after a leader died.
            lease: seconds for which the store keeps the leadership without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``async with`` and ``campaign`` wait at most; None waits without end.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        lock = _validate.name(f"{primitives.ELECTION}/{_validate.name(name)}")
        mode = LockMode(fair=bool(fair))
        checked = Options.checked(self._engine, mode, lease, renew, max_hold, lock_delay, timeout, value)
        return primitives.AsyncElection(self._engine, lock, checked)

    def latch(self, name: str, count: int, *, ttl: Seconds = LATCH_TTL) -> primitives.AsyncLatch:
        """Make a latch, which opens after ``count`` calls of ``count_down``, and stays open.

        Args:
            name: 1 to 506 bytes of UTF-8. Names of latches and of locks never collide. A latch is used once: each run
                takes its own name.
            count: from 1 to 1,000,000. All who use the name must pass the same number.
            ttl: seconds after the last count until the store forgets the latch, a week by default, ten years at most;
                then it is closed.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.AsyncLatch(self._engine, name, count, ttl)

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        drop_dead: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> primitives.AsyncBarrier:
        """Make a barrier, at which ``parties`` members meet, go on together, and may leave together.

        Args:
            name: 1 to 504 bytes of UTF-8. Names of barriers and of locks never collide.
            parties: from 1 to 1000. All who use the name must pass the same number.
            drop_dead: drop a member that dies, fails or gives up; otherwise it breaks the barrier.
            lease: seconds after which a dead member is noticed at the latest.
            timeout: seconds that each wait takes at most; None waits without end.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        can = self._engine.store.capabilities
        mode = LockMode(Kind.SEMAPHORE, limit=primitives.parties_of(parties), fair=can.fair and can.fair_shared)
        checked = Options.checked(self._engine, mode, lease=lease, timeout=timeout)
        return primitives.AsyncBarrier(self._engine, _validate.name(name), checked, drop_dead=bool(drop_dead))

    def versioned(self, name: str, *, ttl: Seconds = VERSIONED_TTL) -> primitives.AsyncVersionedCell[Any]:
        """Make a value with a version, for compare-and-set: optimistic locking.

        Args:
            name: 1 to 502 bytes of UTF-8. Names of values and of locks never collide.
            ttl: seconds after the last write at which the value is forgotten; a year by default, ten years at most. Its
                versions begin again then, so it must be longer than any client keeps a version.

        Returns:
            The cell, to read and to write: a value has at most 64 KiB. Annotate it with its type of value:
            ``AsyncVersionedCell[int]``.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.AsyncVersionedCell(self._engine, name, ttl)

    def once(
        self, key: str, *, ttl: Seconds, lease: Seconds = DEFAULT_LEASE, timeout: Seconds | None = None
    ) -> primitives.AsyncOnce[Any]:
        """Make an object that does a piece of work once and keeps the result: for a message that is delivered twice.

        Args:
            key: what identifies the work, as the id of the message; 1 to 507 bytes of UTF-8.
            ttl: seconds for which the result (64 KiB at most) is kept: longer than the message may come again; ten
                years at most.
            lease: seconds after which another does the work if the worker has died.
            timeout: seconds to wait at most for another caller that does the work; None waits without end.

        Returns:
            The work, to run. Annotate it with its type of result: ``AsyncOnce[str]``.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.AsyncOnce(self._engine, key, ttl=ttl, lease=lease, timeout=timeout)

    def cached(
        self,
        key: str,
        ttl: primitives.TimeToLive[T],
        fetch: primitives.AsyncFetch[T],
        *,
        early: Seconds | None = None,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> primitives.AsyncCachedValue[T]:
        """Make a value that one caller fetches and all use, in all processes: an access token, an exchange rate.

        Args:
            key: the value's name; 1 to 505 bytes of UTF-8.
            ttl: seconds for which a fetched value is good, or a function that reads them from the value; ten years at
                most.
            fetch: a coroutine function that returns a new value: what JSON can express, or bytes; 64 KiB at most.
            early: seconds before its end in which one caller renews it; None is a tenth of ``ttl``, 0 is never.
            lease: seconds after which another fetches if the caller that fetched has died.
            timeout: seconds to wait at most for another caller that fetches; None waits without end.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.AsyncCachedValue(self._engine, key, ttl, fetch, early=early, lease=lease, timeout=timeout)

    def scheduled(
        self, name: str, *, at_least: Seconds | None = None, at_most: Seconds, ttl: Seconds = TICK_TTL
    ) -> primitives.AsyncScheduled:
        """Make a job of which each tick runs in one instance, whatever their number.

        Args:
            name: the job's name; 1 to 502 bytes of UTF-8.
            at_least: for runs without ``tick=``: no run begins within this many seconds after another began. Choose
                more than the instances' clocks differ, and less than the time between two ticks.
            at_most: seconds after which a run has lost its right, and another may begin.
            ttl: for runs with ``tick=``: seconds for which the last tick is remembered; longer than an instance may be
                late, ten years at most.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.AsyncScheduled(self._engine, name, at_least=at_least, at_most=at_most, ttl=ttl)
