"""Claims: how a ticket gets a lock, a side of a read-write lock, or permits. Each step may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from leasehold._model import Kind
from leasehold.stores.zookeeper import order
from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, SEQUENCE, Node, Request
from leasehold.stores.zookeeper.entries import spell, words_of
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Contender, Mark, child_of, parse, stem
from leasehold.stores.zookeeper.queueing import Queueing
from leasehold.stores.zookeeper.ticket_state import Place


@dataclass(frozen=True, slots=True)
class Entered:
    """The ticket holds."""

    token: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The ticket waits for a change of ``path``; ``holder`` is who holds. With ``listing`` see `Queueing.watch`."""

    path: str
    holder: str
    listing: int = 0


COMPARED = 64
"""Permits whose limit is compared with ours: the first of this library's has it, and all of those agree."""


async def enter(queueing: Queueing, place: Place, *, join: bool, until: float) -> Entered | Behind:
    """Try once to hold. Without ``join`` a ticket that does not hold may still have a node: the caller removes it."""
    match place.ticket.terms.mode.kind:
        case Kind.MUTEX:
            return await _lock(queueing, place, join=join, until=until)
        case Kind.READ_WRITE:
            return await _side(queueing, place, join=join, until=until)
        case Kind.SEMAPHORE:
            return await _permits(queueing, place, join=join, until=until)


# --- a lock ------------------------------------------------------------------------------------------------------


async def _lock(queueing: Queueing, place: Place, *, join: bool, until: float) -> Entered | Behind:
    if not join and not place.nodes and not place.unsure:  # who only tries writes nothing while others are there
        others = await _seen(queueing, place, until)
        if others:
            return _behind(place, others)
    me, siblings, _ = await queueing.stand(place, place.path, Mark.LOCK, until)
    await queueing.refuse_other_use(place, siblings, until)
    ahead = order.ahead_of(me, _without_folders(siblings))
    return _behind(place, ahead) if ahead else Entered(place.node_at(f"{place.path}/{me.child}").czxid)


async def _seen(queueing: Queueing, place: Place, until: float) -> list[Contender]:
    """Return, in order, who is at the lock; an error if it is used as something else."""
    _, children = await queueing.transport.ask_all(
        (queueing.transport.sync(place.path), queueing.transport.children(place.path)), until
    )
    siblings = [] if isinstance(children, NoNode) else order.in_order(parse(child) for child in children)
    await queueing.refuse_other_use(place, siblings, until)
    return _without_folders(siblings)


def _without_folders(siblings: Sequence[Contender]) -> list[Contender]:
    return [one for one in siblings if one.child not in (LOCKS, LEASES)]


def _behind(place: Place, ahead: Sequence[Contender]) -> Behind:
    return Behind(f"{place.path}/{ahead[-1].child}", f"{place.path}/{ahead[0].child}")


# --- a read-write lock -------------------------------------------------------------------------------------------


async def _side(queueing: Queueing, place: Place, *, join: bool, until: float) -> Entered | Behind:
    mode, alongside = place.ticket.terms.mode, place.ticket.alongside
    mark = Mark.WRITER if mode.exclusive else Mark.READER
    if not place.nodes and not place.unsure and (alongside or not join or not (mode.exclusive or mode.fair)):
        seen = await _seen(queueing, place, until)
        other = next((one for one in seen if alongside and one.ticket == alongside), None)
        if other is None and not (mode.exclusive or mode.fair or mode.upgradeable):
            other = order.reader_to_pass_alongside(seen)
        blocked = [one for one in seen if mode.exclusive or one.mark is Mark.WRITER or (mode.upgradeable and one.up)]
        if other is not None:
            await queueing.make_alongside(
                place, other, mark, up=other.up if mode.exclusive else mode.upgradeable, until=until
            )
        elif blocked and not join:
            return _behind(place, blocked)
    while True:
        me, siblings, _ = await queueing.stand(place, place.path, mark, until)
        await queueing.refuse_other_use(place, siblings, until)
        siblings = _without_folders(siblings)
        born = await _births(queueing, place, me, siblings, until)
        ahead = order.in_way(me, alongside, siblings, born)
        if ahead:
            return _behind(place, ahead)
        path = f"{place.path}/{me.child}"
        try:
            node = await queueing.transport.ask(queueing.transport.set(path, spell(place.ticket)), until)
        except NoNode:  # an operator removed it
            place.nodes.pop(path, None)
            continue
        return Entered(node.mzxid)


async def _births(
    queueing: Queueing, place: Place, me: Contender, siblings: Sequence[Contender], until: float
) -> dict[str, int]:
    wanted = order.to_date(me, [one for one in siblings if one.child != me.child])
    nodes = (
        await queueing.transport.ask_all([queueing.transport.get(f"{place.path}/{one.child}") for one in wanted], until)
        if wanted
        else []
    )
    born = {child_of(node.path): node.czxid for node in nodes if isinstance(node, Node)}
    return {**born, me.child: place.node_at(f"{place.path}/{me.child}").czxid}


# --- permits of a semaphore --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A semaphore as it was seen.

    Attributes:
        taken: names of the permits, in order.
        version: of the node above them; whoever takes permits raises it, so that two never take at the same time.
        queue: who stands in line for permits, in order.

    """

    taken: tuple[str, ...]
    version: int
    queue: tuple[Contender, ...] = ()


async def _permits(queueing: Queueing, place: Place, *, join: bool, until: float) -> Entered | Behind:
    mode, locks, leases = place.ticket.terms.mode, f"{place.path}/{LOCKS}", f"{place.path}/{LEASES}"
    transport = queueing.transport
    look = (transport.children(place.path), transport.listing(leases))
    if not place.nodes and not place.unsure and not (join and mode.fair):
        _, queue, *found = await transport.ask_all(
            (transport.sync(place.path), transport.children(locks), *look), until
        )
        seen = await _seen_permits(queueing, place, [] if isinstance(queue, NoNode) else queue, found, until)
        if not join and not _fits(place, seen):
            return _full(place, seen)
        if not mode.fair and _fits(place, seen) and await _waits(queueing, place, seen, until):
            await _take(queueing, place, transport.check(f"{locks}/{seen.queue[0].child}"), seen, until)
    while True:
        if place.unsure:
            await queueing.find(place, place.folders, until)
        mine = place.node_in(leases)
        if mine is not None:
            await _leave_queue(queueing, place, until)
            return Entered(mine.czxid)
        me, siblings, found = await queueing.stand(place, locks, Mark.LOCK, until, look)
        seen = await _seen_permits(queueing, place, [one.child for one in siblings], found, until)
        ahead = order.ahead_of(me, seen.queue)
        if ahead and (join or not _fits(place, seen) or await _waits(queueing, place, seen, until)):
            return Behind(f"{locks}/{ahead[-1].child}", _holder(place, seen))
        if ahead:  # whoever is first is only passing through: permits are free
            await _passing(queueing, place, f"{locks}/{ahead[-1].child}", until)
        elif not _fits(place, seen):
            return _full(place, seen)
        else:
            await _take(queueing, place, transport.delete(f"{locks}/{me.child}"), seen, until)


async def _seen_permits(
    queueing: Queueing, place: Place, queue: Sequence[str], found: Sequence[Any], until: float
) -> Seen:
    """Read what was seen; an error if the node is used as something else, or with another limit."""
    root, listing = found
    await queueing.refuse_other_use(place, [] if isinstance(root, NoNode) else [parse(child) for child in root], until)
    nothing: tuple[list[str], int] = ([], -1)
    children, version = nothing if isinstance(listing, NoNode) else cast("tuple[list[str], int]", listing)
    taken = tuple(one.child for one in order.in_order(parse(child) for child in children))
    if taken:
        paths = [f"{place.path}/{LEASES}/{child}" for child in taken[:COMPARED]]
        nodes = await queueing.transport.ask_all(list(map(queueing.transport.get, paths)), until)
        await queueing.refuse_other_limit(place, [node.data for node in nodes if isinstance(node, Node)], until)
    return Seen(taken, version, tuple(order.in_order(parse(child) for child in queue)))


def _fits(place: Place, seen: Seen) -> bool:
    mode = place.ticket.terms.mode
    return len(seen.taken) + mode.permits <= mode.limit


async def _waits(queueing: Queueing, place: Place, seen: Seen, until: float) -> bool:
    """Say whether who is first in line waits for permits; otherwise it is about to take them.

    One that is not of this library never counts as waiting here: with its permit in the count it has taken all.
    """
    if not seen.queue:
        return False
    (head,) = await queueing.transport.ask_all(
        (queueing.transport.get(f"{place.path}/{LOCKS}/{seen.queue[0].child}"),), until
    )
    wanted = words_of(head.data).get("permits") if isinstance(head, Node) else None
    return isinstance(wanted, int) and len(seen.taken) + wanted > place.ticket.terms.mode.limit


def _holder(place: Place, seen: Seen) -> str:
    return f"{place.path}/{LEASES}/{seen.taken[0]}" if seen.taken else f"{place.path}/{LOCKS}/{seen.queue[0].child}"


def _full(place: Place, seen: Seen) -> Behind:
    mode = place.ticket.terms.mode
    return Behind(f"{place.path}/{LEASES}", _holder(place, seen), listing=mode.limit - mode.permits + 1)


async def _passing(queueing: Queueing, place: Place, path: str, until: float) -> None:
    if await queueing.watch(place, path, path, until) is not None:
        await place.wake_up.wait(max(0.0, until - queueing.now()))


async def _take(queueing: Queueing, place: Place, first: Request, seen: Seen, until: float) -> None:
    """Take permits in one transaction with ``first``: to leave the queue, or to check that its head is still there.

    It fails if that node has gone, with a session for example, or if somebody took permits since they were counted.
    """
    transport, leases = queueing.transport, f"{place.path}/{LEASES}"
    if seen.version < 0:
        await queueing.make_way(leases, until)
        return
    place.go_on()
    path = f"{leases}/{stem(place.ticket.id, Mark.LEASE)}"
    take = [transport.plainly(path, spell(place.ticket), EPHEMERAL | SEQUENCE)] * place.ticket.terms.mode.permits
    place.unsure = True
    await transport.ask_all((transport.all_or_none(first, transport.set(leases, b"", seen.version), *take),), until)
    await queueing.find(place, place.folders, until)


async def _leave_queue(queueing: Queueing, place: Place, until: float) -> None:
    """Leave the queue, where a transaction did not do so."""
    node = place.node_in(f"{place.path}/{LOCKS}")
    if node is not None:
        await queueing.transport.ask_all((queueing.transport.delete(node.path),), until)
        place.nodes.pop(node.path, None)
