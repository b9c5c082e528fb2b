"""Several names of one store at once: claimed in one request, and left in one, where the store can do that.

Theory of operation
-------------------
A batch is what an `AcquireLoop` is for one name, without the waiting: every ticket has its id before anything is sent,
is watched by the watchdog before it is claimed, and is left by its id whatever cuts the batch off. No ticket of a batch
stands in a queue: the first name that cannot be had is then acquired alone (see
`leasehold.primitives.locks.multi_lock`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, cast

from leasehold._engine.acquire import FIRST_ANSWER, TOO_LATE, closed_meanwhile
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle, State
from leasehold._model import Granted, LeaseTerms, Owner, Wait
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import Acquired
from leasehold.store_api import ManyStore

AT_ONCE = 100
"""Names in one request: it keeps a server from others for about a millisecond."""

Left = bool | LeaseLost
"""What came of leaving with one lease: whether the store confirmed, or that it was lost before."""


class Batch:
    """One claim of several names of one store."""

    def __init__(self, engine: Engine, wanted: Sequence[tuple[str, LeaseTerms]]) -> None:
        self._engine = engine
        self._start = engine.runtime.now()
        self._store = cast(ManyStore, engine.store)
        self._leases = [
            Lease(engine.runtime, name, engine.ticket(terms), renew=True, max_hold=None, observe=engine.observe)
            for name, terms in wanted
        ]
        self._handles = [LeaseHandle(lease) for lease in self._leases]
        self._may_be_there = False  # whether the store may know the tickets
        self.held_by: Owner | None = None
        self.late: Lease | None = None  # the first that was granted too late to be believed

    async def run(self, *, keep: bool, patience: float) -> list[LeaseHandle]:
        """Claim all; return what is held: all, or with ``keep`` those before the first that could not be had.

        Raises:
            StoreUnavailable: there was no answer in ``patience`` seconds. Nothing stays for longer than a lease.

        """
        engine = self._engine
        try:
            engine.attempts.add(self)
            return await self._claim(keep, min(engine.response_timeout, max(patience, FIRST_ANSWER)))
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            self._end(self._leases)
            raise
        except BaseException:
            await self._leave(self._leases)
            raise
        finally:
            engine.attempts.discard(self)
            engine.ended()

    async def _claim(self, keep: bool, within: float) -> list[LeaseHandle]:
        engine = self._engine
        for lease in self._leases:
            engine.watchdog.watch(lease)
        engine.refuse_closed()
        claims = [(lease.name, lease.ticket) for lease in self._leases]

        async def ask(within: float) -> Sequence[Granted | Wait]:
            before, self._may_be_there = self._may_be_there, True
            try:
                return await self._store.try_acquire_many(claims, keep=keep, within=within)
            except StoreUnavailable as error:
                self._may_be_there = before or error.unknown
                raise

        answers, repeated = await engine.repeat(ask, within)
        if any(lease.state is State.RELEASED for lease in self._leases):  # the client was closed meanwhile
            await closed_meanwhile(engine, engine.runtime.shield(leave_all(engine, self._leases)))
        held, granted = self._held(answers), sum(isinstance(answer, Granted) for answer in answers)
        if repeated:  # a claim that had no answer may arrive after the one that was answered
            granted = len(self._leases)
        if granted > held:
            await self._leave(self._leases[held:granted])  # granted too late to be believed, or perhaps granted later
        self._end(self._leases[held:])
        handles, self._handles = self._handles[:held], []  # as in `AcquireLoop._acquired`
        return [self._acquired(handle) for handle in handles]

    def _held(self, answers: Sequence[Granted | Wait]) -> int:
        for index, (lease, answer) in enumerate(zip(self._leases, answers, strict=False)):
            if isinstance(answer, Wait):
                self.held_by = answer.held_by
                return index
            if not lease.granted(answer):
                lease.why = TOO_LATE
                self.late = lease
                return index
        return len(self._leases)

    def _acquired(self, handle: LeaseHandle) -> LeaseHandle:
        engine, now, lease = self._engine, self._engine.runtime.now(), handle.lease
        engine.watchdog.granted(lease)
        if engine.observe.wants(Acquired):
            engine.observe(Acquired(lease.name, str(engine.owner), now, lease.token, now - self._start))
        return handle

    async def _leave(self, leases: Sequence[Lease]) -> None:
        self._end(leases)
        if self._may_be_there:
            await self._engine.runtime.shield(leave_all(self._engine, leases))

    def _end(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.leaves():
                self._engine.watchdog.forget(lease)


async def leave_all(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    """Take the tickets off the store in this order; return for each what `Engine.leave` returns."""
    if len(leases) < 2 or engine.runtime.interrupts() or not engine.store.capabilities.together:
        return [await engine.leave(lease) for lease in leases]
    found: list[bool | None] = []
    for start in range(0, len(leases), AT_ONCE):
        found += await _leave_some(engine, leases[start : start + AT_ONCE])
    return found


async def _leave_some(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    store = cast(ManyStore, engine.store)
    leaves = [(lease.name, lease.ticket) for lease in leases]

    def ask(within: float) -> Coroutine[Any, Any, Sequence[bool]]:
        return store.release_many(leaves, within=within)

    try:
        found, repeated = await engine.repeat(ask, engine.leave_within)
    except StoreUnavailable:
        for lease in leases:
            engine.watchdog.retry_release(lease.name, lease.ticket)
        return [None] * len(leases)
    return [was_there or (None if repeated else False) for was_there in found]


async def release_all(engine: Engine, leases: Sequence[Lease]) -> list[Left]:
    """Release in this order; return for each whether the store confirmed, or the loss. All are left, whatever happens.

    To be shielded by the caller.
    """
    try:
        engine.attempts.update(leases)  # before they are forgotten: a close waits for the store's word
        holding = [lease for lease in leases if engine.departs(lease)]
        found = dict(zip(map(id, holding), await leave_all(engine, holding), strict=True))
    except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
        raise
    except BaseException:  # a signal handler has raised: the caller shields from all else
        for lease in leases:
            await engine.leave_again(lease)
        raise
    finally:
        engine.attempts.difference_update(leases)
        engine.ended()
    results: list[Left] = []
    for lease in leases:
        try:
            results.append(engine.departed(lease, found[id(lease)]) if id(lease) in found else lease.error())
        except LeaseLost as error:
            results.append(error)
    return results
