"""Transfers holds: one task or thread acquires and ends; another one uses the hold, and releases or drops it.

Users do this every day without noticing: ``await asyncio.wait_for(lock.acquire(), 5)`` runs an inner task on Python
3.11, and a synchronous fixture or dependency is entered in a pool thread that ends. A lease must last as long as
anything refers to its hold, in any task or thread. So the hold is used for longer than a few renewals: a watchdog that
gives up the lease too early does so meanwhile.

A callback may still listen for the loss of a dropped hold. So a dropped hold counts as a claim until the callback is
called. The history records when it was dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Protocol

from leasehold._engine.engine import Engine
from leasehold._engine.lease_states import HOLDING
from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import LeaseLost
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncMutex
from leasehold_lab.history.journal import Journal
from leasehold_lab.runtimes.sync_facade import as_program

Work = Callable[[], Coroutine[Any, Any, None]]

IN_QUEUE = 0.8
"""The most leases for which a hold waits for its user: longer than the time to the next renewal."""

LEAST, MOST = 0.5, 2.0
"""Leases for which it is then used: most of these times contain several renewals."""

SLICES = 4
"""The parts of that time; after each, the user checks the hold and writes."""


class TransferUse(enum.Enum):
    """How a transferred hold is used."""

    BLOCK = "another task uses it in a block"
    PLAIN = "another task uses it without a block, and releases it"
    DROPPED = "another task uses it, and drops it"
    REENTERED = "another task uses it in a block, while the one that acquired acquires again"

    __hash__ = object.__hash__


class Load(Protocol):
    """See `leasehold_lab.verify.clients.workload.Load`."""

    @property
    def lease(self) -> float: ...


class Target(Protocol):
    """See `leasehold_lab.verify.clients.workload.Target`."""

    @property
    def lock(self) -> AsyncMutex: ...

    @property
    def reenters(self) -> bool: ...


class Worker(Protocol):
    """See `leasehold_lab.verify.clients.workload.Worker`."""

    _engine: Engine
    _journal: Journal
    _random: Random
    _sleep: Callable[[float], Awaitable[None]]

    @property
    def _load(self) -> Load: ...

    @property
    def closed(self) -> bool: ...

    def _record_request(self, target: Any) -> int: ...

    async def _acquire(self, n: int, target: Any, got: list[AsyncHold]) -> None: ...

    def _listen(self, n: int, hold: AsyncHold) -> None: ...

    async def _use(self, n: int, target: Any, hold: AsyncHold, length: float, slices: int) -> None: ...


async def transfer(worker: Worker, target: Target) -> None:
    """Acquire, and let another task or thread use the hold."""
    use, got, n = choose_use(worker, target), list[AsyncHold](), worker._record_request(target)
    acquire = partial(worker._acquire, n, target, got)
    if use is TransferUse.REENTERED:
        await acquire()
        if got:
            await _reenter(worker, n, target, got)
        return
    await in_another(worker._engine.runtime, acquire)
    if got:
        await worker._sleep(worker._random.uniform(0.0, IN_QUEUE) * worker._load.lease)
        await in_another(worker._engine.runtime, partial(USES[use], worker, n, target, got))


def choose_use(worker: Worker, target: Target) -> TransferUse:
    """Return how the next hold is used."""
    return worker._random.choice([use for use in TransferUse if target.reenters or use is not TransferUse.REENTERED])


async def in_another(runtime: Runtime, work: Work) -> None:
    """Run ``work()`` in a task or thread of its own, and wait for its end; raise its error."""
    await start(runtime, work)()


def start(runtime: Runtime, work: Work) -> Work:
    """Run ``work()`` in a task or thread of its own; return a function that waits for its end and raises its error."""
    ended, errors = runtime.signal(), list[BaseException]()

    async def run() -> None:
        try:
            await work()
        except BaseException as error:  # `join` raises it
            errors.append(error)
        finally:
            ended.set()

    async def join() -> None:
        await ended.wait(None)
        if errors:
            raise errors.pop()

    runtime.spawn((lambda: as_program(run())) if runtime.flavor is Flavor.SYNC else run, "passed")
    return join


async def _in_block(worker: Worker, n: int, target: Target, got: list[AsyncHold]) -> None:
    hold = got.pop()
    try:
        async with hold:
            await _use(worker, n, target, hold)
            worker._journal.leaving(n)
            confirmed = await hold.release()
    except LeaseLost:
        return
    worker._journal.freed(n, confirmed)


async def _plain(worker: Worker, n: int, target: Target, got: list[AsyncHold]) -> None:
    hold = got.pop()
    try:
        await _use(worker, n, target, hold)
        worker._journal.leaving(n)
        confirmed = await hold.release()
    except LeaseLost:
        return
    worker._journal.freed(n, confirmed)


async def _drop(worker: Worker, n: int, target: Target, got: list[AsyncHold]) -> None:
    hold = got.pop()
    try:
        await _use(worker, n, target, hold)
    except LeaseLost:
        return
    worker._journal.dropped(n)
    del hold


USES = {TransferUse.BLOCK: _in_block, TransferUse.PLAIN: _plain, TransferUse.DROPPED: _drop}


async def _use(worker: Worker, n: int, target: Target, hold: AsyncHold) -> None:
    length = worker._random.uniform(LEAST, MOST) * worker._load.lease
    await worker._use(n, target, hold, length, SLICES)


async def _reenter(worker: Worker, n: int, target: Target, got: list[AsyncHold]) -> None:
    """Acquire again while another task uses the hold; both hold one lease, which the last release ends."""
    hold, again = got.pop(), list[AsyncHold]()
    over, lease = worker._engine.runtime.signal(), hold._lease
    first = worker._random.random() < 0.5  # whether the user releases its hold first

    async def use() -> None:
        try:
            async with hold:
                await _use(worker, n, target, hold)
                await over.wait(None)
                if first:
                    await hold.release()
                    return
                worker._journal.leaving(n)
                confirmed = await hold.release()
        except LeaseLost:
            return
        worker._journal.freed(n, confirmed)

    join = start(worker._engine.runtime, use)
    try:
        await worker._sleep(worker._random.uniform(0.0, 1.0) * worker._load.lease)
        await _again(worker, n, target, hold, again)
        if again and not first:
            await again.pop().release()
    except LeaseLost:
        pass
    except RuntimeError:
        if not worker.closed:
            raise
    finally:
        over.set()
        await join()
    if again:
        await _plain(worker, n, target, again)
    elif first and lease.state in HOLDING:
        raise AssertionError("its user, who was the only one to hold it, released it, and it is still held")


async def _again(worker: Worker, n: int, target: Target, hold: AsyncHold, again: list[AsyncHold]) -> None:
    """Acquire again what this task holds: this must succeed at once, with the same token."""
    if not hold.held:
        return
    got = await target.lock.acquire(timeout=0)
    if got is not None and got.token == hold.token:
        worker._listen(n, got)  # the first hold's callback ends with its release
        again.append(got)
    elif hold.held:
        raise AssertionError(f"the holder of {hold.name} could not acquire it again: {got}")
