"""The exclusive lock: `AsyncLock` and `Lock`, and `AsyncMutex` and `Mutex`, on which all lock-like primitives build."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any, TypeVar, cast

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import acquire
from leasehold._engine.lease import LeaseHandle
from leasehold._engine.retry import views_of
from leasehold._model import AcquireRequest, LockMode, Nested, NotAcquired
from leasehold._rules import clash, conflicts, other_use, use_of
from leasehold._runtimes.base import Caller, run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, NameInUse, NotHeld
from leasehold.primitives.bases import AsyncDecorating, AsyncNamed, DecoratingFacade
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.hold_list import NOTHING_HELD, SWEPT_AT, HoldList, Listed
from leasehold.primitives.locks.options import Cancellation, Options, checked

H = TypeVar("H")

NOTHING_ENTERED: dict[int, tuple[int, AsyncHold]] = cast(Any, MappingProxyType({}))
"""What a lock object has until a hold is entered by hand: most never have one. It cannot be changed."""


class AsyncMutex(AsyncNamed, AsyncDecorating):
    """An exclusive lock for asyncio; its kinds say to whom a hold belongs."""

    __slots__ = ("_entered", "_hold_list", "_options", "_request")

    def __init__(self, engine: Engine, name: str, options: Options, nested: Nested | None = None) -> None:
        self._engine = engine
        self._options = options
        self._request = AcquireRequest(
            name, options.terms, renew=options.renew, max_hold=options.max_hold, nested=nested
        )
        self._name = name
        self._hold_list = NOTHING_HELD
        self._entered = NOTHING_ENTERED  # by hand: the holds by their id, with the key of the task

    def _be_shared(self) -> None:
        """Make the lists now, not at the first hold: several threads may hold, so their first holds may meet."""
        self._hold_list, self._entered = HoldList(), {}

    async def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncHold | None:
        """Acquire the lock; return None if that was not possible in time. Keep the hold, and release it.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread, task or signal handler.

        Returns:
            The hold; None if another holder had the lock all that time, or the wait was cancelled.

        Raises:
            StoreUnavailable: the holder is unknown; with a timeout, raised at most two seconds after it.
            LeaseLost: the grant arrived after its deadline.
            NameInUse: the name is in use as another primitive.
            Unsupported: the store cannot promise this, as only the server could tell.
            ValueError, TypeError: an argument is out of its bounds, or ``blocking=False`` has a timeout, too.
            RuntimeError: the client is closed; or, with ``nested="raise"``, it would wait for a hold of its own.
        """
        got = await self._acquiring(blocking, timeout, cancel)
        if isinstance(got, NotAcquired):
            return None
        got = self._taken(got)
        owned = self._hold_list.owned
        owned += [got]
        return got  # in the next statement: see `HoldList.owned`

    async def release(self) -> None:
        """Release what the calling task acquired last through this lock (`rlock`, sides: any object with the name).

        Raises:
            NotHeld: it holds nothing.
            LeaseLost: the lease was lost before; the present holder is not affected.
        """
        hold = self._last(self._engine.runtime.me())
        if hold is None:
            raise self._error(
                NotHeld,
                f"lock {self.name!r} is not held through this object by the calling thread or task; what another one "
                "acquired (as asyncio.wait_for does on Python 3.11, in a task of its own) is released by its hold",
            )
        await hold.release()

    def owned(self) -> bool:
        """Return whether the calling task holds it, acquired through this object (see `release`) and not lost."""
        hold = self._last(self._engine.runtime.me())
        return hold is not None and hold.held

    async def locked(self) -> bool:
        """Return whether the lock is held now, in a way that excludes this one.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive.
        """
        mode = self._options.terms.mode
        return conflicts(mode, await held_modes(self._engine, self.name, mode))

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHold]:
        return self._enter(opened(self))

    async def _enter(self, block: Block | None) -> AsyncHold:
        got = await self._acquiring(True, None)
        if isinstance(got, NotAcquired):
            raise self._timed_out(got)
        got = self._taken(got)
        if not got._begin(block):
            await got._enter(block)  # it raises the reason
        if block is None:
            if self._entered is NOTHING_ENTERED:
                self._entered = {}
            key, entered = self._engine.runtime.me().key, self._entered
            entered[id(got)] = (key, got)
        return got

    def _exit(self, block: Block, error: BaseException | None) -> Coroutine[Any, Any, None]:
        hold: AsyncHold = self._entered_last() if block.hold is None else block.hold
        return hold._exit(block, error)

    def _entered_last(self) -> AsyncHold:
        """Remove and return the hold of the block that ends: the last that this task entered, else the only one.

        A fixture may end a block in another task or thread than the one that began it.
        """
        key, entered = self._engine.runtime.me().key, list(self._entered.values())
        mine = next((each for each in reversed(entered) if each[0] == key), None)
        if mine is None and len({other for other, _ in entered}) == 1:
            mine = entered[-1]
        if mine is None:
            raise self._error(
                NotHeld,
                f"the block of lock {self.name!r} ends in a thread or task that did not begin it; "
                "give each its own lock object",
            )
        del self._entered[id(mine[1])]
        return mine[1]

    async def _acquire(
        self, blocking: bool, timeout: Seconds | None, cancel: Cancellation | None = None
    ) -> AsyncHold | NotAcquired:
        """Acquire the lock for the calling task. The caller keeps the hold alive; the lock object only lists it."""
        got = await self._acquiring(blocking, timeout, cancel)
        return got if isinstance(got, NotAcquired) else self._taken(got)

    @abstractmethod
    def _acquiring(
        self, blocking: bool, timeout: Seconds | None, cancel: Cancellation | None = None
    ) -> Coroutine[Any, Any, AsyncHold | LeaseHandle | NotAcquired]:
        """Begin an acquire for the calling task. The caller awaits it, and passes the result to `_taken` at once.

        A task may wait for long, and each suspended coroutine keeps its frame. So only this coroutine waits.
        """

    def _taken(self, got: Any) -> AsyncHold:
        """Return the hold of what was acquired."""
        hold: AsyncHold = got
        return hold

    def _last(self, caller: Caller) -> AsyncHold | None:
        """Return the hold that a thread or task acquired last and has not released."""
        hold: AsyncHold | None = self._hold_list.last(caller)
        return hold

    def _limit(self, blocking: bool, timeout: Seconds | None) -> float | None:
        blocking = _validate.blocking(blocking)
        if blocking and timeout is None:
            return self._options.timeout
        limit = _validate.timeout(timeout, blocking=blocking)
        return limit if blocking else 0.0

    def _timed_out(self, not_acquired: NotAcquired) -> AcquireTimeout:
        held_by = None if not_acquired.held_by is None else str(not_acquired.held_by)
        why = f"held by {held_by}" if held_by else not_acquired.blocked_why
        return self._error(
            AcquireTimeout,
            f"could not acquire {self.name!r} within {not_acquired.waited:.3g} s" + (f": {why}" if why else ""),
            waited=not_acquired.waited,
            held_by=held_by,
        )


class AsyncLock(AsyncMutex):
    """An exclusive lock. Not re-entrant: a second acquire by its holder waits for itself (see the option ``nested``).

    If that has no timeout, a RuntimeWarning points at its line.

    One object may be shared by tasks; `release` releases what the calling task acquired.

    Example:
        ```python
        async with client.lock("stock:42") as hold:
            await sell(42, fence=hold.token)
        ```
    """

    __slots__ = ()

    def _acquiring(
        self, blocking: bool, timeout: Seconds | None, cancel: Cancellation | None = None
    ) -> Coroutine[Any, Any, AsyncHold | LeaseHandle | NotAcquired]:
        engine, request, limit = self._engine, self._request, self._options.timeout
        if timeout is not None or blocking is not True:
            limit = self._limit(blocking, timeout)
        if limit == 0:
            request = request._replace(join=False)
        if engine.closed:
            engine.refuse_closed()
        engine.runtime.before_blocking()
        return acquire(engine, request, limit, None if cancel is None else checked(cancel))

    def _taken(self, got: Any) -> AsyncHold:
        handle: LeaseHandle = got
        hold_list = self._hold_list
        if hold_list is NOTHING_HELD:
            hold_list = self._hold_list = HoldList()
        elif len(hold_list.listed) in SWEPT_AT:
            hold_list.sweep()
        handle.lease.lock_object = hold_list.ref
        hold = AsyncHold(self._engine, handle.lease, None, hold_list.ref)
        listed = Listed(hold)
        listed.caller = handle.lease.entry = self._engine.runtime.me()
        hold_list.listed += [listed]  # one entry needs less room than `append` makes
        return hold


class Mutex(DecoratingFacade[AsyncMutex]):
    """An exclusive lock for threads: the sync facade of an `AsyncMutex`."""

    __slots__ = ()

    def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> Hold | None:
        """Acquire the lock; return None if that was not possible in time. Keep the hold, and release it.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread, task or signal handler.

        Returns:
            The hold; None if another holder had the lock all that time, or the wait was cancelled.

        Raises:
            StoreUnavailable: the holder is unknown; with a timeout, raised at most two seconds after it.
            LeaseLost: the grant arrived after its deadline.
            NameInUse: the name is in use as another primitive.
            Unsupported: the store cannot promise this, as only the server could tell.
            ValueError, TypeError: an argument is out of its bounds, or ``blocking=False`` has a timeout, too.
            RuntimeError: the client is closed; or, with ``nested="raise"``, it would wait for a hold of its own.
        """
        return self._acquired(run_sync(self._core._acquire(blocking, timeout, cancel)), Hold)

    def _acquired(self, got: AsyncHold | NotAcquired, facade: Callable[[Any], H]) -> H | None:
        """Return the result of ``acquire``, with the hold kept alive by the lock object."""
        if isinstance(got, NotAcquired):
            return None
        hold, owned = facade(got), self._core._hold_list.owned
        owned += [got]
        return hold  # in the next statement: see `HoldList.owned`

    def release(self) -> None:
        """Release what the calling thread acquired last through this lock (`rlock`, sides: any object with the name).

        Raises:
            NotHeld: it holds nothing.
            LeaseLost: the lease was lost before; the present holder is not affected.
        """
        run_sync(self._core.release())

    def locked(self) -> bool:
        """Return whether the lock is held now, in a way that excludes this one.

        Raises:
            StoreUnavailable: the store did not answer.
            NameInUse: the name is in use as another primitive.
        """
        return run_sync(self._core.locked())

    def owned(self) -> bool:
        """Return whether the calling thread holds it, acquired through this object (see `release`) and not lost."""
        return self._core.owned()

    def __enter__(self) -> Hold:
        return Hold(run_sync(self._core._enter(opened(self))))


class Lock(Mutex):
    """An exclusive lock. Not re-entrant: a second acquire by its holder waits for itself (see the option ``nested``).

    If that has no timeout, a RuntimeWarning points at its line.

    One object may be shared by threads; `release` releases what the calling thread acquired.

    Example:
        ```python
        with client.lock("stock:42") as hold:
            sell(42, fence=hold.token)
        ```
    """

    __slots__ = ()


async def held_modes(engine: Engine, name: str, mode: LockMode) -> list[LockMode]:
    """Return the lock mode of each holder of a name.

    Raises:
        NameInUse: the name is in use as another primitive than that of ``mode``, so no answer would be right.
    """
    engine.ready()
    held: list[LockMode] = []
    for view in await views_of(engine.store, name, engine.response_timeout):
        other = other_use([entry.ticket for entry in (*view.holders, *view.waiters)], mode)
        if other is not None:
            message = clash(name, use_of(other.terms.mode), mode)
            raise NameInUse(message, name=name, owner=str(engine.owner), held_by=str(other.terms.owner))
        held += [entry.ticket.terms.mode for entry in view.holders]
    return held
