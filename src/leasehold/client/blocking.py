"""The blocking client: the same methods, over the same algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from leasehold import primitives
from leasehold._validate import Meta, Seconds
from leasehold.client.aio import AsyncClient
from leasehold.client.blocking_locks import ClientLocks
from leasehold.primitives.locks.options import DEFAULT_LEASE, LATCH_TTL, TICK_TTL, VERSIONED_TTL

T = TypeVar("T")


class Client(ClientLocks):
    """Locks in one store, for threads. One client serves any number of threads, and a fork.

    Example:
        ```python
        with Client.from_url("redis://localhost:6379") as locks:
            with locks.lock("stock:42") as hold:
                sell(42, fence=hold.token)
        ```
    """

    _core: AsyncClient  # its asyncio twin, in the blocking runtime

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
    ) -> primitives.Election:
        """Make one candidate, or observer, of an election. It does not campaign yet.

        Args:
            name: 1 to 512 bytes of UTF-8 with the prefix ``election/``, under which `inspect` shows it.
            value: published while it leads, as its address: a text or a mapping, at most 1 KiB as JSON.
            fair: candidates lead in order of arrival, even after a leader died.
            lease: seconds for which the store keeps the leadership without a renewal, so also after a crash.
            renew: renew the lease while the holder lives. False is a fixed lease: it ends even if the work goes on.
            max_hold: seconds after which the lease is no longer renewed, and ends within ``lease``; None for no limit.
            lock_delay: seconds for which the name stays blocked after the lease *expired*; a release frees it at once.
            timeout: seconds that ``with`` and ``campaign`` wait at most; None waits without end.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        core = self._core.election(
            name, value, fair=fair, lease=lease, renew=renew, max_hold=max_hold, lock_delay=lock_delay, timeout=timeout
        )
        return primitives.Election(core)

    def latch(self, name: str, count: int, *, ttl: Seconds = LATCH_TTL) -> primitives.Latch:
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
        return primitives.Latch(self._core.latch(name, count, ttl=ttl))

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        drop_dead: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> primitives.Barrier:
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
        return primitives.Barrier(self._core.barrier(name, parties, drop_dead=drop_dead, lease=lease, timeout=timeout))

    def versioned(self, name: str, *, ttl: Seconds = VERSIONED_TTL) -> primitives.VersionedCell[Any]:
        """Make a value with a version, for compare-and-set: optimistic locking.

        Args:
            name: 1 to 502 bytes of UTF-8. Names of values and of locks never collide.
            ttl: seconds after the last write at which the value is forgotten; a year by default, ten years at most. Its
                versions begin again then, so it must be longer than any client keeps a version.

        Returns:
            The cell, to read and to write: a value has at most 64 KiB. Annotate it with its type of value:
            ``VersionedCell[int]``.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.VersionedCell(self._core.versioned(name, ttl=ttl))

    def once(
        self, key: str, *, ttl: Seconds, lease: Seconds = DEFAULT_LEASE, timeout: Seconds | None = None
    ) -> primitives.Once[Any]:
        """Make an object that does a piece of work once and keeps the result: for a message that is delivered twice.

        Args:
            key: what identifies the work, as the id of the message; 1 to 507 bytes of UTF-8.
            ttl: seconds for which the result (64 KiB at most) is kept: longer than the message may come again; ten
                years at most.
            lease: seconds after which another does the work if the worker has died.
            timeout: seconds to wait at most for another caller that does the work; None waits without end.

        Returns:
            The work, to run. Annotate it with its type of result: ``Once[str]``.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        return primitives.Once(self._core.once(key, ttl=ttl, lease=lease, timeout=timeout))

    def cached(
        self,
        key: str,
        ttl: primitives.TimeToLive[T],
        fetch: primitives.Fetch[T],
        *,
        early: Seconds | None = None,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> primitives.CachedValue[T]:
        """Make a value that one caller fetches and all use, in all processes: an access token, an exchange rate.

        Args:
            key: the value's name; 1 to 505 bytes of UTF-8.
            ttl: seconds for which a fetched value is good, or a function that reads them from the value; ten years at
                most.
            fetch: a function that returns a new value: what JSON can express, or bytes; 64 KiB at most.
            early: seconds before its end in which one caller renews it; None is a tenth of ``ttl``, 0 is never.
            lease: seconds after which another fetches if the caller that fetched has died.
            timeout: seconds to wait at most for another caller that fetches; None waits without end.

        Raises:
            ValueError, TypeError, Unsupported: a value is out of its bounds, or the store cannot promise it.
        """
        plain: Callable[[], Any] = fetch  # the asyncio twin is typed for coroutine functions, and runs both
        return primitives.CachedValue(self._core.cached(key, ttl, plain, early=early, lease=lease, timeout=timeout))

    def scheduled(
        self, name: str, *, at_least: Seconds | None = None, at_most: Seconds, ttl: Seconds = TICK_TTL
    ) -> primitives.Scheduled:
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
        return primitives.Scheduled(self._core.scheduled(name, at_least=at_least, at_most=at_most, ttl=ttl))
