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
from leasehold.stores.zookeeper.queueing import Line
from leasehold.stores.zookeeper.ticket_state import Place


@dataclass(frozen=True, slots=True)
class Entered:
    """The ticket holds."""

    token: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The ticket waits for a change of ``path``; ``holder`` is who holds. With ``listing`` see `Line.watch`."""

    path: str
    holder: str
    listing: int = 0


COMPARED = 64
"""Permits whose limit is compared with ours: the first of this library's has it, and all of those agree."""


async def enter(line: Line, place: Place, *, join: bool, until: float) -> Entered | Behind:
    """Try once to hold. Without ``join`` a ticket that does not hold may still have a node: the caller removes it."""
    match place.ticket.terms.rule.kind:
        case Kind.MUTEX:
            return await _lock(line, place, join=join, until=until)
        case Kind.READ_WRITE:
            return await _side(line, place, join=join, until=until)
        case Kind.SEMAPHORE:
            return await _permits(line, place, join=join, until=until)


# --- a lock ------------------------------------------------------------------------------------------------------


async def _lock(line: Line, place: Place, *, join: bool, until: float) -> Entered | Behind:
    if not join and not place.nodes and not place.unsure:  # who only tries writes nothing while others are there
        others = await _seen(line, place, until)
        if others:
            return _behind(place, others)
    me, siblings, _ = await line.stand(place, place.path, Mark.LOCK, until)
    await line.refuse_other_use(place, siblings, until)
    ahead = order.ahead_of(me, _without_folders(siblings))
    return _behind(place, ahead) if ahead else Entered(place.node_at(f"{place.path}/{me.child}").czxid)


async def _seen(line: Line, place: Place, until: float) -> list[Contender]:
    """Return, in order, who is at the lock; an error if it is used as something else."""
    _, children = await line.wire.ask_all((line.wire.sync(place.path), line.wire.children(place.path)), until)
    siblings = [] if isinstance(children, NoNode) else order.in_order(parse(child) for child in children)
    await line.refuse_other_use(place, siblings, until)
    return _without_folders(siblings)


def _without_folders(siblings: Sequence[Contender]) -> list[Contender]:
    return [one for one in siblings if one.child not in (LOCKS, LEASES)]


def _behind(place: Place, ahead: Sequence[Contender]) -> Behind:
    return Behind(f"{place.path}/{ahead[-1].child}", f"{place.path}/{ahead[0].child}")


# --- a read-write lock -------------------------------------------------------------------------------------------


async def _side(line: Line, place: Place, *, join: bool, until: float) -> Entered | Behind:
    rule, beside = place.ticket.terms.rule, place.ticket.beside
    mark = Mark.WRITER if rule.exclusive else Mark.READER
    if not place.nodes and not place.unsure and (beside or not join or not (rule.exclusive or rule.fair)):
        seen = await _seen(line, place, until)
        other = next((one for one in seen if beside and one.ticket == beside), None)
        if other is None and not (rule.exclusive or rule.fair or rule.upgradeable):
            other = order.reader_to_pass_beside(seen)
        blocked = [one for one in seen if rule.exclusive or one.mark is Mark.WRITER or (rule.upgradeable and one.up)]
        if other is not None:
            await line.make_beside(place, other, mark, up=other.up if rule.exclusive else rule.upgradeable, until=until)
        elif blocked and not join:
            return _behind(place, blocked)
    while True:
        me, siblings, _ = await line.stand(place, place.path, mark, until)
        await line.refuse_other_use(place, siblings, until)
        siblings = _without_folders(siblings)
        born = await _births(line, place, me, siblings, until)
        ahead = order.in_way(me, beside, siblings, born)
        if ahead:
            return _behind(place, ahead)
        path = f"{place.path}/{me.child}"
        try:
            node = await line.wire.ask(line.wire.set(path, spell(place.ticket)), until)
        except NoNode:  # an operator removed it
            place.nodes.pop(path, None)
            continue
        return Entered(node.mzxid)


async def _births(
    line: Line, place: Place, me: Contender, siblings: Sequence[Contender], until: float
) -> dict[str, int]:
    wanted = order.to_date(me, [one for one in siblings if one.child != me.child])
    nodes = (
        await line.wire.ask_all([line.wire.get(f"{place.path}/{one.child}") for one in wanted], until) if wanted else []
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


async def _permits(line: Line, place: Place, *, join: bool, until: float) -> Entered | Behind:
    rule, locks, leases = place.ticket.terms.rule, f"{place.path}/{LOCKS}", f"{place.path}/{LEASES}"
    wire = line.wire
    look = (wire.children(place.path), wire.listing(leases))
    if not place.nodes and not place.unsure and not (join and rule.fair):
        _, queue, *found = await wire.ask_all((wire.sync(place.path), wire.children(locks), *look), until)
        seen = await _seen_permits(line, place, [] if isinstance(queue, NoNode) else queue, found, until)
        if not join and not _fits(place, seen):
            return _full(place, seen)
        if not rule.fair and _fits(place, seen) and await _waits(line, place, seen, until):
            await _take(line, place, wire.check(f"{locks}/{seen.queue[0].child}"), seen, until)
    while True:
        if place.unsure:
            await line.find(place, place.folders, until)
        mine = place.node_in(leases)
        if mine is not None:
            await _leave_queue(line, place, until)
            return Entered(mine.czxid)
        me, siblings, found = await line.stand(place, locks, Mark.LOCK, until, look)
        seen = await _seen_permits(line, place, [one.child for one in siblings], found, until)
        ahead = order.ahead_of(me, seen.queue)
        if ahead and (join or not _fits(place, seen) or await _waits(line, place, seen, until)):
            return Behind(f"{locks}/{ahead[-1].child}", _holder(place, seen))
        if ahead:  # whoever is first is only passing through: permits are free
            await _passing(line, place, f"{locks}/{ahead[-1].child}", until)
        elif not _fits(place, seen):
            return _full(place, seen)
        else:
            await _take(line, place, wire.delete(f"{locks}/{me.child}"), seen, until)


async def _seen_permits(line: Line, place: Place, queue: Sequence[str], found: Sequence[Any], until: float) -> Seen:
    """Read what was seen; an error if the node is used as something else, or with another limit."""
    root, listing = found
    await line.refuse_other_use(place, [] if isinstance(root, NoNode) else [parse(child) for child in root], until)
    nothing: tuple[list[str], int] = ([], -1)
    children, version = nothing if isinstance(listing, NoNode) else cast("tuple[list[str], int]", listing)
    taken = tuple(one.child for one in order.in_order(parse(child) for child in children))
    if taken:
        paths = [f"{place.path}/{LEASES}/{child}" for child in taken[:COMPARED]]
        nodes = await line.wire.ask_all(list(map(line.wire.get, paths)), until)
        await line.refuse_other_limit(place, [node.data for node in nodes if isinstance(node, Node)], until)
    return Seen(taken, version, tuple(order.in_order(parse(child) for child in queue)))


def _fits(place: Place, seen: Seen) -> bool:
    rule = place.ticket.terms.rule
    return len(seen.taken) + rule.permits <= rule.limit


async def _waits(line: Line, place: Place, seen: Seen, until: float) -> bool:
    """Say whether who is first in line waits for permits; otherwise it is about to take them.

    One that is not of this library never counts as waiting here: with its permit in the count it has taken all.
    """
    if not seen.queue:
        return False
    (head,) = await line.wire.ask_all((line.wire.get(f"{place.path}/{LOCKS}/{seen.queue[0].child}"),), until)
    wanted = words_of(head.data).get("permits") if isinstance(head, Node) else None
    return isinstance(wanted, int) and len(seen.taken) + wanted > place.ticket.terms.rule.limit


def _holder(place: Place, seen: Seen) -> str:
    return f"{place.path}/{LEASES}/{seen.taken[0]}" if seen.taken else f"{place.path}/{LOCKS}/{seen.queue[0].child}"


def _full(place: Place, seen: Seen) -> Behind:
    rule = place.ticket.terms.rule
    return Behind(f"{place.path}/{LEASES}", _holder(place, seen), listing=rule.limit - rule.permits + 1)


async def _passing(line: Line, place: Place, path: str, until: float) -> None:
    if await line.watch(place, path, path, until) is not None:
        await place.bell.wait(max(0.0, until - line.now()))


async def _take(line: Line, place: Place, first: Request, seen: Seen, until: float) -> None:
    """Take permits in one transaction with ``first``: to leave the queue, or to check that its head is still there.

    It fails if that node has gone, with a session for example, or if somebody took permits since they were counted.
    """
    wire, leases = line.wire, f"{place.path}/{LEASES}"
    if seen.version < 0:
        await line.make_way(leases, until)
        return
    place.go_on()
    path = f"{leases}/{stem(place.ticket.id, Mark.LEASE)}"
    take = [wire.plainly(path, spell(place.ticket), EPHEMERAL | SEQUENCE)] * place.ticket.terms.rule.permits
    place.unsure = True
    await wire.ask_all((wire.all_or_none(first, wire.set(leases, b"", seen.version), *take),), until)
    await line.find(place, place.folders, until)


async def _leave_queue(line: Line, place: Place, until: float) -> None:
    """Leave the queue, where a transaction did not do so."""
    node = place.node_in(f"{place.path}/{LOCKS}")
    if node is not None:
        await line.wire.ask_all((line.wire.delete(node.path),), until)
        place.nodes.pop(node.path, None)
