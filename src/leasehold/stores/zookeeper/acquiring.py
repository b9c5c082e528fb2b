"""Acquiring a lock, a side of a read-write lock, or permits of a semaphore. Each step may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from leasehold._model import Kind
from leasehold.stores.zookeeper import order
from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, SEQUENCE, Node, Request
from leasehold.stores.zookeeper.entries import fields_of, spell
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Contender, Mark, child_of, parse, stem
from leasehold.stores.zookeeper.queue_nodes import QueueNodes
from leasehold.stores.zookeeper.ticket_state import TicketState


@dataclass(frozen=True, slots=True)
class Entered:
    """The ticket holds."""

    token: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The ticket waits for a change of ``path``; ``holder`` holds; ``listing`` as in `QueueNodes.watch`."""

    path: str
    holder: str
    listing: int = 0


COMPARED = 64
"""Permits whose limit is compared with ours, at most; all permits of this library agree on it."""


async def try_enter(queue_nodes: QueueNodes, state: TicketState, *, join: bool, until: float) -> Entered | Blocked:
    """Try once to acquire. Without ``join`` a ticket that does not hold may have a node, which the caller removes."""
    match state.ticket.terms.mode.kind:
        case Kind.MUTEX:
            return await _lock(queue_nodes, state, join=join, until=until)
        case Kind.READ_WRITE:
            return await _side(queue_nodes, state, join=join, until=until)
        case Kind.SEMAPHORE:
            return await _permits(queue_nodes, state, join=join, until=until)


# --- a lock ------------------------------------------------------------------------------------------------------


async def _lock(queue_nodes: QueueNodes, state: TicketState, *, join: bool, until: float) -> Entered | Blocked:
    if (
        not join and not state.nodes and not state.uncertain
    ):  # a request that must not wait writes nothing while others exist
        others = await _contenders(queue_nodes, state, until)
        if others:
            return _blocked_by(state, others)
    me, siblings, _ = await queue_nodes.join(state, state.path, Mark.LOCK, until)
    await queue_nodes.refuse_other_use(state, siblings, until)
    ahead = order.ahead_of(me, _without_folders(siblings))
    return _blocked_by(state, ahead) if ahead else Entered(state.node_at(f"{state.path}/{me.child}").czxid)


async def _contenders(queue_nodes: QueueNodes, state: TicketState, until: float) -> list[Contender]:
    """Return the contenders in order.

    Raises:
        NameInUse: the name is in use as another primitive.

    """
    _, children = await queue_nodes.transport.ask_all(
        (queue_nodes.transport.sync(state.path), queue_nodes.transport.children(state.path)), until
    )
    siblings = [] if isinstance(children, NoNode) else order.in_order(parse(child) for child in children)
    await queue_nodes.refuse_other_use(state, siblings, until)
    return _without_folders(siblings)


def _without_folders(siblings: Sequence[Contender]) -> list[Contender]:
    return [one for one in siblings if one.child not in (LOCKS, LEASES)]


def _blocked_by(state: TicketState, ahead: Sequence[Contender]) -> Blocked:
    return Blocked(f"{state.path}/{ahead[-1].child}", f"{state.path}/{ahead[0].child}")


# --- a read-write lock -------------------------------------------------------------------------------------------


async def _side(queue_nodes: QueueNodes, state: TicketState, *, join: bool, until: float) -> Entered | Blocked:
    mode, alongside = state.ticket.terms.mode, state.ticket.alongside
    mark = Mark.WRITER if mode.exclusive else Mark.READER
    if not state.nodes and not state.uncertain and (alongside or not join or not (mode.exclusive or mode.fair)):
        seen = await _contenders(queue_nodes, state, until)
        other = next((one for one in seen if alongside and one.ticket == alongside), None)
        if other is None and not (mode.exclusive or mode.fair or mode.upgradeable):
            other = order.reader_to_pass_alongside(seen)
        blocked = [one for one in seen if mode.exclusive or one.mark is Mark.WRITER or (mode.upgradeable and one.up)]
        if other is not None:
            await queue_nodes.make_alongside(
                state, other, mark, up=other.up if mode.exclusive else mode.upgradeable, until=until
            )
        elif blocked and not join:
            return _blocked_by(state, blocked)
    while True:
        me, siblings, _ = await queue_nodes.join(state, state.path, mark, until)
        await queue_nodes.refuse_other_use(state, siblings, until)
        siblings = _without_folders(siblings)
        created_at = await _created_at(queue_nodes, state, me, siblings, until)
        ahead = order.blockers(me, alongside, siblings, created_at)
        if ahead:
            return _blocked_by(state, ahead)
        path = f"{state.path}/{me.child}"
        try:
            node = await queue_nodes.transport.ask(queue_nodes.transport.set(path, spell(state.ticket)), until)
        except NoNode:  # an operator removed it
            state.nodes.pop(path, None)
            continue
        return Entered(node.mzxid)


async def _created_at(
    queue_nodes: QueueNodes, state: TicketState, me: Contender, siblings: Sequence[Contender], until: float
) -> dict[str, int]:
    wanted = order.needs_created_at(me, [one for one in siblings if one.child != me.child])
    nodes = (
        await queue_nodes.transport.ask_all(
            [queue_nodes.transport.get(f"{state.path}/{one.child}") for one in wanted], until
        )
        if wanted
        else []
    )
    created_at = {child_of(node.path): node.czxid for node in nodes if isinstance(node, Node)}
    return {**created_at, me.child: state.node_at(f"{state.path}/{me.child}").czxid}


# --- permits of a semaphore --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SemaphoreState:
    """What was read of a semaphore.

    Attributes:
        taken: names of the permits, in order.
        version: of their parent node; each client that takes permits raises it, so two never take at the same time.
        queue: the waiters for permits, in order.

    """

    taken: tuple[str, ...]
    version: int
    queue: tuple[Contender, ...] = ()


async def _permits(queue_nodes: QueueNodes, state: TicketState, *, join: bool, until: float) -> Entered | Blocked:
    mode, locks, leases = state.ticket.terms.mode, f"{state.path}/{LOCKS}", f"{state.path}/{LEASES}"
    transport = queue_nodes.transport
    look = (transport.children(state.path), transport.listing(leases))
    if not state.nodes and not state.uncertain and not (join and mode.fair):
        _, queue, *found = await transport.ask_all(
            (transport.sync(state.path), transport.children(locks), *look), until
        )
        seen = await _semaphore_state(queue_nodes, state, [] if isinstance(queue, NoNode) else queue, found, until)
        if not join and not _fits(state, seen):
            return _full(state, seen)
        if not mode.fair and _fits(state, seen) and await _head_waits(queue_nodes, state, seen, until):
            await _take(queue_nodes, state, transport.check(f"{locks}/{seen.queue[0].child}"), seen, until)
    while True:
        if state.uncertain:
            await queue_nodes.find(state, state.folders, until)
        mine = state.node_in(leases)
        if mine is not None:
            await _leave_queue(queue_nodes, state, until)
            return Entered(mine.czxid)
        me, siblings, found = await queue_nodes.join(state, locks, Mark.LOCK, until, look)
        seen = await _semaphore_state(queue_nodes, state, [one.child for one in siblings], found, until)
        ahead = order.ahead_of(me, seen.queue)
        if ahead and (join or not _fits(state, seen) or await _head_waits(queue_nodes, state, seen, until)):
            return Blocked(f"{locks}/{ahead[-1].child}", _holder(state, seen))
        if ahead:  # the first waiter is about to take its permits: some are free
            await _wait_for_head(queue_nodes, state, f"{locks}/{ahead[-1].child}", until)
        elif not _fits(state, seen):
            return _full(state, seen)
        else:
            await _take(queue_nodes, state, transport.delete(f"{locks}/{me.child}"), seen, until)


async def _semaphore_state(
    queue_nodes: QueueNodes, state: TicketState, queue: Sequence[str], found: Sequence[Any], until: float
) -> SemaphoreState:
    """Return the state of the semaphore from the answers.

    Raises:
        NameInUse: the name is in use as another primitive, or with another limit.

    """
    root, listing = found
    await queue_nodes.refuse_other_use(
        state, [] if isinstance(root, NoNode) else [parse(child) for child in root], until
    )
    nothing: tuple[list[str], int] = ([], -1)
    children, version = nothing if isinstance(listing, NoNode) else cast("tuple[list[str], int]", listing)
    taken = tuple(one.child for one in order.in_order(parse(child) for child in children))
    if taken:
        paths = [f"{state.path}/{LEASES}/{child}" for child in taken[:COMPARED]]
        nodes = await queue_nodes.transport.ask_all(list(map(queue_nodes.transport.get, paths)), until)
        await queue_nodes.refuse_other_limit(state, [node.data for node in nodes if isinstance(node, Node)], until)
    return SemaphoreState(taken, version, tuple(order.in_order(parse(child) for child in queue)))


def _fits(state: TicketState, seen: SemaphoreState) -> bool:
    mode = state.ticket.terms.mode
    return len(seen.taken) + mode.permits <= mode.limit


async def _head_waits(queue_nodes: QueueNodes, state: TicketState, seen: SemaphoreState, until: float) -> bool:
    """Return whether the first waiter waits for permits; otherwise it is about to take them.

    A waiter of another library never counts as waiting: it takes one permit, and is then counted among the permits.
    """
    if not seen.queue:
        return False
    (head,) = await queue_nodes.transport.ask_all(
        (queue_nodes.transport.get(f"{state.path}/{LOCKS}/{seen.queue[0].child}"),), until
    )
    wanted = fields_of(head.data).get("permits") if isinstance(head, Node) else None
    return isinstance(wanted, int) and len(seen.taken) + wanted > state.ticket.terms.mode.limit


def _holder(state: TicketState, seen: SemaphoreState) -> str:
    return f"{state.path}/{LEASES}/{seen.taken[0]}" if seen.taken else f"{state.path}/{LOCKS}/{seen.queue[0].child}"


def _full(state: TicketState, seen: SemaphoreState) -> Blocked:
    mode = state.ticket.terms.mode
    return Blocked(f"{state.path}/{LEASES}", _holder(state, seen), listing=mode.limit - mode.permits + 1)


async def _wait_for_head(queue_nodes: QueueNodes, state: TicketState, path: str, until: float) -> None:
    if await queue_nodes.watch(state, path, path, until) is not None:
        await state.wake_up.wait(max(0.0, until - queue_nodes.now()))


async def _take(
    queue_nodes: QueueNodes, state: TicketState, first: Request, seen: SemaphoreState, until: float
) -> None:
    """Take permits in one transaction with ``first``, which leaves the queue or checks that its head still exists.

    It fails if that node is gone, with its session for example, or if permits were taken since they were counted.
    """
    transport, leases = queue_nodes.transport, f"{state.path}/{LEASES}"
    if seen.version < 0:
        await queue_nodes.make_parents(leases, until)
        return
    state.raise_if_over()
    path = f"{leases}/{stem(state.ticket.id, Mark.LEASE)}"
    take = [
        transport.create_in_transaction(path, spell(state.ticket), EPHEMERAL | SEQUENCE)
    ] * state.ticket.terms.mode.permits
    state.uncertain = True
    await transport.ask_all((transport.all_or_none(first, transport.set(leases, b"", seen.version), *take),), until)
    await queue_nodes.find(state, state.folders, until)


async def _leave_queue(queue_nodes: QueueNodes, state: TicketState, until: float) -> None:
    """Leave the queue, if a transaction has not done so."""
    node = state.node_in(f"{state.path}/{LOCKS}")
    if node is not None:
        await queue_nodes.transport.ask_all((queue_nodes.transport.delete(node.path),), until)
        state.nodes.pop(node.path, None)
