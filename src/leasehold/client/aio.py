"""The asyncio client: one connection to one store, and a method for each primitive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Unpack

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._inspection import LockInfo
from leasehold._model import Finding, Kind, LockMode, ReleaseReason
from leasehold._runtimes import process
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Flavor, Runtime
from leasehold._validate import Meta, Seconds
from leasehold.events import Observer
from leasehold.observability.log import logged
from leasehold.primitives.calls.once import AsyncOnce
from leasehold.primitives.calls.scheduled import AsyncScheduled
from leasehold.primitives.calls.synchronized import AsyncSynchronized, Naming
from leasehold.primitives.coordination.barrier import AsyncBarrier
from leasehold.primitives.coordination.barrier_rounds import parties_of
from leasehold.primitives.coordination.election import AsyncElection
from leasehold.primitives.coordination.latch import DEFAULT_TTL as LATCH_TTL
from leasehold.primitives.coordination.latch import AsyncLatch
from leasehold.primitives.coordination.leadership import KIND
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.multi_lock import AsyncMultiLock
from leasehold.primitives.locks.multi_members import members_of
from leasehold.primitives.locks.mutex import AsyncMutex
from leasehold.primitives.locks.options import (
    DEFAULT_LEASE,
    LeaseOptions,
    LockOptions,
    Options,
    refuse_unknown,
)
from leasehold.primitives.locks.rlock import AsyncRLock, Reentries
from leasehold.primitives.locks.rw_entries import Entries, Role
from leasehold.primitives.locks.rw_lock import AsyncRWLock
from leasehold.primitives.locks.semaphore import AsyncSemaphore, permits_of
from leasehold.primitives.values.cached import AsyncCachedValue, TimeToLive
from leasehold.primitives.values.versioned import DEFAULT_TTL, AsyncVersionedCell
from leasehold.store_api import Opener, Store
from leasehold.stores import registry

RESPONSE_TIMEOUT = 5.0
"""Seconds after which a store that has not answered counts as unavailable."""

CLOSE_WITHIN = 2.0
"""Seconds that closing may take for what is still held and for the watchdog's end."""


class AsyncClient:
    """Locks in one store, for asyncio. One client serves any number of tasks of one event loop.

    Example:
        ```python
        async with AsyncClient.from_url("redis://localhost:6379") as locks:
            async with locks.lock("stock:42") as hold:
                await sell(42, fence=hold.token)
        ```

    """

    def __init__(
        self,
        store: Opener,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Make a client; nothing is sent before the first use.

        Args:
            store: what opens the store, as `from_url` and `from_client` make it.
            namespace: names of different namespaces never meet.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); must not block.
            runtime: the world to run in; asyncio unless a test says otherwise.

        """
        runtime = AsyncioRuntime() if runtime is None else runtime
        opened = store.open(runtime, _validate.name(namespace, "namespace"))
        self._engine = Engine(
            runtime,
            opened,
            response_timeout=_validate.above_zero(response_timeout, "response_timeout", _validate.LONGEST_ANSWER),
            observer=logged(observer),
        )
        self._reentries = Reentries()
        self._entries = Entries()
        self._usual: dict[bool, Options] = {}  # of locks without options, fair or not
        process.remember(self)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> AsyncClient:
        """Make a client for the store at ``url``.

        Args:
            url: for example ``redis://localhost:6379/0``; None takes ``LEASEHOLD_URL`` from the environment, and
                without it SQLite in the user's state folder, which needs no server.

        Raises:
            ValueError: the URL is malformed, or its scheme or an option of it is unknown.
            MissingDriver: the message says what to install.

        """
        hidden = registry.hide(url)
        del url  # it may have a password, and a traceback's reader may show local variables
        return cls(registry.opener(hidden), namespace=namespace, response_timeout=response_timeout, observer=observer)

    @classmethod
    def from_client(
        cls,
        client: object,
        *,
        strict: registry.Strict | None = None,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> AsyncClient:
        """Make a client that reaches the store as an asyncio client object of yours does: a ``redis.asyncio.Redis``.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.
        ``strict``: the options of strict mode, for clients of Redis, Sentinel and Cluster.
        """
        opener = registry.adopt(client, Flavor.ASYNC, strict=strict)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._engine.store

    @property
    def owner(self) -> str:
        """Who this client is to others: ``host:pid:client``."""
        return str(self._engine.owner)

    def lock(
        self,
        name: str,
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> AsyncLock:
        """Make an exclusive lock; it is not acquired yet.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            fair: nobody overtakes who came first, not even when a lease expired.
            options: those of `LockOptions`: ``lease``, the seconds for which the store keeps the lock without news of
                the holder (30); ``renew``, ``max_hold``, ``lock_delay``, ``timeout``, ``meta``.

        Raises:
            ValueError, TypeError: a value is out of its bounds, or there is no such option.
            Unsupported: the store cannot promise what is asked for.

        """
        return AsyncLock(self._engine, _validate.name(name), self._exclusive(bool(fair), options))

    def rlock(
        self,
        name: str,
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> AsyncRLock:
        """Make a lock that its holder (the asyncio task, or the thread) may acquire again. Arguments as for `lock`."""
        checked = self._exclusive(bool(fair), options)
        return AsyncRLock(self._engine, _validate.name(name), checked, self._reentries)

    def versioned(self, name: str, *, ttl: Seconds = DEFAULT_TTL) -> AsyncVersionedCell:
        """Make a value with a version, for compare-and-set: optimistic locking.

        Args:
            name: names of values and of locks never meet.
            ttl: seconds after which a value that nobody writes is forgotten; a year by default.

        """
        return AsyncVersionedCell(self._engine, name, ttl)

    def synchronized(
        self,
        name: Naming,
        *,
        hold: str | None = None,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> AsyncSynchronized:
        """Make a decorator: each call of the function runs under the `rlock` that its arguments name.

        Args:
            name: a format string over the arguments, as ``order:{order_id}`` or ``user:{order.user.id}``; or a function
                that is called with the arguments and returns the name.
            hold: the keyword-only argument of the function that gets the hold, for its token.
            fair: this and the others as for `lock`; after ``timeout`` the call raises `AcquireTimeout`.

        """
        checked = self._exclusive(bool(fair), options)
        return AsyncSynchronized(self._engine, name, hold, checked, self._reentries)

    def once(
        self, key: str, *, ttl: Seconds, lease: Seconds = DEFAULT_LEASE, timeout: Seconds | None = None
    ) -> AsyncOnce:
        """Make what does a piece of work once, and keeps its result: for a message that is delivered twice.

        Args:
            key: what tells the work apart, as the id of the message.
            ttl: seconds for which the result is kept: longer than the message may come again.
            lease: seconds after which another does the work if its doer has died.
            timeout: seconds to wait for another who is at it; None waits for ever.

        """
        return AsyncOnce(self._engine, key, ttl=ttl, lease=lease, timeout=timeout)

    def cached(
        self,
        key: str,
        ttl: TimeToLive,
        fetch: Callable[[], Any],
        *,
        early: Seconds | None = None,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> AsyncCachedValue:
        """Make a value that one caller fetches and all use, in all processes: an access token, a rate, a dear result.

        Args:
            key: the value's name.
            ttl: seconds for which a fetched value is good, or a function that reads them from the value.
            fetch: fetches a new one: what JSON can spell, or bytes.
            early: seconds before its end in which one caller renews it while the others use it; a tenth of ``ttl``
                unless given, 0 for never.
            lease: seconds after which another fetches if the one who did has died.
            timeout: seconds to wait for another who is fetching; None waits for ever.

        """
        return AsyncCachedValue(self._engine, key, ttl, fetch, early=early, lease=lease, timeout=timeout)

    def scheduled(self, name: str, *, at_least: Seconds, at_most: Seconds) -> AsyncScheduled:
        """Make a job of which each tick runs in one instance, whatever their number.

        Args:
            name: the job's name.
            at_least: seconds from the start of a run in which no other begins: more than the clocks of the instances
                differ, less than the time between two ticks.
            at_most: seconds after which a run has lost its right, and another may begin.

        """
        return AsyncScheduled(self._engine, name, at_least=at_least, at_most=at_most)

    def rw_lock(
        self,
        name: str,
        *,
        fair: bool = True,
        **options: Unpack[LockOptions],
    ) -> AsyncRWLock:
        """Make a read-write lock: many readers at a time, or one writer. Other arguments as for `lock`.

        Args:
            fair: readers and writers enter in order of arrival, readers that follow each other together; neither can
                starve. False lets readers pass writers who wait: fewer waits for readers, but writers wait for as long
                as readers keep coming.

        """
        checked = self._options(Role.READER.mode(fair=bool(fair)), options)
        return AsyncRWLock(self._engine, _validate.name(name), checked, self._entries)

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        fair: bool = True,
        **options: Unpack[LockOptions],
    ) -> AsyncSemaphore:
        """Make a semaphore: at most ``permits`` permits are out at a time. Other arguments as for `lock`.

        Args:
            permits: how many there are, from 1 to a million. All who use the name at the same time must say the same.
            fair: nobody overtakes who came first, so that a request for many permits is not starved by small ones.
                False lets a newcomer take what is left while a larger request waits.

        """
        mode = LockMode(Kind.SEMAPHORE, limit=permits_of(permits), fair=bool(fair))
        return AsyncSemaphore(self._engine, _validate.name(name), self._options(mode, options))

    def multi_lock(
        self,
        locks: Iterable[str | AsyncMutex | AsyncSemaphore],
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> AsyncMultiLock:
        """Make one of several locks, which are held all or none. Options as for `lock`; they are those of the names.

        Args:
            locks: names, and lock objects of this or other clients: ``lock``, ``rlock``, ``reader()`` and ``writer()``,
                semaphores and ``permits(n)``, each with its own options but the timeout. A name that is there twice is
                locked once. Everyone acquires in order of the names, so nobody waits in a circle.
            options: as for `lock`; ``timeout`` is for all together.

        """
        checked = self._exclusive(bool(fair), options)
        members = members_of(locks, lambda name: AsyncLock(self._engine, _validate.name(name), checked))
        return AsyncMultiLock(self._engine, members, checked)

    def election(
        self,
        name: str,
        value: Meta | None = None,
        *,
        fair: bool = False,
        **options: Unpack[LeaseOptions],
    ) -> AsyncElection:
        """Make one candidate, or observer, of an election: there is one leader at a time. Options as for `lock`.

        Args:
            name: names of elections and of locks never meet; people see it as ``election/NAME``.
            value: what this candidate says of itself when it leads, as its address: a text or a mapping, up to 1 KiB as
                JSON.
            fair: candidates lead in order of arrival, even where a leader died.

        """
        refuse_unknown(options, LeaseOptions)
        lock = _validate.name(f"{KIND}/{_validate.name(name)}")
        return AsyncElection(self._engine, lock, self._options(LockMode(fair=bool(fair)), {**options, "meta": value}))

    def latch(self, name: str, count: int, *, ttl: Seconds = LATCH_TTL) -> AsyncLatch:
        """Make a latch, which opens when ``count`` calls of `count_down` have been made, and stays open.

        Args:
            name: names of latches and of locks never meet. A latch is used once: take a name of its own for each run.
            count: from 1 to a million. All who use the name must say the same.
            ttl: seconds after the last count, after which it is forgotten, and so closed again; a week by default.

        """
        return AsyncLatch(self._engine, name, count, ttl)

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        drop_dead: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> AsyncBarrier:
        """Make a barrier, at which ``parties`` meet, go on together, and may leave together.

        Args:
            name: names of barriers and of locks never meet.
            parties: from 1 to 1000. All who use the name must say the same.
            drop_dead: a member that dies, fails or gives up is left out; otherwise it breaks the barrier.
            lease: seconds after which a dead member is noticed at the latest.
            timeout: seconds that each wait takes at most; None waits for ever.

        """
        mode = LockMode(Kind.SEMAPHORE, limit=parties_of(parties), fair=self._engine.store.capabilities.fair)
        checked = self._options(mode, {"lease": lease, "timeout": timeout})
        return AsyncBarrier(self._engine, _validate.name(name), checked, drop_dead=bool(drop_dead))

    async def holds(self, prefix: str = "") -> list[LockInfo]:
        """Show all names that begin with ``prefix`` and are held, waited for or kept free, in order of name."""
        self._engine.ready()
        views = await self._engine.store.inspect(prefix)
        return sorted((LockInfo.of(view) for view in views), key=lambda info: info.name)

    async def inspect(self, name: str) -> LockInfo | None:
        """Show who holds ``name`` and who waits for it; None if nobody does."""
        self._engine.ready()
        views = await self._engine.store.inspect(_validate.name(name), exact=True)
        return LockInfo.of(views[0]) if views else None

    async def force_release(self, name: str, token: int) -> bool:
        """Take ``name`` from the holder that has ``token``, and from nobody else.

        The holder is told at its next renewal, or when it looks; its ``lock_delay`` applies. The next holder has a
        higher token.

        Returns:
            Whether that holder was there.

        """
        self._engine.ready()
        for view in await self._engine.store.inspect(_validate.name(name), exact=True):
            for entry in view.holders:
                if entry.token == token:
                    within = self._engine.response_timeout
                    return await self._engine.store.release(
                        name, entry.ticket, reason=ReleaseReason.BREAK, within=within
                    )
        return False

    async def diagnose(self) -> list[Finding]:
        """Look at the store's settings and say what they mean for the promises, as ``leasehold doctor`` does."""
        self._engine.ready()
        return await self._engine.store.diagnose()

    async def close(self) -> None:
        """Release what is still held, end the watchdog, give back connections. Further calls do nothing."""
        await self._engine.close(CLOSE_WITHIN)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _options(self, mode: LockMode, options: LockOptions) -> Options:
        return Options.checked(self._engine, mode, options)

    def _exclusive(self, fair: bool, options: LockOptions) -> Options:
        """Check the options of a lock; those of one that is given none, as most are, are made once."""
        if options:
            return self._options(LockMode(fair=fair), options)
        usual = self._usual.get(fair)
        if usual is None:
            usual = self._usual[fair] = self._options(LockMode(fair=fair), options)
        return usual

    def _after_fork(self) -> None:
        self._usual.clear()  # they name the parent as the owner
        self._reentries.clear()
        self._entries.clear()
        self._engine.after_fork()

    def __repr__(self) -> str:
        engine = getattr(self, "_engine", None)  # not there yet in the traceback of a refused argument
        return f"<{type(self).__name__} {None if engine is None else engine.store!r}>"
