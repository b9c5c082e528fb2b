"""Claims of read-write locks and semaphores: who holds says so in its value, for here the first is not the only one.

A ticket that waits its turn stands in the queue first. It may enter when it conflicts with nobody who holds and with
nobody before it. Those behind it count it, whether it has entered yet or not, so many may enter at once and none can be
wrong about another. Who does *not* wait its turn (``fair=False``, or one that stands beside a ticket of its own) enters
by a transaction that is void if anybody wrote below the name meanwhile, and leaves a mark; the others enter by one that
is void if there is a mark that they have not seen. Then both decide again.

The revision of the transaction that entered is the token: tokens increase from grant to grant, whoever came first.
"""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.uses import refuse_other_use
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import Place
from leasehold.stores.etcd.keys import (
    Json,
    Keys,
    absent,
    created,
    found,
    only,
    put,
    ranged,
    revision_of,
    span,
    txn,
    unwritten_since,
)
from leasehold.stores.etcd.mutex import Verdict
from leasehold.stores.etcd.waiting import Mine

PAUSE = 0.002
"""Seconds, times a random number and the number of attempts, before a ticket decides again that others overtook."""


class Entering:
    """One claim of one ticket."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys, mine: Mine, until: float) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._mine = mine
        self._until = until
        self._line = span(keys.queue(mine.name))
        self._marks = span(keys.marks(mine.name))
        self._grave = only(keys.grave(mine.entry))

    async def try_acquire(self, *, join: bool) -> Verdict:
        """Enter if the rules allow; else stand in the queue if asked, and say whom to wait for."""
        said = await self._send([absent(self._line)], self._written(holds=True))
        attempt = 0
        while not said.get("succeeded"):
            if found(said, 1):
                return Verdict(revision=revision_of(said))  # it was left before this claim arrived
            there, revision = entries.places(found(said, 0)), revision_of(said)
            own = next((one for one in there if one.key == self._mine.key), None)
            if own is not None and own.holds:
                return Verdict(own.written)
            refuse_other_use(self._mine.name, [one.ticket for one in there], self._mine.ticket.terms.mode)
            if own is not None and entries.is_its_turn(there, own):
                await self._pause(attempt)
                attempt += 1
                said = await self._enter_in_turn(own, revision)
            elif (own is None or entries.passes(own.ticket)) and self._may_pass(there, join=join):
                await self._pause(attempt)
                attempt += 1
                said = await self._enter_past(own, revision)
            elif own is None and join:
                said = await self._stand()
            else:
                return self._blocked(there, revision)
        return Verdict(revision_of(said))

    def _may_pass(self, there: list[Place], *, join: bool) -> bool:
        """Say whether it enters without having stood in the queue: by right, or to leave no trace if it cannot."""
        ticket = self._mine.ticket
        if join and not entries.passes(ticket):
            return False
        return entries.may_enter(self._mine.name, there, ticket)

    def _blocked(self, there: list[Place], revision: int) -> Verdict:
        others = entries.blockers(there, self._mine.ticket)
        held_by = next((one for one in there if one.holds), others[0] if others else None)
        return Verdict(0, tuple(one.key for one in others), revision, held_by)

    async def _enter_in_turn(self, own: Place, revision: int) -> Json:
        unmarked = unwritten_since(self._marks, revision)
        return await self._send([created(only(own.key), own.created), unmarked], self._written(holds=True))

    async def _enter_past(self, own: Place | None, revision: int) -> Json:
        before = absent(only(self._mine.key)) if own is None else created(only(self._mine.key), own.created)
        mark = put(self._mine.mark, b"", self._mine.session.id)
        compare = [before, unwritten_since(self._line, revision), unwritten_since(self._marks, revision)]
        return await self._send(compare, [*self._written(holds=True), mark])

    async def _stand(self) -> Json:
        """Stand in the queue; what is read with that decides, as if it had stood there before."""
        read = ranged(self._line)
        said = await self._send([absent(only(self._mine.key))], [*self._written(holds=False), read])
        if said.get("succeeded"):
            return {**said, "succeeded": False, "responses": said["responses"][1:]}
        return said

    def _written(self, *, holds: bool) -> list[Json]:
        mine = self._mine
        return [put(mine.key, entries.value(mine.ticket, mine.session.length, holds=holds), mine.session.id)]

    async def _send(self, compare: list[Json], writes: list[Json]) -> Json:
        left = self._until - self._runtime.now()
        if left <= 0:
            raise StoreUnavailable(f"others were faster at {self._mine.name!r} until no time was left", unknown=True)
        failure = [ranged(self._line), ranged(self._grave, keys_only=True)]
        body = txn([*compare, absent(self._grave)], writes, failure)
        said = await self._gateway.call("/v3/kv/txn", body, within=left)
        self._mine.session.confirm(self._mine.kept, said)
        return said

    async def _pause(self, attempt: int) -> None:
        if attempt:
            await self._runtime.sleep(PAUSE * attempt * self._runtime.jitter())
