"""Claims of a lock: one transaction that puts our key and reads who stands before it.

The key with the smallest create revision below the name holds; so ours holds at once if nobody was there, and else when
the one before it has gone. There is no moment at which a newcomer could be faster: every lock is fair.

A try puts its key only if nobody is there. A claim whose leave was sent before it arrived finds a *grave*, and puts
nothing. A repeated claim finds its key, with the same create revision, which is the token.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.errors import NameInUse
from leasehold.stores._common.uses import refuse_other_use
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import Place
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
from leasehold.stores.etcd.waiting import Mine


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a transaction said.

    Attributes:
        token: the token, 0 if the ticket does not hold.
        blockers: whom it waits for: the keys of which one must go.
        revision: of the store when it was so.
        held_by: who stands first.

    """

    token: int = 0
    blockers: tuple[str, ...] = ()
    revision: int = 0
    held_by: Place | None = None


async def try_acquire(gateway: Gateway, keys: Keys, mine: Mine, *, join: bool, until: float, now: float) -> Verdict:
    """Put the ticket's key, and say whether it holds.

    Raises:
        NameInUse: the name is in use as something else; nothing of ours is left.

    """
    line = span(keys.queue(mine.name))
    write = put(mine.key, entries.value(mine.ticket, mine.session.length, holds=True), mine.session.id)
    first, last = ranged(line, **FIRST), ranged(line, **LAST)
    unburied = absent(only(keys.grave(mine.entry)))
    if join:
        body = txn([absent(only(mine.key)), unburied], [first, last, write], [first, ranged(only(mine.key))])
    else:
        body = txn([absent(line), unburied], [write], [first, ranged(only(mine.key))])
    said = await gateway.call("/v3/kv/txn", body, within=until - now)
    mine.session.confirm(mine.kept, said)
    if said.get("succeeded"):
        return await _put(gateway, mine, said)
    return await _found(gateway, keys, mine, said, within=until - now)


async def _put(gateway: Gateway, mine: Mine, said: Json) -> Verdict:
    revision, before = revision_of(said), [entries.place(kv) for kv in found(said, 0)]
    if not before:
        return Verdict(revision)
    try:
        refuse_other_use(mine.name, [one.ticket for one in before], mine.ticket.terms.mode)
    except NameInUse:
        await gateway.call("/v3/kv/txn", txn([], [deleted(only(mine.key))]), within=1.0)
        raise
    ahead = tuple(entries.place(kv).key for kv in found(said, 1))
    return Verdict(0, ahead, revision, before[0])


async def _found(gateway: Gateway, keys: Keys, mine: Mine, said: Json, *, within: float) -> Verdict:
    """Our key was there, or somebody whom a try does not wait for."""
    first, own = ([entries.place(kv) for kv in found(said, index)] for index in (0, 1))
    if not first:
        return Verdict(revision=revision_of(said))  # it was left before this claim arrived
    if own and first[0].key == own[0].key:
        return Verdict(own[0].created)
    refuse_other_use(mine.name, [one.ticket for one in first], mine.ticket.terms.mode)
    if not own:
        return Verdict(0, (), revision_of(said), first[0])
    before = {**span(keys.queue(mine.name)), **LAST, "max_create_revision": str(own[0].created - 1)}
    answer = await gateway.call("/v3/kv/range", before, within=within)
    ahead = tuple(entries.place(kv).key for kv in answer.get("kvs", []))
    return Verdict(0, ahead, revision_of(answer), first[0])
