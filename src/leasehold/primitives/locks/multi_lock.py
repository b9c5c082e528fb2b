"""Several locks at once, all or none: `AsyncMultiLock` and its sync facade `MultiLock`.

Theory of operation
-------------------
Whoever holds some and waits for more can be part of a circle. So the locks are taken in one order, that of their names,
by everyone, and no two of them have the same name: who holds one waits only for names that come later, and a circle
would need a name that comes after itself. The name alone is enough, whatever the stores are and however their
addresses are spelled; two locks of the same name in different stores are never in one multi-lock.

What can be had is taken and kept while the next one is waited for. The other way, to give everything back and try again
when all might be free, keeps nobody from a name that is not worked with yet; but it needs luck, and the more names one
asks for, the longer it may fail while others pass. Here each wait is one ordinary place in one queue: nobody starves,
and the wait is at most the sum of the holders' times. Who tries only, with ``timeout=0``, takes all or nothing.

Names that follow each other in the order and live in one store that can do so (`Capabilities.together`) are claimed in
one request, up to the first that is taken; that one is waited for, then come the others. Until all are held, each is
renewed, even where the lease is fixed: that begins when all are held. One that is lost meanwhile costs nothing
but time: all are given back, and it begins again.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from leasehold._engine.acquire import acquire
from leasehold._engine.batch import AT_ONCE, Batch
from leasehold._engine.engine import Engine
from leasehold._engine.request import AcquireRequest, NotAcquired
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold._validate import Seconds
from leasehold.errors import LeaseLost
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.multi_hold import AsyncMultiHold, MultiHold, Part, leave_parts, renew_all
from leasehold.primitives.locks.mutex import AsyncMutex, Mutex
from leasehold.primitives.locks.options import Options


@dataclass(slots=True)
class Course:
    """One acquire on its way.

    Attributes:
        until: boot-time clock at which it gives up.
        waits: whether it waits at all.
        parts: what it has so far.
        handles: what keeps the leases of these alive.

    """

    start: float
    until: float
    waits: bool
    parts: list[Part] = field(default_factory=list[Part])
    handles: list[object] = field(default_factory=list[object])

    def add(self, part: Part, handle: object) -> None:
        """Take note of another that is held."""
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
        self._members = members  # in order of their names, which are all different

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return tuple(member.name for member in self._members)

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> AsyncMultiHold | None:
        """Get all of them, or None and none.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most, for all together; None takes its own ``timeout``, -1 waits for ever, 0
                tries once.

        Returns:
            The hold; None if someone else had one of them all that time.

        Raises:
            StoreUnavailable: nobody knows who has one of them. What was had is given back.
            LeaseLost: they were granted after its deadline.
            NameInUse: a name is in use as another primitive.

        """
        return cast("AsyncMultiHold | None", await super().acquire(blocking, timeout))

    async def locked(self) -> bool:
        """Return whether one of them cannot be had now.

        Raises:
            NameInUse: a name is in use as another primitive.

        """
        for member in self._members:
            if await member.locked():
                return True
        return False

    def __aenter__(self) -> Coroutine[Any, Any, AsyncMultiHold]:
        return self._enter(opened(self))

    async def _enter(self, block: Block | None) -> AsyncMultiHold:
        return cast(AsyncMultiHold, await super()._enter(block))

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        for engine in {member._engine for member in self._members}:
            engine.ready()
        runtime = self._engine.runtime
        start, caller = runtime.now(), runtime.me()
        course = Course(start, float("inf") if limit is None else start + limit, limit != 0)
        while True:
            not_acquired = await self._run(course)
            if not_acquired is not None:
                return replace(not_acquired, waited=runtime.now() - start)
            late = next((part.lease for part in course.parts if not part.lease.check_deadline()), None)
            if late is None:
                hold = self._hold_of(course)
                self._hold_list.add(caller, hold)
                return hold
            await self._give_back(course)
            if runtime.now() >= course.until:
                raise late.error()

    def _hold_of(self, course: Course) -> AsyncMultiHold:
        runtime, parts = self._engine.runtime, tuple(course.parts)
        for part in parts:
            if part.hold is None:
                part.lease.lock_object = self._hold_list.ref
            else:
                part.hold._hold_list = self._hold_list.ref

        async def leave(hold: AsyncHold) -> bool:
            return await runtime.shield(leave_parts(parts))

        return AsyncMultiHold(self._engine, parts, tuple(course.handles), leave, self._hold_list.ref)

    async def _run(self, course: Course) -> NotAcquired | None:
        """Get all that are left; give everything back if that fails, or is cut off at whatever point."""
        try:
            while len(course.parts) < len(self._members):
                not_acquired = await self._next(course)
                if not_acquired is not None:
                    await self._give_back(course)
                    return not_acquired
            await self._begin(course.parts)
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            for part in course.parts:
                part.engine.begin_release(part.lease)
            raise
        except BaseException:
            await self._give_back(course)
            raise
        return None

    async def _next(self, course: Course) -> NotAcquired | None:
        """Claim as many as can be had at once; wait for the first that cannot."""
        done, now = len(course.parts), self._engine.runtime.now()
        some = self._one_request(done)
        if len(some) > 1:
            batch = Batch(some[0]._engine, [(member.name, member._options.terms) for member in some])
            for handle in await batch.run(keep=course.waits, patience=max(0.0, course.until - now)):
                course.add(Part(some[0]._engine, handle.lease), handle)
            if len(course.parts) == done + len(some):
                return None
            if batch.late is not None and not course.waits:
                raise batch.late.error()
            if not course.waits:
                return NotAcquired(0.0, batch.held_by)
        return await self._wait_for(self._members[len(course.parts)], course)

    def _one_request(self, start: int) -> Sequence[AsyncMutex]:
        first = self._members[start]._engine
        end = start
        while end < len(self._members) and _is_direct(self._members[end]) and self._members[end]._engine is first:
            end += 1
        return self._members[start : min(end, start + AT_ONCE)] if first.store.capabilities.together else ()

    async def _wait_for(self, member: AsyncMutex, course: Course) -> NotAcquired | None:
        left = max(0.0, course.until - self._engine.runtime.now())
        engine = member._engine
        if not _is_direct(member):
            hold = await member._acquire(True, -1 if left == float("inf") else left)
            if isinstance(hold, NotAcquired):
                return hold
            course.add(Part(engine, hold._lease, hold), hold._handle)
            hold._handle = None
            return None
        timeout = None if left == float("inf") else left
        handle = await acquire(engine, AcquireRequest(member.name, member._options.terms, join=course.waits), timeout)
        if isinstance(handle, NotAcquired):
            return handle
        course.add(Part(engine, handle.lease), handle)
        return None

    async def _begin(self, parts: Sequence[Part]) -> None:
        """Let the leases run as they were asked for, now that all are held."""
        now, fixed = self._engine.runtime.now(), list[Part]()
        for part, member in zip(parts, self._members, strict=True):
            if part.hold is not None:
                continue
            part.lease.renew, most = member._options.renew, member._options.max_hold
            part.lease.max_hold = None if most is None else now - part.lease.since + most
            if not part.lease.renew:
                part.engine.watchdog.granted(part.lease)
                fixed.append(part)
        if len({part.lease.confirmed for part in parts}) > 1:  # they did not come in one answer
            try:
                await renew_all(fixed)
            except LeaseLost:  # who looks next finds it, and begins again
                pass

    async def _give_back(self, course: Course) -> None:
        leaving, course.parts = course.parts, []  # first: what cuts this off must not do it again
        try:
            await self._engine.runtime.shield(leave_parts(leaving))
        except LeaseLost:  # then it needs no release
            pass
        course.handles.clear()


def _is_direct(member: AsyncMutex) -> bool:
    """Say whether to hold it is to hold one lease that it counts for nobody: not so where it is re-entrant."""
    return isinstance(member, AsyncLock)


class MultiLock(Mutex):
    """Several locks, all or none, under one deadline.

    Example:
        ```python
        with client.multi_lock(["account:7", "account:9"]) as hold:
            print(hold.tokens)
        ```

    """

    def __init__(self, core: AsyncMultiLock) -> None:
        super().__init__(core)
        self._several = core

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they are acquired."""
        return self._several.names

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> MultiHold | None:
        """Get all of them, or None and none. As `AsyncMultiLock.acquire`."""
        return self._acquired(run_sync(self._several._acquire(blocking, timeout)), MultiHold)

    def __enter__(self) -> MultiHold:
        return MultiHold(run_sync(self._several._enter(opened(self))))
