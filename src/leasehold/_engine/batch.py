"""Several names of one store: acquired in one request and released in one, where the store supports that.

Theory of operation
-------------------
A batch does for several names what an `AcquireLoop` does for one, without the waiting. Every ticket has its id before
anything is sent. The watchdog watches it before the request is sent. Whatever interrupts the batch, the tickets are
released by their ids. No ticket of a batch waits in a queue: the first name that is taken is then acquired alone (see
`leasehold.primitives.locks.multi_lock`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import repeat
from typing import Any, cast

from leasehold._engine.acquire import FIRST_ANSWER, TOO_LATE, closed_meanwhile
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.lease_states import State
from leasehold._model import Granted, LeaseTerms, Owner, Wait
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import Acquired
from leasehold.store_api import BatchStore

AT_ONCE = 100  # names in one request: it occupies a server for about a millisecond

ReleaseResult = bool | LeaseLost
"""The result of releasing one lease: whether the store confirmed, or that it was lost before."""


class Batch:
    """One try to acquire several names of one store."""

    def __init__(self, engine: Engine, wanted: Sequence[tuple[str, LeaseTerms]]) -> None:
        self._engine = engine
        self._start = engine.runtime.now()
        self._store = cast(BatchStore, engine.store)
        self._leases = [
            Lease(
                engine.runtime, name, engine.ticket(terms), terms.lease, observer=engine.observer, origin=engine.origin
            )
            for name, terms in wanted
        ]
        self._handles = [LeaseHandle(lease) for lease in self._leases]
        self._maybe_stored = False  # whether the store may know the tickets
        self.held_by: Owner | None = None
        self.late: Lease | None = None  # the first whose grant arrived after its deadline

    async def run(self, *, keep: bool, patience: float) -> list[LeaseHandle]:
        """Try all; return what is held: all, or with ``keep`` those before the first that is taken.

        Raises:
            StoreUnavailable: no answer in ``patience`` seconds. No ticket stays in the store for longer than a lease.
        """
        engine = self._engine
        try:
            engine.attempts[self] = None
            return await self._try_acquire(keep, min(engine.response_timeout, max(patience, FIRST_ANSWER)))
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            self._end(self._leases)
            raise
        except BaseException:
            await self._release(self._leases)
            raise
        finally:
            engine.attempts.pop(self, None)
            engine.wake_close()

    async def _try_acquire(self, keep: bool, within: float) -> list[LeaseHandle]:
        engine = self._engine
        for lease in self._leases:
            engine.watchdog.watch(lease)
        engine.refuse_closed()
        pairs = [(lease.name, lease.ticket) for lease in self._leases]

        async def request(within: float) -> Sequence[Granted | Wait]:
            before, self._maybe_stored = self._maybe_stored, True
            try:
                return await self._store.try_acquire_many(pairs, keep=keep, within=within)
            except StoreUnavailable as error:
                self._maybe_stored = before or error.unknown
                engine.contact.failed(self._leases[0], "acquire", error)
                raise

        answers, repeated = await engine.repeat(request, within)
        if engine.contact.lost_since is not None:
            engine.contact.answered(self._leases[0])
        if any(lease.state is State.RELEASED for lease in self._leases):  # the client was closed meanwhile
            await closed_meanwhile(engine, engine.runtime.shield(send_releases(engine, self._leases)))
        held, granted = self._held(answers), sum(isinstance(answer, Granted) for answer in answers)
        if repeated:  # a try without a reply may still arrive, after the repetition was answered
            granted = len(self._leases)
        if granted > held:
            await self._release(self._leases[held:granted])  # granted too late, or perhaps granted later
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
        engine, lease = self._engine, handle.lease
        engine.watchdog.granted(lease)
        if engine.tally is not None:
            engine.tally.acquired(lease.name, engine.runtime.now() - self._start, False)
        if engine.observer.wants(Acquired):
            engine.observer(Acquired(*lease.event_fields(), lease.token, engine.runtime.now() - self._start))
        return handle

    async def _release(self, leases: Sequence[Lease]) -> None:
        self._end(leases)
        if self._maybe_stored:
            await self._engine.runtime.shield(send_releases(self._engine, leases))

    def _end(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if lease.begin_release():
                self._engine.watchdog.forget(lease)


async def send_releases(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    """Release the tickets in the store in this order; return for each what `Engine.send_release` returns."""
    if len(leases) < 2 or engine.runtime.interrupts() or not engine.store.capabilities.batches:
        return [await engine.send_release(lease) for lease in leases]
    found: list[bool | None] = []
    for start in range(0, len(leases), AT_ONCE):
        found += await _send_some(engine, leases[start : start + AT_ONCE])
    return found


async def _send_some(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    store = cast(BatchStore, engine.store)
    pairs = [(lease.name, lease.ticket) for lease in leases]

    def request(within: float) -> Coroutine[Any, Any, Sequence[bool]]:
        return store.release_many(pairs, within=within)

    try:
        found, repeated = await engine.repeat(request, engine.release_within)
    except StoreUnavailable as error:
        engine.contact.failed(leases[0], "release", error)
        for lease in leases:
            engine.watchdog.retry_release(lease.name, lease.ticket)
        return [None] * len(leases)
    return [was_there or (None if repeated else False) for was_there in found]


async def release_all(engine: Engine, leases: Sequence[Lease]) -> list[ReleaseResult]:
    """Release in this order; return for each whether the store confirmed, or the loss. All are tried, whatever fails.

    The caller must shield it.
    """
    try:
        engine.attempts.update(dict.fromkeys(leases))  # before the watchdog forgets them: a close waits
        holding = [lease for lease in leases if engine.begin_release(lease)]
        found = dict(zip(map(id, holding), await send_releases(engine, holding), strict=True))
    except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
        raise
    except BaseException:  # a signal handler has raised; nothing else can, since the caller shields this call
        for lease in leases:
            await engine.repeat_release(lease)
        raise
    finally:
        deque(map(engine.attempts.pop, leases, repeat(None)), 0)  # one step: a signal handler may raise after it
        engine.wake_close()
    results: list[ReleaseResult] = []
    for lease in leases:
        try:
            results.append(engine.end_release(lease, found[id(lease)]) if id(lease) in found else lease.error())
        except LeaseLost as error:
            results.append(error)
    return results
