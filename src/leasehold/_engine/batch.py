"""Several names of one store: acquired in one request, where the store supports that.

Theory of operation
-------------------
A batch does for several names what an `AcquireLoop` does for one, without the waiting. Every ticket has its id before
anything is sent. The watchdog watches it before the request is sent. Whatever interrupts the batch, the tickets are
released by their ids. No ticket of a batch waits in a queue: the first name that is taken is then acquired alone (see
`leasehold.primitives.locks.multi_lock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from leasehold._engine.acquire import FIRST_ANSWER, TOO_LATE, closed_meanwhile
from leasehold._engine.cancellation import Cancellation
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.lease_states import State
from leasehold._engine.releases import send_releases
from leasehold._model import Granted, LeaseTerms, Owner, Wait
from leasehold.errors import StoreUnavailable
from leasehold.events import Acquired
from leasehold.store_api import BatchStore


class Batch:
    """One try to acquire several names of one store; of one that was cancelled meanwhile, nothing is kept."""

    def __init__(self, engine: Engine, wanted: Sequence[tuple[str, LeaseTerms]], cancel: Cancellation | None) -> None:
        self._engine = engine
        self._cancel = cancel
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
            await self._release(self._leases[held:granted])  # too late, or cancelled, or perhaps granted later
        self._end(self._leases[held:])
        handles, self._handles = self._handles[:held], []  # as in `AcquireLoop._acquired`
        return [self._acquired(handle) for handle in handles]

    def _held(self, answers: Sequence[Granted | Wait]) -> int:
        if self._cancel is not None and self._cancel.cancelled:
            return 0
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
