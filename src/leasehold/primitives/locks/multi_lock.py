"""Several locks at once, all or none: `AsyncMultiLock` and its sync facade `MultiLock`.

Theory of operation
-------------------
A client that holds some locks and waits for others can deadlock. So every client acquires the locks in one order, that
of their names, and no two locks of a multi-lock have the same name. A holder waits only for later names; a deadlock
would need a name that comes after itself. The name alone decides, whatever the stores are and however their addresses
are written: two locks of the same name in different stores are never in one multi-lock.

A free lock is acquired and held while the client waits for the next one. The alternative is to release everything and
retry when all might be free. It blocks no name that is not in use yet, but it depends on chance: the more names, the
longer it may fail while others succeed. Here each wait is one ordinary entry in one queue. So no client starves, and
the wait is at most the sum of the holders' times. With ``timeout=0`` it acquires all or nothing.

Consecutive names of one store that supports it (`Capabilities.batches`) are acquired in one request, up to the first
that is taken. The client waits for that one, then continues. Until all are held, each lease is renewed, even a fixed
one: its time begins when all are held. If one is lost meanwhile, all are released, and the acquire starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, cast

from leasehold._engine.batch import Batch
from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import acquire
from leasehold._engine.releases import AT_ONCE
from leasehold._model import AcquireRequest, Kind, NotAcquired
from leasehold._runtimes.base import Caller, run_sync
from leasehold._runtimes.blocks import opened
from leasehold._validate import Seconds
from leasehold.errors import LeaseLost
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncLock, AsyncMutex, Mutex
from leasehold.primitives.locks.multi_hold import AsyncMultiHold, MultiHold, Part, leave_parts, renew_all
from leasehold.primitives.locks.options import Cancellation, Options, checked
from leasehold.primitives.locks.rlock import AsyncReentrant
from leasehold.primitives.locks.semaphore import AsyncSemaphore, Semaphore


@dataclass(slots=True)
class Progress:
    """The state of one acquire.

    Attributes:
        until: boot-time clock at which it gives up.
        waits: whether it waits at all.
        cancel: cancels it from another thread, task or signal handler.
        parts: the locks that it holds so far.
        handles: the objects that keep their leases alive.
    """

    until: float
    waits: bool
    cancel: Cancellation | None = None
    parts: list[Part] = field(default_factory=list[Part])
    handles: list[object] = field(default_factory=list[object])

    def add(self, part: Part, handle: object) -> None:
        """Add a lock that is held now."""
        self.handles.append(handle)
        self.parts.append(part)


class AsyncMultiLock(AsyncLock):
    """Several locks, all or none, under one deadline.

    Example:
        ```python
        async with client.multi_lock(["account:7", "account:9"]) as hold:
            print(hold.tokens)
        ```
    """

    def __init__(self, engine: Engine, members: Sequence[AsyncMutex], options: Options) -> None:
        super().__init__(engine, " + ".join(member.name for member in members), options)
        self._be_shared()
        self._members = members  # in order of their names, which are all different

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return tuple(member.name for member in self._members)

    async def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncMultiHold | None:
        """Acquire all of them, or none and return None.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most, for all together; None takes its own ``timeout``, -1 waits for ever, 0
                tries once.
            cancel: ends the wait from another thread, task or signal handler.

        Returns:
            The hold; None if one of them was held by others all that time, or the wait was cancelled.

        Raises:
            StoreUnavailable: the holder of one of them is unknown. All others are released. With a timeout, it is
                raised at most two seconds after it, and the releases may take as long again.
            LeaseLost: they were granted after their deadlines, or an earlier hold of a re-entrant one was lost.
            NameInUse, Unsupported, ValueError, TypeError, RuntimeError: as `AsyncLock.acquire`.
        """
        return cast("AsyncMultiHold | None", await super().acquire(blocking, timeout, cancel))

    async def locked(self) -> bool:
        """Return whether one of them is held now.

        Raises:
            StoreUnavailable: a store did not answer.
            NameInUse: a name is in use as another primitive.
        """
        for member in self._members:
            if await member.locked():
                return True
        return False

    def __aenter__(self) -> Coroutine[Any, Any, AsyncMultiHold]:
        return cast("Coroutine[Any, Any, AsyncMultiHold]", self._enter(opened(self)))

    async def _acquiring(
        self, blocking: bool, timeout: Seconds | None, cancel: Cancellation | None = None
    ) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        for engine in {member._engine for member in self._members}:
            engine.ready()
        runtime = self._engine.runtime
        start, caller = runtime.now(), runtime.me()
        progress = Progress(float("inf") if limit is None else start + limit, limit != 0, checked(cancel))
        while True:
            not_acquired = await self._run(progress)
            if not_acquired is not None:
                return replace(not_acquired, waited=runtime.now() - start)
            late = next((part.lease for part in progress.parts if not part.lease.check_deadline()), None)
            if late is None:
                hold = self._hold_of(progress, caller)
                self._hold_list.add(caller, hold)
                return hold
            await self._release_all(progress)
            if runtime.now() >= progress.until:
                raise late.error()

    def _taken(self, got: Any) -> AsyncHold:
        hold: AsyncHold = got
        return hold

    def _hold_of(self, progress: Progress, caller: Caller) -> AsyncMultiHold:
        runtime, parts = self._engine.runtime, tuple(progress.parts)
        for part in parts:
            if part.hold is None:
                part.lease.lock_object, part.lease.entry = self._hold_list.ref, caller
            else:
                part.hold._hold_list = self._hold_list.ref

        async def leave(hold: AsyncHold) -> bool:
            return await runtime.shield(leave_parts(parts))

        return AsyncMultiHold(self._engine, parts, tuple(progress.handles), leave, self._hold_list.ref)

    async def _run(self, progress: Progress) -> NotAcquired | None:
        """Acquire the remaining locks; release everything if that fails or is interrupted at any point."""
        try:
            while len(progress.parts) < len(self._members):
                not_acquired = await self._next(progress)
                if not_acquired is not None:
                    await self._release_all(progress)
                    return not_acquired
            await self._begin(progress.parts)
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            for part in progress.parts:
                part.engine.begin_release(part.lease)
            raise
        except BaseException:
            await self._release_all(progress)
            raise
        return None

    async def _next(self, progress: Progress) -> NotAcquired | None:
        """Acquire as many as are free at once; wait for the first that is taken."""
        if progress.cancel is not None and progress.cancel.cancelled:
            return NotAcquired(0.0, None)
        done, now = len(progress.parts), self._engine.runtime.now()
        some = self._one_request(done)
        if len(some) > 1:
            wanted = [(member.name, member._options.terms) for member in some]
            batch = Batch(some[0]._engine, wanted, progress.cancel)
            for handle in await batch.run(keep=progress.waits, patience=max(0.0, progress.until - now)):
                progress.add(Part(some[0]._engine, handle.lease), handle)
            if len(progress.parts) == done + len(some):
                return None
            if batch.late is not None and not progress.waits:
                raise batch.late.error()
            if not progress.waits:
                return NotAcquired(0.0, batch.held_by)
        return await self._wait_for(self._members[len(progress.parts)], progress)

    def _one_request(self, start: int) -> Sequence[AsyncMutex]:
        """Return the members from ``start`` on that are acquired in one request to one store."""
        engine, some = self._members[start]._engine, self._members[start : start + AT_ONCE]
        if not engine.store.capabilities.batches:
            return ()
        return list(takewhile(lambda member: isinstance(member, AsyncLock) and member._engine is engine, some))

    async def _wait_for(self, member: AsyncMutex, progress: Progress) -> NotAcquired | None:
        left = max(0.0, progress.until - self._engine.runtime.now())
        engine, timeout = member._engine, None if left == float("inf") else left
        terms, nested = member._options.terms, member._request.nested
        request = AcquireRequest(member.name, terms, join=progress.waits, nested=nested)  # renewed until all are held
        if isinstance(member, AsyncReentrant):  # it counts its holds itself
            caller = engine.runtime.me()
            before = [entry.lease for entry in member._entries.of(member.name, caller, member._roles).values()]
            hold = await member._acquire_for(caller, timeout, progress.cancel, request)
            if isinstance(hold, NotAcquired):
                return hold
            progress.add(Part(engine, hold._lease, hold, reenters=hold._lease in before), hold._handle)
            hold._handle = None
            return None
        handle = await acquire(engine, request, timeout, progress.cancel)
        if isinstance(handle, NotAcquired):
            return handle
        progress.add(Part(engine, handle.lease), handle)
        return None

    async def _begin(self, parts: Sequence[Part]) -> None:
        """Apply the requested lease options, now that all are held."""
        now, fixed = self._engine.runtime.now(), list[Part]()
        for part, member in zip(parts, self._members, strict=True):
            if part.reenters:
                continue
            part.lease.renew, most = member._options.renew, member._options.max_hold
            part.lease.max_hold = None if most is None else now - part.lease.since + most
            if not part.lease.renew:
                part.engine.watchdog.granted(part.lease)
                fixed.append(part)
        if len({part.lease.since for part in parts}) > 1:  # they were not granted in one reply
            try:
                await renew_all(fixed)
            except LeaseLost:  # the caller checks the deadlines next, and starts again
                pass

    async def _release_all(self, progress: Progress) -> None:
        leaving, progress.parts = progress.parts, []  # first: an interrupt of the release must not cause a second one
        try:
            await self._engine.runtime.shield(leave_parts(leaving))
        except LeaseLost:  # a lost lease needs no release
            pass
        progress.handles.clear()


class MultiLock(Mutex):
    """Several locks, all or none, under one deadline.

    Example:
        ```python
        with client.multi_lock(["account:7", "account:9"]) as hold:
            print(hold.tokens)
        ```
    """

    _core: AsyncMultiLock

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return self._core.names

    def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> MultiHold | None:
        """Acquire all of them, or none and return None. As `AsyncMultiLock.acquire`."""
        return self._acquired(run_sync(self._core._acquire(blocking, timeout, cancel)), MultiHold)

    def __enter__(self) -> MultiHold:
        return MultiHold(run_sync(self._core._enter(opened(self))))


def members_of(
    locks: Iterable[str | AsyncMutex | AsyncSemaphore], named: Callable[[str], AsyncLock]
) -> tuple[AsyncMutex, ...]:
    """Return the locks in order of their names; ``named`` makes one of a name.

    Raises:
        TypeError: something is neither a name nor a lock of the same flavor.
        ValueError: there is none, or two different ones have the same name.
    """
    require_list(locks)
    members: dict[str, AsyncMutex] = {}
    for item in locks:
        for member in _spread(item, named):
            other = members.setdefault(member.name, member)
            if not _same(member, other):
                raise ValueError(
                    f"multi_lock got two different locks named {member.name!r}; it takes each name once, as one thing "
                    "of one client (for several permits: semaphore.permits(n))"
                )
    if not members:
        raise ValueError("multi_lock got no names")
    return tuple(members[name] for name in sorted(members))


def _spread(item: object, named: Callable[[str], AsyncLock]) -> tuple[AsyncMutex, ...]:
    if isinstance(item, str):
        return (named(item),)
    if isinstance(item, AsyncMultiLock):
        return tuple(item._members)
    if isinstance(item, AsyncSemaphore):
        return (item.permits(1),)
    if isinstance(item, AsyncMutex):
        return (item,)
    raise TypeError(
        "multi_lock takes names, and locks of clients of the same flavor (of an RWLock its reader() or writer()), "
        f"not {item!r}"
    )


def _same(one: AsyncMutex, other: AsyncMutex) -> bool:
    """Return whether two members are the same lock: an item that is listed twice is acquired once."""
    if one is other:
        return True
    mine, theirs = one._options.terms.mode, other._options.terms.mode
    alike = type(one) is type(other) and one._engine is other._engine and mine == theirs
    return alike and mine.kind is not Kind.SEMAPHORE


def cores_of(locks: Iterable[str | Mutex | Semaphore]) -> list[str | AsyncMutex | AsyncSemaphore]:
    """Return the async cores of sync locks, for `members_of`."""
    require_list(locks)
    return [_core(item) for item in locks]


def require_list(locks: object) -> None:
    """Raise TypeError for one name where a list is expected: its letters would become names."""
    if isinstance(locks, str | bytes) or not isinstance(locks, Iterable):
        raise TypeError(f"multi_lock takes a list of names or locks, not {locks!r}; for one name write [name]")


def _core(item: Any) -> Any:
    if isinstance(item, Mutex | Semaphore):
        return item._core
    if isinstance(item, AsyncMutex | AsyncSemaphore):
        raise TypeError(f"{item!r} is a lock of an AsyncClient, and this client blocks")
    return item
