"""What the exclusive locks have in common: acquire, release, ``with``. `AsyncMutex` and its sync facade `Mutex`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from leasehold import _validate
from leasehold._engine.acquire import acquire
from leasehold._engine.engine import Engine
from leasehold._engine.lease import LeaseHandle
from leasehold._engine.request import AcquireRequest, NotAcquired
from leasehold._runtimes.base import Caller, run_sync
from leasehold._runtimes.blocks import Block, ends_block, opened
from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, NotHeld
from leasehold.primitives.calls.decorating import AsyncDecorating, Decorating
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.hold_list import HoldList
from leasehold.primitives.locks.holders import held_modes
from leasehold.primitives.locks.options import Options

H = TypeVar("H")


class AsyncMutex(AsyncDecorating):
    """An exclusive lock for asyncio; its kinds say to whom a hold belongs."""

    __slots__ = ("__weakref__", "_engine", "_entered", "_hold_list", "_name", "_options", "_request")

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._request = AcquireRequest(name, options.terms, renew=options.renew, max_hold=options.max_hold)
        self._hold_list = HoldList()
        self._entered: dict[int, tuple[int, AsyncHold]] = {}  # entered by hand: by id, with the key of the task
        self._name = name

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._name

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> AsyncHold | None:
        """Get the lock, or None.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.

        Returns:
            The hold; None if someone else had the lock all that time.

        Raises:
            StoreUnavailable: nobody knows who has it. With a timeout it comes at most a second after it.
            LeaseLost: the grant arrived after its deadline.
            NameInUse: the name is in use as another primitive.

        """
        got = await self._acquire(blocking, timeout)
        if isinstance(got, NotAcquired):
            return None
        owned = self._hold_list.owned
        owned[id(got)] = got
        return got  # in the next statement: see `HoldList.owned`

    async def release(self) -> None:
        """Release what the calling task acquired last through this lock.

        Raises:
            NotHeld: it holds nothing.
            LeaseLost: the lease was lost before; whoever holds the lock now is left alone.

        """
        hold = self._last(self._engine.runtime.me())
        if hold is None:
            raise NotHeld(
                f"lock {self.name!r} is not held through this object by the calling thread or task; what another one "
                "acquired (as asyncio.wait_for does on Python 3.11, in a task of its own) is released by its hold",
                name=self.name,
                owner=str(self._engine.owner),
            )
        await hold.release()

    def owned(self) -> bool:
        """Return whether the calling thread or task holds the lock, acquired through this object and not lost."""
        hold = self._last(self._engine.runtime.me())
        return hold is not None and hold.held

    async def locked(self) -> bool:
        """Return whether anyone holds the lock now.

        Raises:
            NameInUse: the name is in use as another primitive.

        """
        return bool(await held_modes(self._engine, self.name, self._options.terms.mode))

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHold]:
        return self._enter(opened(self))

    async def _enter(self, block: Block | None) -> AsyncHold:
        got = await self._acquire(True, None)
        if isinstance(got, NotAcquired):
            raise self._timed_out(got)
        await got._enter(block)
        if block is None:
            key, entered = self._engine.runtime.me().key, self._entered
            entered[id(got)] = (key, got)
        return got

    @ends_block
    async def __aexit__(  # noqa: PLE0302 the decorator takes the block away
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exit(block, error)

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
            raise NotHeld(
                f"the block of lock {self.name!r} ends in a thread or task that did not begin it; "
                "give each its own lock object",
                name=self.name,
                owner=str(self._engine.owner),
            )
        del self._entered[id(mine[1])]
        return mine[1]

    @abstractmethod
    async def _acquire(self, blocking: bool, timeout: Seconds | None) -> AsyncHold | NotAcquired:
        """Acquire the lock for the calling task. The caller keeps the hold alive; the lock object only lists it."""

    def _last(self, caller: Caller) -> AsyncHold | None:
        """Return the hold that a thread or task acquired last and has not released."""
        hold: AsyncHold | None = self._hold_list.last(caller)
        return hold

    def _limit(self, blocking: bool, timeout: Seconds | None) -> float | None:
        if blocking and timeout is None:
            return self._options.timeout
        limit = _validate.timeout(timeout, blocking=blocking)
        return limit if blocking else 0.0

    def _lease(self, limit: float | None, alongside: str = "") -> Coroutine[Any, Any, LeaseHandle | NotAcquired]:
        request = self._request
        if alongside or limit == 0:
            request = request._replace(join=limit != 0, alongside=alongside)
        return acquire(self._engine, request, limit)

    def _timed_out(self, not_acquired: NotAcquired) -> AcquireTimeout:
        held_by = None if not_acquired.held_by is None else str(not_acquired.held_by)
        why = f"held by {held_by}" if held_by else not_acquired.blocked_why
        return AcquireTimeout(
            f"could not acquire {self.name!r} within {not_acquired.waited:.3g} s" + (f": {why}" if why else ""),
            name=self.name,
            owner=str(self._engine.owner),
            waited=not_acquired.waited,
            held_by=held_by,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Mutex(Decorating):
    """An exclusive lock for threads: the sync facade of an `AsyncMutex`."""

    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: AsyncMutex) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._core.name

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Hold | None:
        """Get the lock, or None.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes the lock's own ``timeout``, -1 waits for ever, 0 tries once.

        Returns:
            The hold; None if someone else had the lock all that time.

        Raises:
            StoreUnavailable: nobody knows who has it. With a timeout it comes at most a second after it.
            LeaseLost: the grant arrived after its deadline.
            NameInUse: the name is in use as another primitive.

        """
        return self._acquired(run_sync(self._core._acquire(blocking, timeout)), Hold)

    def _acquired(self, got: AsyncHold | NotAcquired, face: Callable[[Any], H]) -> H | None:
        """Return the result of ``acquire``, with the hold kept alive by the lock object."""
        if isinstance(got, NotAcquired):
            return None
        hold, owned = face(got), self._core._hold_list.owned
        owned[id(got)] = got
        return hold  # in the next statement: see `HoldList.owned`

    def release(self) -> None:
        """Release what the calling thread acquired last through this lock.

        Raises:
            NotHeld: it holds nothing.
            LeaseLost: the lease was lost before; whoever holds the lock now is left alone.

        """
        run_sync(self._core.release())

    def locked(self) -> bool:
        """Return whether anyone holds the lock now.

        Raises:
            NameInUse: the name is in use as another primitive.

        """
        return run_sync(self._core.locked())

    def owned(self) -> bool:
        """Return whether the calling thread holds the lock, acquired through this object and not lost."""
        return self._core.owned()

    def __enter__(self) -> Hold:
        return Hold(run_sync(self._core._enter(opened(self))))

    @ends_block
    def __exit__(  # noqa: PLE0302 the decorator takes the block away
        self,
        block: Block,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run_sync(self._core._exit(block, error))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
