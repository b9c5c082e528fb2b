"""The read-write lock: many readers, or one writer. `AsyncRWLock`, its sides, and their sync facade.

Theory of operation
-------------------
One thread or task has at most one entry in each role at a name. To acquire a role again re-enters that entry, as with a
re-entrant lock. What happens when it acquires a role while it holds another:

===================  ========================  ============================  ==========================
acquires / holds     reader                    upgradeable                   writer
===================  ========================  ============================  ==========================
reader               re-enters                 re-enters the upgradeable     new entry alongside
                                               entry, which reads            (downgrade)
upgradeable          refused                   re-enters                     new entry alongside
                                                                             (downgrade)
writer               refused                   new entry alongside           re-enters
                                               (upgrade)
===================  ========================  ============================  ==========================

Refused is what could deadlock: two readers that both want to write would wait for each other. At most one upgradeable
reader holds at a time, and its thread or task has no plain reader entry. So an upgrade waits only for readers that
do not wait themselves, and there is no deadlock.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, cast

from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import release
from leasehold._engine.lease import LeaseHandle
from leasehold._model import Kind, LockMode, NotAcquired
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocks import opened
from leasehold._validate import Seconds
from leasehold.errors import LeaseLost, Unsupported
from leasehold.primitives.bases import AsyncNamed, NamedFacade
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.lock import Mutex
from leasehold.primitives.locks.options import Cancellation, Options, checked
from leasehold.primitives.locks.rlock import AsyncReentrant, Entries, Entry


class Role(enum.Enum):
    """The three ways to hold a read-write lock."""

    READER = "reader"
    UPGRADEABLE = "upgradeable"
    WRITER = "writer"

    def mode(self, *, fair: bool) -> LockMode:
        """Return the lock mode of a ticket in this role."""
        exclusive, upgradeable = self is Role.WRITER, self is Role.UPGRADEABLE
        return LockMode(Kind.READ_WRITE, exclusive=exclusive, upgradeable=upgradeable, fair=fair)


class AsyncRWLockSide(AsyncReentrant):
    """The reader's or the writer's side of a read-write lock, used like a lock.

    It belongs to the task that acquired it, across all objects of one client with the same name, and may be acquired
    again by that task. Lease and other options are those of the outermost acquire. A writer may also read.

    `release` and `owned` count what the task acquired through any such object.

    Raises:
        RuntimeError: by acquire, when a task that reads wants to write: it could deadlock.
        LeaseLost: by acquire, also if the task still has an earlier hold of this name, which was lost.
    """

    _roles: ClassVar[tuple[object, ...]] = tuple(Role)
    _role: Role

    def __init__(self, engine: Engine, name: str, options: Options, entries: Entries, role: Role) -> None:
        mode = role.mode(fair=options.terms.mode.fair)
        super().__init__(engine, name, replace(options, terms=replace(options.terms, mode=mode)), entries, role)

    def _own(self, mine: dict[object, Entry]) -> Entry | None:
        if self._role is Role.READER:
            return mine.get(Role.READER) or mine.get(Role.UPGRADEABLE)
        return mine.get(self._role)

    def _alongside(self, mine: dict[object, Entry]) -> Entry | None:
        if self._role is not Role.READER and Role.READER in mine:
            raise RuntimeError(
                f"this thread or task reads {self.name!r} and asks to be its {self._role.value}: two that do so would "
                "wait for each other for ever. Release the reader first, or take upgradeable() in its place and "
                "upgrade its hold"
            )
        return mine.get(Role.WRITER) or mine.get(Role.UPGRADEABLE)


class AsyncUpgradeableHold(AsyncHold):
    """A reader's hold that may become the writer's."""

    __slots__ = ("_entry", "_writer", "_writing")

    _entry: Entry
    _writer: AsyncRWLockSide
    _writing: list[AsyncHold]  # the writer's holds, kept for a caller that drops them: ``if await hold.upgrade():``

    async def upgrade(self, timeout: Seconds | None = None, cancel: Cancellation | None = None) -> AsyncHold | None:
        """Become the writer: wait until the present readers release; no other writer enters before.

        This hold stays until it is released: releasing the writer's hold leads back to reading.

        Args:
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread, task or signal handler.

        Returns:
            The writer's hold, with a token of its own; None if others read all that time, or the wait was cancelled.
            Release it: it lasts until then, or until this hold is released or dropped and nothing refers to it.

        Raises:
            LeaseLost: this hold was lost before or meanwhile, so another may have written.
            NotHeld: it was released.
            StoreUnavailable: it is unknown whether this hold may write. It stays a reader's hold.
        """
        self._engine.ready()
        self.raise_if_lost()
        # Not for the calling task: the hold may have been passed to one that has no entry here.
        limit, writing = self._writer._limit(True, timeout), self._writing
        for hold in [each for each in writing if each._released or each._has_ended()]:
            with suppress(ValueError):  # another thread has removed it
                writing.remove(hold)
        got = await self._writer._acquire_for(self._entry.caller, limit, checked(cancel))
        if isinstance(got, NotAcquired):
            self.raise_if_lost()
            return None
        writing += [got]
        return got  # in the next statement: see `HoldList.owned`

    async def release(self) -> bool:
        """Release, also the writer's holds that nothing else refers to. As `AsyncHold.release`."""
        # With their handles, else the watchdog might report them as lost just now.
        writing = [(weakref.ref(hold), hold._lease, hold._lease.handle()) for hold in self._writing]
        self._writing = []
        try:
            confirmed = await super().release()
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            raise
        except BaseException:
            with suppress(LeaseLost):
                await self._release_dropped(writing)
            raise
        return await self._release_dropped(writing) and confirmed

    async def _release_dropped(self, writing: Iterable[Any]) -> bool:
        confirmed = True
        for ref, lease, _ in writing:
            entry = lease.entry
            if ref() is None and isinstance(entry, Entry) and not entry.remove(None, Role.WRITER):
                self._writer._entries.drop(entry)
                confirmed = await release(self._engine, lease)
        return confirmed


class AsyncUpgradeableSide(AsyncRWLockSide):
    """The side of a reader that may become the writer. There is one such reader at a time, alongside plain readers."""

    _hold_type: ClassVar[type[AsyncHold]] = AsyncUpgradeableHold

    async def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncUpgradeableHold | None:
        """Get the lock, or None. As `AsyncLock.acquire`."""
        got = await super().acquire(blocking, timeout, cancel)
        assert got is None or isinstance(got, AsyncUpgradeableHold)
        return got

    def __aenter__(self) -> Coroutine[Any, Any, AsyncUpgradeableHold]:
        return cast("Coroutine[Any, Any, AsyncUpgradeableHold]", self._enter(opened(self)))

    def _hold(self, entry: Entry, handle: LeaseHandle) -> AsyncHold:
        hold = super()._hold(entry, handle)
        assert isinstance(hold, AsyncUpgradeableHold)
        hold._entry, hold._writing = entry, []
        hold._writer = AsyncRWLockSide(self._engine, self.name, self._options, self._entries, Role.WRITER)
        return hold


class AsyncRWLock(AsyncNamed):
    """A read-write lock: readers hold it together, a writer alone.

    Example:
        ```python
        stock = client.rw_lock("stock")
        async with stock.reader():
            print("others may read now")
        async with stock.writer() as hold:
            await sell(42, fence=hold.token)
        async with stock.upgradeable() as hold:
            print("others may read now, and no other writer enters before us")
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

    def reader(self) -> AsyncRWLockSide:
        """Return the reader's side: other readers may hold it at the same time."""
        return AsyncRWLockSide(self._engine, self._name, self._options, self._entries, Role.READER)

    def writer(self) -> AsyncRWLockSide:
        """Return the writer's side: a writer holds it alone."""
        return AsyncRWLockSide(self._engine, self._name, self._options, self._entries, Role.WRITER)

    def upgradeable(self) -> AsyncUpgradeableSide:
        """Return the side of a reader that may become the writer; one holds it at a time, alongside plain readers.

        Raises:
            Unsupported: the store has no such reader.
        """
        if not (can := self._engine.store.capabilities).upgrades:
            raise Unsupported(f"{self._engine.store!r} has no reader that may become the writer; {can.why_not}")
        return AsyncUpgradeableSide(self._engine, self._name, self._options, self._entries, Role.UPGRADEABLE)


class RWLockSide(Mutex):
    """The reader's or the writer's side of a read-write lock, used like a lock.

    It belongs to the thread that acquired it, across all objects of one client with the same name, and may be acquired
    again by that thread. Lease and other options are those of the outermost acquire. A writer may also read.

    `release` and `owned` count what the thread acquired through any such object.

    Raises:
        RuntimeError: by acquire, when a thread that reads asks to write: it could wait for ever.
        LeaseLost: by acquire, also if the thread still has an earlier hold of this name, which was lost.
    """


class UpgradeableHold(Hold):
    """A reader's hold that may become the writer's."""

    __slots__ = ()

    _core: AsyncUpgradeableHold

    def upgrade(self, timeout: Seconds | None = None, cancel: Cancellation | None = None) -> Hold | None:
        """Become the writer: wait until the present readers release. As `AsyncUpgradeableHold.upgrade`.

        Args:
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread or signal handler.

        Returns:
            The writer's hold, with a token of its own; None if others read all that time, or the wait was cancelled.

        Raises:
            LeaseLost: this hold was lost before or meanwhile, so another may have written.
            NotHeld: it was released.
            StoreUnavailable: it is unknown whether this hold may write. It stays a reader's hold.
        """
        got = run_sync(self._core.upgrade(timeout, cancel))
        return None if got is None else Hold(got)


class UpgradeableSide(RWLockSide):
    """The side of a reader that may become the writer. There is one such reader at a time, alongside plain readers."""

    _core: AsyncUpgradeableSide

    def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> UpgradeableHold | None:
        """Get the lock, or None. As `Lock.acquire`."""
        return self._acquired(run_sync(self._core._acquire(blocking, timeout, cancel)), UpgradeableHold)

    def __enter__(self) -> UpgradeableHold:
        return UpgradeableHold(run_sync(self._core._enter(opened(self))))


class RWLock(NamedFacade[AsyncRWLock]):
    """A read-write lock: readers hold it together, a writer alone.

    Example:
        ```python
        stock = client.rw_lock("stock")
        with stock.reader():
            print("others may read now")
        with stock.writer() as hold:
            sell(42, fence=hold.token)
        with stock.upgradeable() as hold:
            print("others may read now, and no other writer enters before us")
            writing = hold.upgrade(timeout=10)
            if writing is not None:
                with writing:
                    sell(42, fence=writing.token)
        ```
    """

    def reader(self) -> RWLockSide:
        """Return the reader's side: other readers may hold it at the same time."""
        return RWLockSide(self._core.reader())

    def writer(self) -> RWLockSide:
        """Return the writer's side: a writer holds it alone."""
        return RWLockSide(self._core.writer())

    def upgradeable(self) -> UpgradeableSide:
        """Return the side of a reader that may become the writer; one holds it at a time, alongside plain readers."""
        return UpgradeableSide(self._core.upgradeable())
