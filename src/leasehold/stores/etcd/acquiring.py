"""Acquiring: the transactions that write the key of a ticket, and the decision whether it holds.

Theory of operation
-------------------
*A lock.* One transaction writes our key and reads the keys ahead of it. The key with the smallest create revision below
the name holds. So ours holds at once if there was no other, and else when the key ahead of it is gone. A newcomer can
never be faster: every lock is fair. A request that must not wait writes its key only if there is no other. A repeated
request finds its key with the same create revision, which is the token.

*Read-write locks and semaphores.* Several may hold at once, so the value of a key says whether it holds. A fair ticket
joins the queue first. It may enter when it conflicts with no holder and with no waiter ahead of it. Waiters behind it
count it, whether it has entered yet or not. So many may enter at once, and none can be wrong about another.

A ticket that may overtake (``fair=False``, or alongside a ticket of its own) enters by a transaction that fails if
another client wrote below the name meanwhile, and leaves a *mark*. A fair ticket enters by a transaction that fails if
there is a mark that it has not seen. After a failure both read the queue and decide again. The revision of the
transaction that entered is the token. So tokens increase from grant to grant.

A request that arrives after the release of its ticket finds a *tombstone*, and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._runtimes.base import Runtime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores._common.answers import refuse_other_use
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import QueueKey
from leasehold.stores.etcd.keys import (
    FIRST,
    LAST,
    Json,
    absent,
    created,
    deleted,
    found,
    key_of,
    only,
    put,
    ranged,
    revision_of,
    span,
    txn,
    unwritten_since,
)
from leasehold.stores.etcd.waiting import TicketState

PAUSE = 0.002
"""Base of the pause before another attempt, in seconds; times a random number and the number of attempts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an acquire.

    Attributes:
        token: the token, 0 if the ticket does not hold.
        blockers: the keys of which one must be deleted before the ticket can hold.
        revision: the store's revision at that time.
        held_by: the first key.
    """

    token: int = 0
    blockers: tuple[str, ...] = ()
    revision: int = 0
    held_by: QueueKey | None = None


# --- locks -------------------------------------------------------------------------------------------------------


async def acquire_mutex(gateway: Gateway, state: TicketState, until: float, *, join: bool) -> Verdict:
    """Write the ticket's key, and return whether it holds.

    Raises:
        NameInUse: the name is in use as another primitive; our key is deleted again.
    """
    in_queue = span(state.queue)
    first, last = ranged(in_queue, **FIRST), ranged(in_queue, **LAST)
    not_released = absent(only(state.tombstone))
    if join:
        compare, success = [absent(only(state.key)), not_released], [first, last, _write(state, holds=True)]
    else:
        compare, success = [absent(in_queue), not_released], [_write(state, holds=True)]
    body = txn(compare, success, [first, ranged(only(state.key))])
    response = await gateway.call("/v3/kv/txn", body, until)
    state.session.confirm(state.renewal, response)
    if response.get("succeeded"):
        state.written = True
        return await _written(gateway, state, response, until)
    return await _found(gateway, state, response, until)


async def _written(gateway: Gateway, state: TicketState, response: Json, until: float) -> Verdict:
    revision, before = revision_of(response), entries.read_keys(found(response, 0))
    if not before:
        return Verdict(revision)
    try:
        refuse_other_use(state.name, [one.ticket for one in before], state.ticket.terms.mode)
    except NameInUse:
        await gateway.call("/v3/kv/txn", txn([], [deleted(only(state.key))]), until)
        raise
    return Verdict(0, _names(found(response, 1)), revision, before[0])


async def _found(gateway: Gateway, state: TicketState, response: Json, until: float) -> Verdict:
    """Return the result when our key existed, or a key for which the request must not wait."""
    first, own = (entries.read_keys(found(response, index)) for index in (0, 1))
    if not first:
        return Verdict(revision=revision_of(response))  # the ticket was released before this request arrived
    if own and first[0].key == own[0].key:
        return Verdict(own[0].created)
    refuse_other_use(state.name, [one.ticket for one in first], state.ticket.terms.mode)
    if not own:
        return Verdict(0, (), revision_of(response), first[0])
    before = {**span(state.queue), **LAST, "max_create_revision": str(own[0].created - 1)}
    answer = await gateway.call("/v3/kv/range", before, until)
    return Verdict(0, _names(answer.get("kvs", [])), revision_of(answer), first[0])


def _write(state: TicketState, *, holds: bool) -> Json:
    return put(state.key, entries.value(state.ticket, state.session.length, holds=holds), state.session.id)


def _names(kvs: list[Json]) -> tuple[str, ...]:
    return tuple(key_of(kv) for kv in kvs)


# --- read-write locks and semaphores -----------------------------------------------------------------------------


class SharedAcquire:
    """One acquire request of one ticket."""

    def __init__(self, runtime: Runtime, gateway: Gateway, state: TicketState, until: float) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._state = state
        self._until = until
        self._queue = span(state.queue)
        self._marks = span(state.marks)
        self._tombstone = only(state.tombstone)

    async def try_acquire(self, *, join: bool) -> Verdict:
        """Enter if the rules allow; else join the queue if asked, and return the blockers."""
        response = await self._send([absent(self._queue)], [_write(self._state, holds=True)])
        attempt = 0
        while not response.get("succeeded"):
            if found(response, 1):
                return Verdict(revision=revision_of(response))  # the ticket was released before this request arrived
            present, revision = entries.read_keys(found(response, 0)), revision_of(response)
            own = next((one for one in present if one.key == self._state.key), None)
            if own is not None and own.holds:
                return Verdict(own.written)
            refuse_other_use(self._state.name, [one.ticket for one in present], self._state.ticket.terms.mode)
            if own is not None and entries.is_its_turn(present, own):
                compare, writes = self._in_turn(own, revision)
            elif self._may_enter_out_of_turn(present, own, join=join):
                compare, writes = self._out_of_turn(own, revision)
            elif own is None and join:
                response = await self._join_queue()
                continue
            else:
                return self._blocked(present, revision)
            if attempt:
                await self._runtime.sleep(PAUSE * attempt * self._runtime.jitter())
            attempt += 1
            response = await self._send(compare, writes)
        return Verdict(revision_of(response))

    def _may_enter_out_of_turn(self, present: list[QueueKey], own: QueueKey | None, *, join: bool) -> bool:
        """Return whether it enters out of turn: it may overtake, or it must not wait and has not joined the queue."""
        ticket = self._state.ticket
        may_overtake = entries.may_overtake(ticket) or (own is None and not join)
        return may_overtake and entries.may_enter(self._state.name, present, ticket)

    def _blocked(self, present: list[QueueKey], revision: int) -> Verdict:
        others = entries.blockers(present, self._state.ticket)
        held_by = next((one for one in present if one.holds), others[0] if others else None)
        return Verdict(0, tuple(one.key for one in others), revision, held_by)

    def _in_turn(self, own: QueueKey, revision: int) -> tuple[list[Json], list[Json]]:
        """Return the comparisons and writes of a fair ticket that enters."""
        unmarked = unwritten_since(self._marks, revision)
        return [created(only(own.key), own.created), unmarked], [_write(self._state, holds=True)]

    def _out_of_turn(self, own: QueueKey | None, revision: int) -> tuple[list[Json], list[Json]]:
        """Return the comparisons and writes of a ticket that overtakes."""
        unchanged = created(only(self._state.key), own.created if own is not None else 0)
        compare = [unchanged, unwritten_since(self._queue, revision), unwritten_since(self._marks, revision)]
        return compare, [_write(self._state, holds=True), put(self._state.mark, b"", self._state.session.id)]

    async def _join_queue(self) -> Json:
        """Join the queue, and return what the same transaction read, in the form of a failed attempt to enter."""
        read = ranged(self._queue)
        response = await self._send([absent(only(self._state.key))], [_write(self._state, holds=False), read])
        if response.get("succeeded"):
            return {**response, "succeeded": False, "responses": response["responses"][1:]}
        return response

    async def _send(self, compare: list[Json], writes: list[Json]) -> Json:
        if self._runtime.now() >= self._until:
            raise StoreUnavailable(
                f"could not acquire {self._state.name!r} in time: other clients changed its queue again and again",
                unknown=True,
            )
        failure = [ranged(self._queue), ranged(self._tombstone, keys_only=True)]
        body = txn([*compare, absent(self._tombstone)], writes, failure)
        response = await self._gateway.call("/v3/kv/txn", body, self._until)
        self._state.session.confirm(self._state.renewal, response)
        self._state.written = self._state.written or bool(response.get("succeeded"))
        return response
