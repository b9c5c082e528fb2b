"""The read-write lock: many readers, or one writer. `AsyncRWLock`, its sides, and their sync facade."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.request import NotAcquired
from leasehold._rules import conflicts
from leasehold._runtimes.base import Caller, run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold._validate import Seconds
from leasehold.primitives.locks.hold import AsyncHold, Hold, Leave
from leasehold.primitives.locks.hold_list import HoldList
from leasehold.primitives.locks.holders import held_modes
from leasehold.primitives.locks.mutex import AsyncMutex, Mutex
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.rw_entries import Entries, Role, RoleEntry, alongside, same_entry

Upgrade = Callable[[Seconds | None], Awaitable[AsyncHold | NotAcquired]]
"""Acquires the writer's side alongside an upgradeable entry, for the caller of that entry."""


class AsyncSide(AsyncMutex):
    """The reader's or the writer's side of a read-write lock, used like a lock.

    It belongs to the task that acquired it, across all objects of one client with the same name, and may be acquired
    again by that task. Lease and other options are those of the outermost acquire. A writer may also read.

    Raises:
        RuntimeError: by acquire, when a task that reads wants to write: it could deadlock.

    """

    def __init__(self, engine: Engine, name: str, options: Options, entries: Entries, role: Role) -> None:
        mode = role.mode(fair=options.terms.mode.fair)
        super().__init__(engine, name, replace(options, terms=replace(options.terms, mode=mode)))
        self._entries = entries
        self._role = role

    async def locked(self) -> bool:
        """Return whether somebody holds the lock in a way that excludes this side.

        Raises:
            NameInUse: the name is in use as another primitive.

        """
        mode = self._options.terms.mode
        return conflicts(mode, await held_modes(self._engine, self.name, mode))

    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        return await self._take(self._engine.runtime.me(), limit)

    async def _take(self, caller: Caller, limit: float | None) -> AsyncHold | NotAcquired:
        mine = self._entries.of(self.name, caller.key)
        for one in mine.values():
            self._refuse_lost(one)
        entry = same_entry(self._role, mine)
        if entry is None:
            base = alongside(self.name, self._role, mine)
            handle = await self._lease(limit, "" if base is None else base.lease.ticket.id)
            if isinstance(handle, NotAcquired):
                return handle
            await self._check_base(base, handle.lease)
            entry = RoleEntry(self._role, handle.lease, caller)
            self._entries.add(self.name, entry)
        else:
            handle = entry.handle()
        return self._hold_in(entry, handle)

    def _hold_in(self, entry: RoleEntry, handle: LeaseHandle) -> AsyncHold:
        hold = self._hold(entry, handle)
        entry.add(hold, self._role)
        self._hold_list.add(entry.caller, hold)
        return hold

    def _refuse_lost(self, entry: RoleEntry) -> None:
        if not entry.lease.check_deadline():
            self._entries.drop(self.name, entry)
            raise entry.lease.error()

    async def _check_base(self, base: RoleEntry | None, lease: Lease) -> None:
        """Release the lease if the entry alongside which it was acquired was lost: a writer may have held meanwhile."""
        if base is not None and not base.lease.check_deadline():
            await self._engine.release(lease)
            raise base.lease.error()

    def _hold(self, entry: RoleEntry, handle: LeaseHandle) -> AsyncHold:
        return AsyncHold(self._engine, handle.lease, self._leaver(entry), self._hold_list.ref)

    def _leaver(self, entry: RoleEntry) -> Leave:
        engine, entries = self._engine, self._entries  # not the lock object, which may refer to the hold

        async def leave(hold: AsyncHold) -> bool:
            if entry.remove(hold):
                if not entry.lease.check_deadline():
                    raise entry.lease.error()
                return True
            entries.drop(entry.lease.name, entry)
            return await engine.release(entry.lease)

        return leave

    def _last(self, caller: Caller) -> AsyncHold | None:
        entry = same_entry(self._role, self._entries.of(self.name, caller.key))
        there, hold = (False, None) if entry is None else entry.last(self._role)
        if entry is not None and there and hold is None:  # the hold was dropped: release it through a new one
            hold = self._hold_in(entry, entry.handle())
            entry.remove(None, self._role)
        return hold


class AsyncUpgradeableHold(AsyncHold):
    """A reader's hold that may become the writer's."""

    __slots__ = ("_upgrade",)

    def __init__(
        self, engine: Engine, lease: Lease, leave: Leave, hold_list: Callable[[], HoldList | None], upgrade: Upgrade
    ) -> None:
        super().__init__(engine, lease, leave, hold_list)
        self._upgrade = upgrade

    async def upgrade(self, timeout: Seconds | None = None) -> AsyncHold | None:
        """Become the writer: wait until the present readers release; nobody else writes before.

        This hold stays until it is released: releasing the writer's hold leads back to reading.

        Args:
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.

        Returns:
            The writer's hold, with a token of its own; None if somebody read all that time.

        Raises:
            LeaseLost: this hold was lost before or meanwhile, so another may have written.
            NotHeld: it was released.
            StoreUnavailable: nobody knows whether it may write. This hold goes on.

        """
        self._engine.ready()
        self.raise_if_lost()
        got = await self._upgrade(timeout)
        if isinstance(got, NotAcquired):
            self.raise_if_lost()
            return None
        return got


class AsyncUpgradeable(AsyncSide):
    """The side of a reader that may become the writer. There is one such reader at a time, beside plain readers."""

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> AsyncUpgradeableHold | None:
        """Get the lock, or None. As `AsyncLock.acquire`."""
        got = await super().acquire(blocking, timeout)
        assert got is None or isinstance(got, AsyncUpgradeableHold)
        return got

    def __aenter__(self) -> Coroutine[Any, Any, AsyncUpgradeableHold]:
        return self._enter(opened(self))

    async def _enter(self, block: Block | None) -> AsyncUpgradeableHold:
        return cast(AsyncUpgradeableHold, await super()._enter(block))

    def _hold(self, entry: RoleEntry, handle: LeaseHandle) -> AsyncHold:
        writer = AsyncSide(self._engine, self.name, self._options, self._entries, Role.WRITER)

        async def upgrade(timeout: Seconds | None) -> AsyncHold | NotAcquired:
            # Not for the calling task: the hold may have been passed to one that has no entry here.
            return await writer._take(entry.caller, writer._limit(True, timeout))

        return AsyncUpgradeableHold(self._engine, handle.lease, self._leaver(entry), self._hold_list.ref, upgrade)


class AsyncRWLock:
    """A read-write lock: readers hold it together, a writer alone.

    Example:
        ```python
        stock = client.rw_lock("stock")
        async with stock.reader():
            print("others may read now")
        async with stock.writer() as hold:
            await sell(42, fence=hold.token)
        async with stock.upgradeable() as hold:
            print("others may read now, and nobody writes before us")
            writing = await hold.upgrade(timeout=10)
            if writing is not None:
                async with writing:
                    await sell(42, fence=writing.token)
        ```

    """

    def __init__(self, engine: Engine, name: str, options: Options, entries: Entries) -> None:
        self._engine = engine
        self._options = options
        self._entries = entries
        self._name = name

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    def reader(self) -> AsyncSide:
        """Return the side that others may hold at the same time, if they read too."""
        return AsyncSide(self._engine, self._name, self._options, self._entries, Role.READER)

    def writer(self) -> AsyncSide:
        """Return the side that one holds alone."""
        return AsyncSide(self._engine, self._name, self._options, self._entries, Role.WRITER)

    def upgradeable(self) -> AsyncUpgradeable:
        """Return the side of a reader that may become the writer; one holds it at a time, beside plain readers."""
        return AsyncUpgradeable(self._engine, self._name, self._options, self._entries, Role.UPGRADEABLE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class Side(Mutex):
    """The reader's or the writer's side of a read-write lock, used like a lock.

    It belongs to the thread that acquired it, across all objects of one client with the same name, and may be acquired
    again by that thread. Lease and other options are those of the outermost acquire. A writer may also read.

    Raises:
        RuntimeError: by acquire, when a thread that reads asks to write: it could wait for ever.

    """


class UpgradeableHold(Hold):
    """A reader's hold that may become the writer's."""

    __slots__ = ("_rising",)

    def __init__(self, core: AsyncUpgradeableHold) -> None:
        super().__init__(core)
        self._rising = core

    def upgrade(self, timeout: Seconds | None = None) -> Hold | None:
        """Become the writer, as `AsyncUpgradeableHold.upgrade` does."""
        got = run_sync(self._rising.upgrade(timeout))
        return None if got is None else Hold(got)

    def __repr__(self) -> str:
        return repr(self._rising).replace("<Async", "<", 1)


class Upgradeable(Side):
    """The side of a reader that may become the writer. There is one such reader at a time, beside plain readers."""

    def __init__(self, core: AsyncUpgradeable) -> None:
        super().__init__(core)
        self._rising = core

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> UpgradeableHold | None:
        """Get the lock, or None. As `Lock.acquire`."""
        return self._acquired(run_sync(self._core._acquire(blocking, timeout)), UpgradeableHold)

    def __enter__(self) -> UpgradeableHold:
        return UpgradeableHold(run_sync(self._rising._enter(opened(self))))


class RWLock:
    """A read-write lock: readers hold it together, a writer alone.

    Example:
        ```python
        stock = client.rw_lock("stock")
        with stock.reader():
            print("others may read now")
        with stock.writer() as hold:
            sell(42, fence=hold.token)
        with stock.upgradeable() as hold:
            print("others may read now, and nobody writes before us")
            writing = hold.upgrade(timeout=10)
            if writing is not None:
                with writing:
                    sell(42, fence=writing.token)
        ```

    """

    def __init__(self, core: AsyncRWLock) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._core.name

    def reader(self) -> Side:
        """Return the side that others may hold at the same time, if they read too."""
        return Side(self._core.reader())

    def writer(self) -> Side:
        """Return the side that one holds alone."""
        return Side(self._core.writer())

    def upgradeable(self) -> Upgradeable:
        """Return the side of a reader that may become the writer; one holds it at a time, beside plain readers."""
        return Upgradeable(self._core.upgradeable())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
