"""The re-entrant lock: `AsyncRLock` and its sync facade `RLock`; and the count that read-write locks share with it.

It belongs to the thread or the asyncio task that acquired it, across all objects of one client with the same name: a
function that locks may call another that locks the same name. The store sees one hold, whatever the depth.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar

from leasehold._engine.acquire import FIRST_ANSWER
from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import acquire, release
from leasehold._engine.lease import Lease, LeaseHandle, OnLost
from leasehold._model import AcquireRequest, NotAcquired
from leasehold._runtimes.base import Caller
from leasehold._validate import Seconds
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncMutex, Mutex
from leasehold.primitives.locks.options import Cancellation, Options, checked


class Entry:
    """One lease and the holds that one thread or task has on it, in one role.

    The lease refers to its entry (`Lease.entry`), and so does each hold. So the entry lives as long as one of them, and
    the client's table of entries may refer to it weakly.

    A signal handler or another thread may release the last hold while the owner acquires again. So each hold puts a
    number into a list, and its release takes the last one out; both are atomic. Removing the first number, 0, releases
    the lease. A hold that does not find that number in the list has come too late.
    """

    __slots__ = ("__weakref__", "_holds", "_numbers", "_open", "caller", "lease", "role")

    def __init__(self, lease: Lease, caller: Caller, role: object) -> None:
        self.lease = lease
        self.caller = caller
        self.role = role
        # Each hold, the role that was requested, and its callbacks, which the release of a dropped one needs.
        self._holds: list[tuple[object, weakref.ref[Any], list[OnLost]]] = []
        self._numbers = count()
        self._open: list[int] = []
        lease.entry = self
        lease.lock_object = weakref.ref(self)

    def handle(self) -> LeaseHandle:
        """Return the handle of the lease; a new one if all holds were dropped and the lease has not ended."""
        return self.lease.handle() or LeaseHandle(self.lease)

    def add(self, hold: Any, asked: object) -> None:
        """Add a hold, and the role that was requested. It has come too late if the entry `is_open` no more."""
        self._holds.append((asked, weakref.ref(hold), hold._callbacks))
        self._open.append(next(self._numbers))

    def is_open(self) -> bool:
        """Return whether some hold was not released, so that the lease is not released yet."""
        return self._open[:1] == [0]

    def last(self, asked: object) -> tuple[list[OnLost] | None, AsyncHold | None]:
        """Return the callbacks of the last hold that was requested as ``asked``, and the hold: None if it was dropped.

        The callbacks are None if there is no such hold.
        """
        for what, ref, callbacks in reversed(self._holds[:]):
            if what is asked:
                return callbacks, ref()
        return None, None

    def remove(self, hold: Any, asked: object = None) -> bool:
        """Remove a hold (None: the last one that was dropped); return whether any hold is left."""
        for entry in reversed(self._holds[:]):
            if entry[1]() is hold and (hold is not None or entry[0] is asked):
                self._holds.remove(entry)
                break
        else:
            return True  # another call has removed it
        if self._open.pop():
            return True
        self.lease.entry = None  # else the two keep each other alive until a garbage collection
        return False

    def replace_dropped(self, hold: Any, callbacks: list[OnLost], asked: object) -> None:
        """Replace the last hold that was dropped by one that was just added; that gets the callbacks of both."""
        hold._callbacks += callbacks  # in place: this one may be dropped, too
        self.remove(None, asked)

    def lists(self, lease: object, caller: Caller) -> bool:
        """Return whether it is the lease of this thread or task."""
        return lease is self.lease and caller.key == self.caller.key and self.caller.alive() and self.is_open()

    def drop_ended_callers(self) -> None:
        """Have the lock objects through which it was acquired drop it, if its thread or task has ended."""
        for _, ref, _ in self._holds[:]:
            hold = ref()
            lock = None if hold is None else hold._hold_list()
            if lock is not None:
                lock.drop_ended_callers()


class Entries(weakref.WeakValueDictionary[tuple[str, int, object], Entry]):
    """All entries of one client, by name, key of the thread or task, and role. The references are weak."""

    def of(self, name: str, caller: Caller, roles: Iterable[object]) -> dict[object, Entry]:
        """Return the entries of a thread or task, which may have ended: another one may have its key now."""
        found: dict[object, Entry] = {}
        for role in roles:
            entry = self.get((name, caller.key, role))
            if entry is not None and (entry.caller is caller or (entry.caller.alive() and caller.alive())):
                found[role] = entry
        return found

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self[entry.lease.name, entry.caller.key, entry.role] = entry

    def drop(self, entry: Entry) -> None:
        """Remove an entry."""
        key = (entry.lease.name, entry.caller.key, entry.role)
        if self.get(key) is entry:
            self.pop(key, None)


class AsyncReentrant(AsyncMutex):
    """A lock that its task may acquire again: what re-entrant locks and the sides of read-write locks share."""

    _roles: ClassVar[tuple[object, ...]] = (None,)
    _hold_type: ClassVar[type[AsyncHold]] = AsyncHold

    def __init__(self, engine: Engine, name: str, options: Options, entries: Entries, role: Any = None) -> None:
        super().__init__(engine, name, options, "warn" if role is None else None)  # a side may wait alongside its own
        self._be_shared()
        self._entries = entries
        self._role = role

    async def _acquiring(
        self, blocking: bool, timeout: Seconds | None, cancel: Cancellation | None = None
    ) -> AsyncHold | NotAcquired:
        limit = self._limit(blocking, timeout)
        self._engine.ready()
        return await self._acquire_for(self._engine.runtime.me(), limit, checked(cancel))

    async def _acquire_for(
        self,
        caller: Caller,
        limit: float | None,
        cancel: Cancellation | None = None,
        request: AcquireRequest | None = None,
    ) -> AsyncHold | NotAcquired:
        """Acquire for a thread or task; ``request`` is for a new entry, in place of the lock's own."""
        if cancel is not None and cancel.cancelled:  # also where it would re-enter
            return NotAcquired(0.0, None)
        while (entry := self._own(mine := self._mine(caller))) is not None:
            hold = self._hold(entry, entry.handle())
            if entry.is_open():
                return hold
        base, start = self._alongside(mine), self._engine.runtime.now()
        alongside = "" if base is None else base.lease.ticket.id
        request = (request or self._request)._replace(join=limit != 0, alongside=alongside)
        handle = await acquire(self._engine, request, limit, cancel)
        if isinstance(handle, NotAcquired):
            return handle
        if base is not None:
            left = float("inf") if limit is None else start + limit - self._engine.runtime.now()
            await self._check_base(base.lease, handle.lease, max(left, FIRST_ANSWER))
        entry = Entry(handle.lease, caller, self._role)
        self._entries.add(entry)
        return self._hold(entry, handle)

    async def _check_base(self, base: Lease, lease: Lease, within: float) -> None:
        """Release ``lease``, which was granted alongside ``base``, and raise if that was lost before: others may write.

        The store may have forgotten ``base``, and granted the lease to a newcomer, after another writer. One look after
        the grant tells, since an entry that is gone never returns with its token.
        """
        engine = self._engine
        try:
            if base.ticket.terms.mode.upgradeable and base.check_deadline():
                try:
                    views, _ = await engine.repeat(
                        lambda left: engine.store.inspect(self.name, exact=True, within=left),
                        min(within, engine.response_timeout),
                    )
                except StoreUnavailable:
                    if base.check_deadline():
                        raise
                else:
                    if all(entry.token != base.token for view in views for entry in view.holders):
                        base.mark_lost("the store no longer knows it (expired, broken or evicted)")
            if not base.check_deadline():
                raise base.error()
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            engine.begin_release(lease)
            raise
        except BaseException:
            with suppress(LeaseLost):
                await engine.runtime.shield(release(engine, lease))
            raise

    def _mine(self, caller: Caller) -> dict[object, Entry]:
        """Return the entries of a thread or task that hold, by role.

        Raises:
            LeaseLost: one was lost.
        """
        mine = self._entries.of(self.name, caller, self._roles)
        for role, one in list(mine.items()):
            ended = not one.lease.check_deadline()
            if not one.is_open():  # released just now
                del mine[role]
            elif ended:
                self._entries.drop(one)
                raise one.lease.error()
        return mine

    def _own(self, mine: dict[object, Entry]) -> Entry | None:
        """Return the entry of the calling task that an acquire re-enters; None if it needs a new one."""
        return mine.get(self._role)

    def _alongside(self, mine: dict[object, Entry]) -> Entry | None:
        """Return the entry of the calling task alongside which a new one is acquired; None if there is none."""
        return None

    def _hold(self, entry: Entry, handle: LeaseHandle) -> AsyncHold:
        engine, entries = self._engine, self._entries  # `leave` must not refer to the lock, which may refer to the hold

        async def leave(hold: AsyncHold) -> bool:
            if entry.remove(hold):
                if not entry.lease.check_deadline():
                    raise entry.lease.error()
                return True
            entries.drop(entry)
            return await release(engine, entry.lease)

        hold = self._hold_type(engine, handle.lease, leave, self._hold_list.ref)
        entry.add(hold, self._role)
        self._hold_list.add(entry.caller, hold)
        return hold

    def _last(self, caller: Caller) -> AsyncHold | None:
        """Return the last hold in this role, through whatever object of the client it was acquired."""
        entry = self._own(self._entries.of(self.name, caller, self._roles))
        if entry is None:
            return None
        callbacks, hold = entry.last(self._role)
        if callbacks is not None and hold is None:  # the hold was dropped: release it through a new one
            hold = self._hold(entry, entry.handle())
            entry.replace_dropped(hold, callbacks, self._role)
        return hold


class AsyncRLock(AsyncReentrant):
    """A re-entrant lock: its task may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the task ends without releasing, and nothing else
    refers to the hold, the watchdog stops renewing the lock and releases it.

    `release` and `owned` count what the task acquired through any object of the client with this name.

    Raises:
        LeaseLost: by acquire, also if the task still has an earlier hold of this name, which was lost.
    """


class RLock(Mutex):
    """A re-entrant lock: its thread may acquire it again, and holds it until it released as often.

    Lease and other options are those of the outermost acquire. If the thread ends without releasing, and nothing else
    refers to the hold, the watchdog stops renewing the lock and releases it.

    `release` and `owned` count what the thread acquired through any object of the client with this name.

    Raises:
        LeaseLost: by acquire, also if the thread still has an earlier hold of this name, which was lost.
    """
