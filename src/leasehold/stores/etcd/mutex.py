"""Acquiring a lock: one transaction that writes our key and reads the keys ahead of it.

The key with the smallest create revision below the name holds. So ours holds at once if there was no other, and else
when the key ahead of it is gone. A newcomer can never be faster: every lock is fair.

A request that must not wait writes its key only if there is no other. A request that arrives after the release of its
ticket finds a *tombstone*, and writes nothing. A repeated request finds its key with the same create revision, which is
the token.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.errors import NameInUse
from leasehold.stores._common.uses import refuse_other_use
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import QueueKey
from leasehold.stores.etcd.keys import (
    FIRST,
    LAST,
    Json,
    Keys,
    absent,
    deleted,
    found,
    only,
    put,
    ranged,
    revision_of,
    span,
    txn,
)
from leasehold.stores.etcd.waiting import TicketState


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a transaction.

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


async def try_acquire(
    gateway: Gateway, keys: Keys, state: TicketState, *, join: bool, until: float, now: float
) -> Verdict:
    """Write the ticket's key, and return whether it holds.

    Raises:
        NameInUse: the name is in use as another primitive; our key is deleted again.

    """
    in_queue = span(keys.queue(state.name))
    write = put(state.key, entries.value(state.ticket, state.session.length, holds=True), state.session.id)
    first, last = ranged(in_queue, **FIRST), ranged(in_queue, **LAST)
    not_released = absent(only(keys.tombstone(state.entry)))
    if join:
        body = txn([absent(only(state.key)), not_released], [first, last, write], [first, ranged(only(state.key))])
    else:
        body = txn([absent(in_queue), not_released], [write], [first, ranged(only(state.key))])
    response = await gateway.call("/v3/kv/txn", body, within=until - now)
    state.session.confirm(state.renewal, response)
    if response.get("succeeded"):
        return await _put(gateway, state, response)
    return await _found(gateway, keys, state, response, within=until - now)


async def _put(gateway: Gateway, state: TicketState, response: Json) -> Verdict:
    revision, before = revision_of(response), [entries.read_key(kv) for kv in found(response, 0)]
    if not before:
        return Verdict(revision)
    try:
        refuse_other_use(state.name, [one.ticket for one in before], state.ticket.terms.mode)
    except NameInUse:
        await gateway.call("/v3/kv/txn", txn([], [deleted(only(state.key))]), within=1.0)
        raise
    ahead = tuple(entries.read_key(kv).key for kv in found(response, 1))
    return Verdict(0, ahead, revision, before[0])


async def _found(gateway: Gateway, keys: Keys, state: TicketState, response: Json, *, within: float) -> Verdict:
    """Return the result when our key existed, or a key for which the request must not wait."""
    first, own = ([entries.read_key(kv) for kv in found(response, index)] for index in (0, 1))
    if not first:
        return Verdict(revision=revision_of(response))  # the ticket was released before this request arrived
    if own and first[0].key == own[0].key:
        return Verdict(own[0].created)
    refuse_other_use(state.name, [one.ticket for one in first], state.ticket.terms.mode)
    if not own:
        return Verdict(0, (), revision_of(response), first[0])
    before = {**span(keys.queue(state.name)), **LAST, "max_create_revision": str(own[0].created - 1)}
    answer = await gateway.call("/v3/kv/range", before, within=within)
    ahead = tuple(entries.read_key(kv).key for kv in answer.get("kvs", []))
    return Verdict(0, ahead, revision_of(answer), first[0])
