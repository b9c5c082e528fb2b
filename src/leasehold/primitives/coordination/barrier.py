"""A barrier: members continue together, and may leave together. `AsyncBarrier` and its sync facade `Barrier`."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import Any

from leasehold._engine.engine import Engine
from leasehold._engine.lease_states import State
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocks import Block, opened
from leasehold._validate import Seconds
from leasehold.primitives.bases import AsyncContext, AsyncNamed, ContextFacade
from leasehold.primitives.coordination.barrier_members import Inside, Member, Members
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.semaphore import permits_of

MOST = 1000
"""The largest number of parties: their record must fit into a cell."""


def parties_of(value: object) -> int:
    """Check a number of parties: a whole number from 1 to `MOST`."""
    return permits_of(value, "parties", MOST)


class AsyncBarrier(AsyncNamed, AsyncContext):
    """Members wait until ``parties`` have arrived; then all continue, and the barrier can be used again.

    Each member has a lease, which is renewed while it waits or is inside. If one dies, gives up or fails, the barrier
    breaks, as in `threading`: all others get `BrokenBarrier` until `reset` is called. With ``drop_dead`` that member
    is removed instead. The others then wait for another in its place, or leave without it.

    Example:
        ```python
        together = client.barrier("import:7", 1)
        index = await together.wait(timeout=10)
        async with together:
            print("all are here, and leave together")
        ```
    """

    def __init__(self, engine: Engine, name: str, options: Options, *, drop_dead: bool) -> None:
        self._engine = engine
        self._members = Members(engine, name, options, drop_dead=drop_dead)
        self._inside = Inside()
        self._name = name

    @property
    def parties(self) -> int:
        """The number of members that must arrive."""
        return self._members.parties

    async def wait(self, timeout: Seconds | None = None) -> int:
        """Wait until all members have arrived.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever.

        Returns:
            The place in the order of arrival, from 0; each member has a different one.

        Raises:
            BrokenBarrier: it is broken, or broke meanwhile. This timeout breaks it, too, unless ``drop_dead``.
            AcquireTimeout: the others did not arrive in time; with ``drop_dead`` only.
            LeaseLost: this member was stopped for longer than its lease; with ``drop_dead`` only.
            NameInUse: others use the name with another number of parties, or with another ``drop_dead``.
            StoreUnavailable: the store did not answer.
            RuntimeError: the calling thread or task is inside already, through this object.
        """
        self._refuse_inside()
        return (await self._members.meet(timeout, stays=False)).index

    async def enter(self, timeout: Seconds | None = None) -> int:
        """Wait until all have arrived, and stay inside until `leave`, which the same task calls. Otherwise as `wait`.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever. Do not use
                ``asyncio.wait_for`` instead: on Python 3.11 it enters for a task of its own, which cannot leave.

        Raises:
            RuntimeError: the calling thread or task is inside already, through this object.
        """
        return await self._enter(None, timeout)

    async def _enter(self, block: Block | None, timeout: Seconds | None = None) -> int:
        key, inside = self._refuse_inside(), self._inside
        member = await self._members.meet(timeout, stays=True)
        member.lease.lock_object = weakref.ref(inside)
        index = member.index
        if block is not None:  # the block keeps the handle
            block.hold, block.handle = member, member.handle
            member.handle = None
        inside[key] = member
        return index  # in the next statement: Python runs no signal handler in between

    def _refuse_inside(self) -> int:
        """Return the key of the calling thread or task, which is not inside: else it would wait for itself."""
        key = self._engine.runtime.me().key
        if key in self._inside and self._inside[key].lives():
            raise RuntimeError(f"this thread or task is inside barrier {self.name!r} already; leave first")
        return key

    async def leave(self, timeout: Seconds | None = None) -> None:
        """Leave, and wait until all other members inside leave, too.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever.

        Raises:
            NotHeld: the calling thread or task is not inside.
            StoreUnavailable: the store did not answer.
            BrokenBarrier: another died or failed inside, or it was broken otherwise; also by this timeout, unless
                ``drop_dead``.
            AcquireTimeout: the others did not leave in time; with ``drop_dead`` only. This member has left.
            LeaseLost: this member was stopped for longer than its lease, and was removed.
        """
        limit = self._members._limit(timeout)  # first: a wrong argument must not remove the member
        self._engine.ready()
        await self._members.leave(self._inside.pop(self._engine.runtime.me().key, None), limit)

    async def abort(self) -> None:
        """Break it: members that wait or are inside get `BrokenBarrier`, and later arrivals, too, until `reset`.

        Raises:
            StoreUnavailable: no answer; with ``unknown`` it may be broken all the same.
        """
        self._engine.ready()
        await self._members.abort(f"{self._engine.owner} aborted it")

    async def reset(self) -> None:
        """Repair and empty it: members that wait or are inside get `BrokenBarrier`, later arrivals do not.

        Raises:
            StoreUnavailable: no answer; with ``unknown`` it may have been reset all the same.
        """
        self._engine.ready()
        await self._members.reset()

    async def broken(self) -> bool:
        """Return whether it is broken.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return (await self._members.rounds()).broken != ""

    async def n_waiting(self) -> int:
        """Return how many members wait for others to arrive.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return len((await self._members.rounds()).arrived)

    def __aenter__(self) -> Coroutine[Any, Any, int]:
        return self._enter(opened(self))

    async def _exit(self, block: Block, error: BaseException | None) -> None:
        """End a block; ``block`` keeps the lease of this member alive until it has left."""
        member = self._ending(block)
        if error is not None:  # it cannot leave together with the others: they are notified, and the error propagates
            await self._members.fail(member, error)
        elif member is not None or block.hold is None:  # else the block itself has called `leave`
            self._engine.ready()
            await self._members.leave(member, self._members._limit(None))

    def _ending(self, block: Block) -> Member | None:
        """Remove and return the member whose block ends, perhaps in another task; None if it has left before."""
        member: Member | None = block.hold
        if member is None:
            return self._inside.pop(self._engine.runtime.me().key, None)
        if self._inside.get(member.caller.key) is member:
            self._inside.pop(member.caller.key, None)
        return None if member.lease.state is State.RELEASED else member

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.parties}>"


class Barrier(ContextFacade[AsyncBarrier]):
    """Members wait until ``parties`` have arrived; then all continue, and the barrier can be used again.

    Each member has a lease, which is renewed while it waits or is inside. If one dies, gives up or fails, the barrier
    breaks, as in `threading`: all others get `BrokenBarrier` until `reset` is called. With ``drop_dead`` that member
    is removed instead. The others then wait for another in its place, or leave without it.

    Example:
        ```python
        together = client.barrier("import:7", 1)
        index = together.wait(timeout=10)
        with together:
            print("all are here, and leave together")
        ```
    """

    @property
    def parties(self) -> int:
        """The number of members that must arrive."""
        return self._core.parties

    def wait(self, timeout: Seconds | None = None) -> int:
        """Wait until all have arrived; return the place in the order of arrival, from 0. As `AsyncBarrier.wait`.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever.
        """
        return run_sync(self._core.wait(timeout))

    def enter(self, timeout: Seconds | None = None) -> int:
        """Wait until all have arrived, and stay inside until `leave`. As `AsyncBarrier.enter`.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever.

        Raises:
            RuntimeError: the calling thread is inside already, through this object.
        """
        return run_sync(self._core.enter(timeout))

    def leave(self, timeout: Seconds | None = None) -> None:
        """Leave, and wait until all other members inside leave, too. As `AsyncBarrier.leave`.

        Args:
            timeout: seconds to wait at most; None takes the barrier's own ``timeout``, -1 waits for ever.
        """
        run_sync(self._core.leave(timeout))

    def abort(self) -> None:
        """Break it, until `reset`. As `AsyncBarrier.abort`."""
        run_sync(self._core.abort())

    def reset(self) -> None:
        """Repair and empty it. As `AsyncBarrier.reset`."""
        run_sync(self._core.reset())

    def broken(self) -> bool:
        """Return whether it is broken. As `AsyncBarrier.broken`."""
        return run_sync(self._core.broken())

    def n_waiting(self) -> int:
        """Return how many members wait for others to arrive. As `AsyncBarrier.n_waiting`."""
        return run_sync(self._core.n_waiting())

    def __enter__(self) -> int:
        return run_sync(self._core._enter(opened(self)))
