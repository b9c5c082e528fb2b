"""Acquiring read-write locks and semaphores. The value of a key says whether it holds, since several may hold at once.

A fair ticket joins the queue first. It may enter when it conflicts with no holder and with no waiter ahead of it.
Waiters behind it count it, whether it has entered yet or not. So many may enter at once, and none can be wrong about
another.

A ticket that may overtake (``fair=False``, or alongside a ticket of its own) enters by a transaction that fails if
another client wrote below the name meanwhile, and leaves a *mark*. A fair ticket enters by a transaction that fails if
there is a mark that it has not seen. After a failure both read the queue and decide again.

The revision of the transaction that entered is the token. So tokens increase from grant to grant.
"""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.uses import refuse_other_use
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import QueueKey
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
from leasehold.stores.etcd.waiting import TicketState

PAUSE = 0.002
"""Base of the pause before another attempt, in seconds; times a random number and the number of attempts."""


class SharedAcquire:
    """One acquire request of one ticket."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys, state: TicketState, until: float) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._states = state
        self._until = until
        self._queue = span(keys.queue(state.name))
        self._marks = span(keys.marks(state.name))
        self._tombstone = only(keys.tombstone(state.entry))

    async def try_acquire(self, *, join: bool) -> Verdict:
        """Enter if the rules allow; else join the queue if asked, and return the blockers."""
        response = await self._send([absent(self._queue)], self._writes(holds=True))
        attempt = 0
        while not response.get("succeeded"):
            if found(response, 1):
                return Verdict(revision=revision_of(response))  # the ticket was released before this request arrived
            present, revision = entries.read_keys(found(response, 0)), revision_of(response)
            own = next((one for one in present if one.key == self._states.key), None)
            if own is not None and own.holds:
                return Verdict(own.written)
            refuse_other_use(self._states.name, [one.ticket for one in present], self._states.ticket.terms.mode)
            if own is not None and entries.is_its_turn(present, own):
                await self._pause(attempt)
                attempt += 1
                response = await self._enter_in_turn(own, revision)
            elif (own is None or entries.passes(own.ticket)) and self._may_pass(present, join=join):
                await self._pause(attempt)
                attempt += 1
                response = await self._enter_past(own, revision)
            elif own is None and join:
                response = await self._join_queue()
            else:
                return self._blocked(present, revision)
        return Verdict(revision_of(response))

    def _may_pass(self, present: list[QueueKey], *, join: bool) -> bool:
        """Return whether it enters without joining the queue: it may overtake, or it must not wait."""
        ticket = self._states.ticket
        if join and not entries.passes(ticket):
            return False
        return entries.may_enter(self._states.name, present, ticket)

    def _blocked(self, present: list[QueueKey], revision: int) -> Verdict:
        others = entries.blockers(present, self._states.ticket)
        held_by = next((one for one in present if one.holds), others[0] if others else None)
        return Verdict(0, tuple(one.key for one in others), revision, held_by)

    async def _enter_in_turn(self, own: QueueKey, revision: int) -> Json:
        unmarked = unwritten_since(self._marks, revision)
        return await self._send([created(only(own.key), own.created), unmarked], self._writes(holds=True))

    async def _enter_past(self, own: QueueKey | None, revision: int) -> Json:
        before = absent(only(self._states.key)) if own is None else created(only(self._states.key), own.created)
        mark = put(self._states.mark, b"", self._states.session.id)
        compare = [before, unwritten_since(self._queue, revision), unwritten_since(self._marks, revision)]
        return await self._send(compare, [*self._writes(holds=True), mark])

    async def _join_queue(self) -> Json:
        """Join the queue, and return what the same transaction read, in the form of a failed attempt to enter."""
        read = ranged(self._queue)
        response = await self._send([absent(only(self._states.key))], [*self._writes(holds=False), read])
        if response.get("succeeded"):
            return {**response, "succeeded": False, "responses": response["responses"][1:]}
        return response

    def _writes(self, *, holds: bool) -> list[Json]:
        state = self._states
        return [put(state.key, entries.value(state.ticket, state.session.length, holds=holds), state.session.id)]

    async def _send(self, compare: list[Json], writes: list[Json]) -> Json:
        left = self._until - self._runtime.now()
        if left <= 0:
            raise StoreUnavailable(
                f"could not acquire {self._states.name!r} in time: other clients changed its queue again and again",
                unknown=True,
            )
        failure = [ranged(self._queue), ranged(self._tombstone, keys_only=True)]
        body = txn([*compare, absent(self._tombstone)], writes, failure)
        response = await self._gateway.call("/v3/kv/txn", body, within=left)
        self._states.session.confirm(self._states.renewal, response)
        return response

    async def _pause(self, attempt: int) -> None:
        if attempt:
            await self._runtime.sleep(PAUSE * attempt * self._runtime.jitter())
