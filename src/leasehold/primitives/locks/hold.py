"""A hold: what an acquire returns. `AsyncHold` is the algorithm, `Hold` its sync facade."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import release
from leasehold._engine.lease import Lease, OnLost
from leasehold._engine.lease_states import State
from leasehold._runtimes.base import Scope, run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold.errors import LeaseLost, NotHeld
from leasehold.primitives.bases import AsyncContext, ContextFacade, refuse_callback
from leasehold.primitives.locks.hold_list import HoldList

Leave = Callable[["AsyncHold"], Coroutine[Any, Any, bool]]


class AsyncHold(AsyncContext):
    """A lock that is held, until it is released or lost.

    Use it with ``async with``: the block is cancelled when the lease is lost, and `LeaseLost` is raised at its end.
    """

    __slots__ = (
        *("__weakref__", "_callbacks", "_engine", "_handle", "_hold_list", "_lease", "_leave", "_once"),
        *("_released", "_scopes", "_was_lost"),
    )

    def __init__(
        self, engine: Engine, lease: Lease, leave: Leave | None, hold_list: Callable[[], HoldList | None]
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._handle: object = lease.handle()  # None when a block has it, or a release is under way
        self._leave = leave  # None where one hold is one lease
        self._callbacks: list[OnLost] | None = None if leave is None else []  # which its release takes off the lease
        self._hold_list = hold_list  # the list of the lock object through which it was acquired
        self._released = False
        self._was_lost = False  # it was lost when it was released
        self._once = True  # the call that deletes this attribute releases: two threads may try at the same time
        self._scopes: tuple[Scope, ...] = ()  # of its blocks, outermost first: one may be inside another

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._lease.name

    @property
    def token(self) -> int:
        """The fencing token: strictly larger than that of every earlier hold of this name."""
        return self._lease.token

    @property
    def owner(self) -> str:
        """The holder: ``host:pid:client``."""
        return str(self._lease.ticket.terms.owner)

    @property
    def lost(self) -> bool:
        """Whether the lease has ended before it was released."""
        if self._released:
            return self._was_lost
        self._engine.check_owner(self._lease)
        return not self._lease.check_deadline() and self._lease.state is State.LOST

    @property
    def held(self) -> bool:
        """Whether the lock is held now: neither lost nor released."""
        self._engine.check_owner(self._lease)
        return not self._released and self._lease.check_deadline()

    @property
    def remaining(self) -> float:
        """Return the seconds for which the lock is surely held even if no renewal succeeds; 0 when it is not."""
        return 0.0 if self._released else self._lease.remaining()

    def raise_if_lost(self) -> None:
        """Return if the lock is held.

        Raises:
            LeaseLost: it was lost.
            NotHeld: it was released.
        """
        self._engine.check_owner(self._lease)
        if self._lease.check_deadline() and not self._released:
            return
        if self._was_lost or self._lease.state is State.LOST:
            raise self._lease.error()
        raise NotHeld(f"the lock {self.name!r} was released", name=self.name, owner=self.owner, token=self.token)

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback(error)`` once when the lease is lost; at once if it is lost already.

        The event loop calls it, outside any task, or the call that finds the loss does. It must not block or await:
        meanwhile no lease of the client is renewed. It may start a task. What it raises is logged; but a
        KeyboardInterrupt that a signal handler raises meanwhile is raised after the last callback.

        Raises:
            TypeError: it is no function, or a coroutine function.
        """
        refuse_callback(callback)
        self._call_when_lost(callback)
        self._engine.watchdog.prepare_callbacks()

    def _call_when_lost(self, callback: OnLost) -> None:
        """Have a callback called when a lease is lost, as long as this hold lasts: others may last longer."""
        if self._leave is not None:
            if self._callbacks is None:  # it was released
                return
            callback = partial(callback)  # another object than that of another hold
            self._callbacks.append(callback)
        for lease in self._leases():
            lease.on_lost(callback)

    def _drop_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            for lease in self._leases():
                lease.drop_callback(callback)

    async def renew(self) -> None:
        """Set the lease to its full length now, as the watchdog does by itself unless ``renew=False``.

        Raises:
            LeaseLost: it has ended.
            NotHeld: it was released.
            RuntimeError: its ``max_hold`` is over; nothing was sent, and the hold goes on until its deadline.
            StoreUnavailable: the store did not confirm; the hold goes on until its deadline.
        """
        self._engine.runtime.before_blocking()
        self.raise_if_lost()
        await self._engine.renew(self._lease)

    async def release(self) -> bool:
        """Release.

        Returns:
            Whether the store confirmed. If it did not answer, the watchdog goes on trying in the background, and
            the name is free by the end of the lease at the latest. A further call sends nothing and returns True.

        Raises:
            LeaseLost: the lease was lost before. The present holder is not affected.
        """
        if self._released:
            return True
        self._engine.runtime.before_release()
        handle = self._lease.handle()  # from here on only this call keeps the lease alive
        self._handle = None
        try:
            del self._once
        except AttributeError:
            return True
        self._released = True
        if (hold_list := self._hold_list()) is not None:
            hold_list.remove(self)
        try:
            confirmed = await (release(self._engine, self._lease) if self._leave is None else self._leave(self))
        except LeaseLost:
            self._was_lost = True
            raise
        finally:
            del handle
        if self._callbacks is not None:
            self._drop_callbacks()
        return confirmed

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._enter(opened(self))

    async def _enter(self, block: Block | None) -> Self:
        if not self._begin(block):
            try:
                self.raise_if_lost()
            finally:
                await self.release()  # a loss that it finds is raised instead
        return self

    def _begin(self, block: Block | None) -> bool:
        """Begin a block, and give it the handle that keeps the lease alive; return False if it cannot begin."""
        scope = self._engine.runtime.scope()
        if scope is not None:
            scope.enter(block)
            self._scopes = (*self._scopes, scope)
            for lease in self._leases():
                lease.scopes = (*lease.scopes, scope)
        try:
            self.raise_if_lost()  # the block of a lock that was lost by now never begins
        except (LeaseLost, NotHeld):  # not returned: an error that is kept keeps the frames of all callers alive
            self._leave_scope(None)
            return False
        if block is not None:
            block.hold, block.handle = self, self._handle
            self._handle = None
        return True

    async def _exit(self, block: Block, error: BaseException | None) -> None:
        """End a block; ``block`` keeps the lease alive until the release."""
        interrupted = self._leave_scope(error)
        try:
            await self.release()
        except LeaseLost:
            if error is None or interrupted:
                raise
            return
        if interrupted:
            raise self._error()

    def _leave_scope(self, error: BaseException | None) -> bool:
        if not self._scopes:
            return False
        scope, *others = self._scopes
        if others:  # tasks that have blocks of one hold may end them in any order
            scope = next((each for each in reversed(self._scopes) if each.is_mine()), others[-1])
        self._scopes = tuple([each for each in self._scopes if each is not scope])
        for lease in self._leases():
            lease.scopes = tuple([each for each in lease.scopes if each is not scope])
        interrupted = scope.exit(error)
        self._engine.wake_close()
        return interrupted

    def _leases(self) -> Sequence[Lease]:
        """Return all leases of this hold: the loss of one is its loss."""
        return (self._lease,)

    def _has_ended(self) -> bool:
        """Return whether none of its leases is held any more."""
        return not any(lease.remaining() for lease in self._leases())

    def _error(self) -> LeaseLost:
        return self._lease.error()

    def __repr__(self) -> str:
        state = "released" if self._released else self._lease.state.value
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    def __reduce__(self) -> str:
        raise TypeError("a hold cannot be copied or sent elsewhere; send its name and token")


class Hold(ContextFacade[AsyncHold]):
    """A lock that is held, until it is released or lost.

    Use it with ``with``: it is released at the end, and `LeaseLost` is raised there if it was lost meanwhile.
    """

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token: strictly larger than that of every earlier hold of this name."""
        return self._core.token

    @property
    def owner(self) -> str:
        """The holder: ``host:pid:client``."""
        return self._core.owner

    @property
    def lost(self) -> bool:
        """Whether the lease has ended before it was released."""
        return self._core.lost

    @property
    def held(self) -> bool:
        """Whether the lock is held now: neither lost nor released."""
        return self._core.held

    @property
    def remaining(self) -> float:
        """Return the seconds for which the lock is surely held even if no renewal succeeds; 0 when it is not."""
        return self._core.remaining

    def raise_if_lost(self) -> None:
        """Return if the lock is held.

        Raises:
            LeaseLost: it was lost.
            NotHeld: it was released.
        """
        self._core.raise_if_lost()

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback(error)`` once when the lease is lost; at once if it is lost already.

        A thread of the client calls it, or the call that finds the loss. It may take its time: no other hold of the
        client waits for it, but callbacks of holds that are lost at the same moment do. What it raises is logged; but a
        KeyboardInterrupt or SystemExit that a signal handler raises meanwhile is raised after the last callback.

        Raises:
            TypeError: it is no function, or a coroutine function.
        """
        self._core.on_lost(callback)

    def renew(self) -> None:
        """Set the lease to its full length now, as the watchdog does by itself unless ``renew=False``.

        Raises:
            LeaseLost: it has ended.
            NotHeld: it was released.
            RuntimeError: its ``max_hold`` is over; nothing was sent, and the hold goes on until its deadline.
            StoreUnavailable: the store did not confirm; the hold goes on until its deadline.
        """
        run_sync(self._core.renew())

    def release(self) -> bool:
        """Release; a further call sends nothing and returns True. As `AsyncHold.release`."""
        return run_sync(self._core.release())

    def __enter__(self) -> Self:
        run_sync(self._core._enter(opened(self)))
        return self

    def __reduce__(self) -> str:
        raise TypeError("a hold cannot be copied or sent elsewhere; send its name and token")
