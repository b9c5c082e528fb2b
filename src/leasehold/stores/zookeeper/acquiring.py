"""Acquiring a lock, a side of a read-write lock, or permits of a semaphore. Each step may be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leasehold._model import Kind
from leasehold.stores.zookeeper import order
from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, SEQUENCE, Node, Request, names_in
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Contender, Mark, child_of, data_of, fields_of, parse, stem
from leasehold.stores.zookeeper.queue_nodes import QueueNodes, TicketState

COMPARED = 64
"""Most permits whose limit is compared with ours; all permits of this library have the same limit."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The ticket waits for a change of ``path``; ``holder`` holds; ``listing`` as in `QueueNodes.watch`."""

    path: str
    holder: str
    listing: int = 0


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


class Acquirer(QueueNodes):
    """Tries to acquire for a ticket, in the way of its kind."""

    async def try_enter(self, state: TicketState, *, join: bool, until: float) -> int | Blocked:
        """Try once to acquire; return the token of a ticket that holds.

        Without ``join`` a ticket that does not hold may have a node, which the caller removes.
        """
        match state.ticket.terms.mode.kind:
            case Kind.MUTEX:
                return await self._lock(state, join=join, until=until)
            case Kind.READ_WRITE:
                return await self._read_write_lock(state, join=join, until=until)
            case Kind.SEMAPHORE:
                return await self._permits(state, join=join, until=until)

    # --- a lock --------------------------------------------------------------------------------------------------

    async def _lock(self, state: TicketState, *, join: bool, until: float) -> int | Blocked:
        if not (join or state.nodes or state.uncertain):  # without `join`, nothing is written while others exist
            others = await self._contenders(state, until)
            if others:
                return _blocked_by(state, others)
        me, siblings, _ = await self.join(state, state.path, Mark.LOCK, until)
        await self.refuse_other_use(state, siblings, until)
        ahead = order.ahead_of(me, _without_semaphore_nodes(siblings))
        return _blocked_by(state, ahead) if ahead else state.node_at(f"{state.path}/{me.child}").czxid

    async def _contenders(self, state: TicketState, until: float) -> list[Contender]:
        """Return the contenders in order.

        Raises:
            NameInUse: the name is in use as another primitive.
        """
        requests = (self.transport.sync(state.path), self.transport.children(state.path))
        _, children = await self.transport.ask_all(requests, until)
        siblings = order.in_order(map(parse, names_in(children)))
        await self.refuse_other_use(state, siblings, until)
        return _without_semaphore_nodes(siblings)

    # --- a read-write lock ---------------------------------------------------------------------------------------

    async def _read_write_lock(self, state: TicketState, *, join: bool, until: float) -> int | Blocked:
        mode, alongside = state.ticket.terms.mode, state.ticket.alongside
        mark = Mark.WRITER if mode.exclusive else Mark.READER
        if not state.nodes and not state.uncertain and (alongside or not join or not (mode.exclusive or mode.fair)):
            seen = await self._contenders(state, until)
            other = next((one for one in seen if alongside and one.ticket == alongside), None)
            if other is None and not (mode.exclusive or mode.fair or mode.upgradeable):
                other = order.reader_to_pass_alongside(seen)
            blocked = [
                one for one in seen if mode.exclusive or one.mark is Mark.WRITER or (mode.upgradeable and one.up)
            ]
            if other is not None:
                up = other.up if mode.exclusive else mode.upgradeable
                await self.make_alongside(state, other, mark, up=up, until=until)
            elif blocked and not join:
                return _blocked_by(state, blocked)
        while True:
            me, siblings, _ = await self.join(state, state.path, mark, until)
            await self.refuse_other_use(state, siblings, until)
            siblings = _without_semaphore_nodes(siblings)
            created_at = await self._created_at(state, me, siblings, until)
            ahead = order.blockers(me, alongside, siblings, created_at)
            if ahead:
                return _blocked_by(state, ahead)
            path = f"{state.path}/{me.child}"
            (node,) = await self.transport.ask_all((self.transport.set(path, data_of(state.ticket)),), until)
            if isinstance(node, Node):
                return node.mzxid
            state.nodes.pop(path, None)  # an operator removed it

    async def _created_at(
        self, state: TicketState, me: Contender, siblings: Sequence[Contender], until: float
    ) -> dict[str, int]:
        wanted = order.needs_created_at(me, [one for one in siblings if one.child != me.child])
        requests = [self.transport.get(f"{state.path}/{one.child}") for one in wanted]
        nodes = await self.transport.ask_all(requests, until) if wanted else []
        created_at = {child_of(node.path): node.czxid for node in nodes if isinstance(node, Node)}
        return {**created_at, me.child: state.node_at(f"{state.path}/{me.child}").czxid}

    # --- permits of a semaphore ----------------------------------------------------------------------------------

    async def _permits(self, state: TicketState, *, join: bool, until: float) -> int | Blocked:
        mode, locks, leases = state.ticket.terms.mode, f"{state.path}/{LOCKS}", f"{state.path}/{LEASES}"
        transport = self.transport
        reads = (transport.children(state.path), transport.listing(leases))
        if not state.nodes and not state.uncertain and not (join and mode.fair):
            requests = (transport.sync(state.path), transport.children(locks), *reads)
            _, queue, *found = await transport.ask_all(requests, until)
            seen = await self._semaphore_state(state, map(parse, names_in(queue)), found, until)
            if not join and not _fits(state, seen):
                return _blocked_by_permits(state, seen)
            if not mode.fair and _fits(state, seen) and await self._head_waits(state, seen, until):
                await self._take_permits(state, transport.check(f"{locks}/{seen.queue[0].child}"), seen, until)
        while True:
            if state.uncertain:
                await self.find(state, until)
            mine = [node for node in state.nodes.values() if node.path.startswith(f"{leases}/")]
            if len(mine) == mode.permits:
                await self._leave_queue(state, until)
                return mine[0].czxid
            if mine:  # an operator removed some: all are taken again, in one transaction
                await self.remove(state, until)
            me, siblings, found = await self.join(state, locks, Mark.LOCK, until, reads)
            seen = await self._semaphore_state(state, siblings, found, until)
            ahead = order.ahead_of(me, seen.queue)
            if ahead and (join or not _fits(state, seen) or await self._head_waits(state, seen, until)):
                return Blocked(f"{locks}/{ahead[-1].child}", _holder(state, seen))
            if ahead:  # the first waiter is about to take its permits: some are free
                await self._wait_for_head(state, f"{locks}/{ahead[-1].child}", until)
            elif not _fits(state, seen):
                return _blocked_by_permits(state, seen)
            else:
                await self._take_permits(state, transport.delete(f"{locks}/{me.child}"), seen, until)

    async def _semaphore_state(
        self, state: TicketState, queue: Iterable[Contender], found: Sequence[Any], until: float
    ) -> SemaphoreState:
        """Return the state of the semaphore from the answers.

        Raises:
            NameInUse: the name is in use as another primitive, or with another limit.
        """
        root, listing = found
        await self.refuse_other_use(state, list(map(parse, names_in(root))), until)
        nothing: tuple[list[str], int] = ([], -1)
        children, version = nothing if isinstance(listing, NoNode) else cast("tuple[list[str], int]", listing)
        taken = tuple(one.child for one in order.in_order(map(parse, children)))
        if taken:
            requests = [self.transport.get(f"{state.path}/{LEASES}/{child}") for child in taken[:COMPARED]]
            nodes = await self.transport.ask_all(requests, until)
            await self.refuse_other_limit(state, [node.data for node in nodes if isinstance(node, Node)], until)
        return SemaphoreState(taken, version, tuple(order.in_order(queue)))

    async def _head_waits(self, state: TicketState, seen: SemaphoreState, until: float) -> bool:
        """Return whether the first waiter waits for permits; otherwise it is about to take them.

        A waiter of another library never counts as waiting: it takes one permit, and is then counted among the permits.
        """
        if not seen.queue:
            return False
        request = self.transport.get(f"{state.path}/{LOCKS}/{seen.queue[0].child}")
        (head,) = await self.transport.ask_all((request,), until)
        wanted = fields_of(head.data).get("permits") if isinstance(head, Node) else None
        return isinstance(wanted, int) and len(seen.taken) + wanted > state.ticket.terms.mode.limit

    async def _wait_for_head(self, state: TicketState, path: str, until: float) -> None:
        waits, _ = await self.watch(state, path, path, until)
        if waits:
            await state.wake_up.wait(max(0.0, until - self.now()))

    async def _take_permits(self, state: TicketState, first: Request, seen: SemaphoreState, until: float) -> None:
        """Take permits in one transaction with ``first``, which leaves the queue or checks that its head still exists.

        It fails if that node is gone, with its session for example, or if permits were taken since they were counted.
        """
        transport, leases = self.transport, f"{state.path}/{LEASES}"
        if seen.version < 0:
            await self.make_parents(leases, until)
            return
        state.raise_if_over()
        path = f"{leases}/{stem(state.ticket.id, Mark.LEASE)}"
        create = transport.create_in_transaction(path, data_of(state.ticket), EPHEMERAL | SEQUENCE)
        take = (first, transport.set(leases, b"", seen.version), *[create] * state.ticket.terms.mode.permits)
        state.uncertain = True
        await transport.ask_all((transport.all_or_none(*take),), until)
        await self.find(state, until)

    async def _leave_queue(self, state: TicketState, until: float) -> None:
        """Leave the queue, if a transaction has not done so."""
        node = state.node_in(f"{state.path}/{LOCKS}")
        if node is not None:
            await self.remove_all([node.path], until)
            state.nodes.pop(node.path, None)


def _without_semaphore_nodes(siblings: Sequence[Contender]) -> list[Contender]:
    return [one for one in siblings if one.child not in (LOCKS, LEASES)]


def _blocked_by(state: TicketState, ahead: Sequence[Contender]) -> Blocked:
    return Blocked(f"{state.path}/{ahead[-1].child}", f"{state.path}/{ahead[0].child}")


def _fits(state: TicketState, seen: SemaphoreState) -> bool:
    mode = state.ticket.terms.mode
    return len(seen.taken) + mode.permits <= mode.limit


def _holder(state: TicketState, seen: SemaphoreState) -> str:
    return f"{state.path}/{LEASES}/{seen.taken[0]}" if seen.taken else f"{state.path}/{LOCKS}/{seen.queue[0].child}"


def _blocked_by_permits(state: TicketState, seen: SemaphoreState) -> Blocked:
    mode = state.ticket.terms.mode
    return Blocked(f"{state.path}/{LEASES}", _holder(state, seen), listing=mode.limit - mode.permits + 1)
