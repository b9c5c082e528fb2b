"""The blocking client: the same methods, over the same algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Unpack

from leasehold._inspection import LockInfo
from leasehold._model import Finding
from leasehold._runtimes import process
from leasehold._runtimes.base import Flavor, run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._validate import Meta, Seconds
from leasehold.client.aio import RESPONSE_TIMEOUT, AsyncClient
from leasehold.events import Observer
from leasehold.primitives.calls.once import Once
from leasehold.primitives.calls.scheduled import Scheduled
from leasehold.primitives.calls.synchronized import Naming, Synchronized
from leasehold.primitives.coordination.barrier import Barrier
from leasehold.primitives.coordination.election import Election
from leasehold.primitives.coordination.latch import DEFAULT_TTL as LATCH_TTL
from leasehold.primitives.coordination.latch import Latch
from leasehold.primitives.locks.lock import Lock
from leasehold.primitives.locks.multi_lock import MultiLock
from leasehold.primitives.locks.multi_members import cores_of
from leasehold.primitives.locks.mutex import Mutex
from leasehold.primitives.locks.options import DEFAULT_LEASE, LeaseOptions, LockOptions
from leasehold.primitives.locks.rlock import RLock
from leasehold.primitives.locks.rw_lock import RWLock
from leasehold.primitives.locks.semaphore import Semaphore
from leasehold.primitives.values.cached import CachedValue, TimeToLive
from leasehold.primitives.values.versioned import DEFAULT_TTL, VersionedCell
from leasehold.store_api import Opener, Store
from leasehold.stores import registry


class Client:
    """Locks in one store, for threads. One client serves any number of threads, and a fork.

    Example:
        ```python
        with Client.from_url("redis://localhost:6379") as locks:
            with locks.lock("stock:42") as hold:
                sell(42, fence=hold.token)
        ```

    """

    def __init__(
        self,
        store: Opener,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> None:
        """Make a client; nothing is sent before the first use. Arguments as for `AsyncClient`."""
        self._core = AsyncClient(
            store,
            namespace=namespace,
            response_timeout=response_timeout,
            observer=observer,
            runtime=BlockingRuntime(),
        )
        process.close_at_exit(self)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> Client:
        """Make a client for the store at ``url``. As `AsyncClient.from_url`."""
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
    ) -> Client:
        """Make a client that reaches the store as a blocking client object of yours does, for example ``redis.Redis``.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.
        ``strict``: the options of strict mode, for clients of Redis, Sentinel and Cluster.
        """
        opener = registry.adopt(client, Flavor.SYNC, strict=strict)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._core.store

    @property
    def owner(self) -> str:
        """Who this client is to others: ``host:pid:client``."""
        return self._core.owner

    def lock(
        self,
        name: str,
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> Lock:
        """Make an exclusive lock; it is not acquired yet. Arguments as for `AsyncClient.lock`."""
        return Lock(self._core.lock(name, fair=fair, **options))

    def rlock(
        self,
        name: str,
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> RLock:
        """Make a lock that its holder (the thread) may acquire again. Arguments as for `AsyncClient.lock`."""
        return RLock(self._core.rlock(name, fair=fair, **options))

    def versioned(self, name: str, *, ttl: Seconds = DEFAULT_TTL) -> VersionedCell:
        """Make a value with a version, for compare-and-set. Arguments as for `AsyncClient.versioned`."""
        return VersionedCell(self._core.versioned(name, ttl=ttl))

    def synchronized(
        self,
        name: Naming,
        *,
        hold: str | None = None,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> Synchronized:
        """Make a decorator: each call runs under the `rlock` that its arguments name. As `AsyncClient.synchronized`."""
        return Synchronized(self._core.synchronized(name, hold=hold, fair=fair, **options))

    def once(self, key: str, *, ttl: Seconds, lease: Seconds = DEFAULT_LEASE, timeout: Seconds | None = None) -> Once:
        """Make what does a piece of work once, and keeps its result. Arguments as for `AsyncClient.once`."""
        return Once(self._core.once(key, ttl=ttl, lease=lease, timeout=timeout))

    def cached(
        self,
        key: str,
        ttl: TimeToLive,
        fetch: Callable[[], Any],
        *,
        early: Seconds | None = None,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> CachedValue:
        """Make a value that one caller fetches and all use, in all processes. Arguments as for `AsyncClient.shared`."""
        return CachedValue(self._core.cached(key, ttl, fetch, early=early, lease=lease, timeout=timeout))

    def scheduled(self, name: str, *, at_least: Seconds, at_most: Seconds) -> Scheduled:
        """Make a job of which each tick runs in one instance. Arguments as for `AsyncClient.scheduled`."""
        return Scheduled(self._core.scheduled(name, at_least=at_least, at_most=at_most))

    def rw_lock(
        self,
        name: str,
        *,
        fair: bool = True,
        **options: Unpack[LockOptions],
    ) -> RWLock:
        """Make a read-write lock: many readers at a time, or one writer. Arguments as for `AsyncClient.rw_lock`."""
        return RWLock(self._core.rw_lock(name, fair=fair, **options))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        fair: bool = True,
        **options: Unpack[LockOptions],
    ) -> Semaphore:
        """Make a semaphore: at most ``permits`` permits are out at a time. Arguments as for `AsyncClient.semaphore`."""
        return Semaphore(self._core.semaphore(name, permits, fair=fair, **options))

    def multi_lock(
        self,
        locks: Iterable[str | Mutex | Semaphore],
        *,
        fair: bool = False,
        **options: Unpack[LockOptions],
    ) -> MultiLock:
        """Make one of several locks, which are held all or none. Arguments as for `AsyncClient.multi_lock`."""
        return MultiLock(self._core.multi_lock(cores_of(locks), fair=fair, **options))

    def election(
        self,
        name: str,
        value: Meta | None = None,
        *,
        fair: bool = False,
        **options: Unpack[LeaseOptions],
    ) -> Election:
        """Make one candidate, or observer, of an election. Arguments as for `AsyncClient.election`."""
        return Election(self._core.election(name, value, fair=fair, **options))

    def latch(self, name: str, count: int, *, ttl: Seconds = LATCH_TTL) -> Latch:
        """Make a latch, which opens when ``count`` have counted, and stays open. As `AsyncClient.latch`."""
        return Latch(self._core.latch(name, count, ttl=ttl))

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        drop_dead: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        timeout: Seconds | None = None,
    ) -> Barrier:
        """Make a barrier, at which ``parties`` meet and go on together. Arguments as for `AsyncClient.barrier`."""
        return Barrier(self._core.barrier(name, parties, drop_dead=drop_dead, lease=lease, timeout=timeout))

    def holds(self, prefix: str = "") -> list[LockInfo]:
        """Show all names that begin with ``prefix`` and are held, waited for or kept free, in order of name."""
        return run_sync(self._core.holds(prefix))

    def inspect(self, name: str) -> LockInfo | None:
        """Show who holds ``name`` and who waits for it; None if nobody does."""
        return run_sync(self._core.inspect(name))

    def force_release(self, name: str, token: int) -> bool:
        """Take ``name`` from the holder that has ``token``, and from nobody else. As `AsyncClient.force_release`."""
        return run_sync(self._core.force_release(name, token))

    def diagnose(self) -> list[Finding]:
        """Look at the store's settings and say what they mean for the promises, as ``leasehold doctor`` does."""
        return run_sync(self._core.diagnose())

    def close(self) -> None:
        """Release what is still held, end the watchdog, give back connections. Further calls do nothing."""
        run_sync(self._core.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(getattr(self, "_core", None)).replace("<AsyncClient", "<Client", 1)
