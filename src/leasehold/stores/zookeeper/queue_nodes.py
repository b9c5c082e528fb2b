"""The nodes of a queue: a ticket's node is created, found again after a lost reply, and removed.

Theory of operation
-------------------
The create of a node and the list of its siblings are sent together; the server answers the list after the create. A
later attempt sends a `sync` first. Then its server has all changes of the leader, and the leader still knew our
session. Only after that the absence of other nodes counts.

A create whose reply is lost may have been carried out. `TicketState.uncertain` is set before it is sent and cleared
when the reply has come. An uncertain client looks for a sibling with the ticket's UUID whose ephemeral owner is *this*
session (the "protection" of Curator). A node of another session, which will expire, never counts as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leasehold._model import Kind
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.uses import wrong_kind
from leasehold.stores.zookeeper import entries
from leasehold.stores.zookeeper.connection.errors import NodeExists, NoNode
from leasehold.stores.zookeeper.connection.requests import CONTAINER, EPHEMERAL, SEQUENCE, Node, Request
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Contender, Mark, child_of, parse, path_prefixes, stem
from leasehold.stores.zookeeper.ticket_state import Signals, TicketState

KINDS = {Mark.LOCK: Kind.MUTEX, Mark.READER: Kind.READ_WRITE, Mark.WRITER: Kind.READ_WRITE}


class QueueNodes:
    """The steps that locks, read-write locks and semaphores share."""

    def __init__(self, transport: Transport, wake_ups: Signals, now: Callable[[], float]) -> None:
        self.transport = transport
        self.wake_ups = wake_ups
        self.now = now

    async def join(
        self, state: TicketState, folder: str, mark: Mark, until: float, also: Sequence[Request] = ()
    ) -> tuple[Contender, list[Contender], list[Any]]:
        """Create the ticket's node in ``folder`` if needed; return it, its siblings, and the answers to ``also``."""
        while True:
            if state.uncertain:
                await self.find(state, state.folders, until)
            state.raise_if_over()
            mine = state.node_in(folder)
            if mine is None:
                mine, children, answers = await self._make(state, folder, mark, until, also)
            else:
                requests = (self.transport.sync(folder), self.transport.children(folder), *also)
                _, children, *answers = await self.transport.ask_all(requests, until)
            if mine is None or isinstance(children, NoNode):
                await self.make_parents(folder, until)
            elif child_of(mine.path) in children:
                return parse(child_of(mine.path)), [parse(child) for child in children], answers
            if mine is not None:  # it is gone: an operator removed it, or its expiry, which has recorded that
                state.nodes.pop(mine.path, None)

    async def _make(
        self, state: TicketState, folder: str, mark: Mark, until: float, also: Sequence[Request]
    ) -> tuple[Node | None, Any, list[Any]]:
        path = f"{folder}/{stem(state.ticket.id, mark, up=state.ticket.terms.mode.upgradeable)}"
        create = self.transport.create(path, entries.spell(state.ticket), EPHEMERAL | SEQUENCE)
        state.uncertain = True
        made, children, *answers = await self.transport.ask_all((create, self.transport.children(folder), *also), until)
        state.uncertain = False
        if not isinstance(made, Node):
            return None, children, answers
        self.keep(state, made)
        return made, children, answers

    def keep(self, state: TicketState, node: Node) -> None:
        """Record a node of ours.

        Raises:
            StoreUnavailable: it belongs to another session.

        """
        if node.owner != state.session:
            raise StoreUnavailable("ZooKeeper: the session expired while a node was created", unknown=True)
        state.nodes[node.path] = node

    async def find(self, state: TicketState, folders: Sequence[str], until: float) -> None:
        """Find the nodes that a create with a lost reply has made in this session."""
        lists = await self.transport.ask_all(
            [self.transport.sync(folders[0]), *map(self.transport.children, folders)], until
        )
        paths = [
            f"{folder}/{child}"
            for folder, children in zip(folders, lists[1:], strict=True)
            if not isinstance(children, NoNode)
            for child in children
            if parse(child).ticket == state.ticket.id
        ]
        state.nodes = {}
        nodes = await self.transport.ask_all(list(map(self.transport.get, paths)), until) if paths else []
        for node in nodes:
            if isinstance(node, Node) and node.owner == state.session:
                self.keep(state, node)
        state.uncertain = False

    async def make_parents(self, folder: str, until: float) -> None:
        """Create the parent nodes; the server removes them some time after their last child."""
        paths = path_prefixes(folder)
        there = await self.transport.ask_all(list(map(self.transport.exists, paths)), until)
        missing = [
            path for path, found in zip(paths, there, strict=True) if not found
        ]  # we may lack rights on the others
        answers = await self.transport.ask_all([self.transport.create(path, b"", CONTAINER) for path in missing], until)
        if answers and isinstance(answers[-1], NoNode):
            raise StoreUnavailable(f"ZooKeeper: the node {folder} was removed while it was created; try again")

    async def make_alongside(
        self, state: TicketState, other: Contender, mark: Mark, *, up: bool, until: float
    ) -> Node | None:
        """Create a node with the sort key of ``other``, if that still exists; return None if it is gone."""
        path = f"{state.path}/{stem(state.ticket.id, mark, up=up)}{other.sort_key}"
        transport = self.transport
        both = transport.all_or_none(
            transport.check(f"{state.path}/{other.child}"),
            transport.create_in_transaction(path, entries.spell(state.ticket), EPHEMERAL),
        )
        state.uncertain = True
        made, node = await transport.ask_all((both, transport.get(path)), until)
        state.uncertain = False
        if not isinstance(node, Node) or (isinstance(made, Exception) and not isinstance(made, NodeExists)):
            return None
        self.keep(state, node)
        return node

    async def watch(self, state: TicketState, path: str, holder: str, until: float, *, listing: int = 0) -> Node | None:
        """Wake the ticket when ``path`` changes; return the holder's node, None if the caller should retry now.

        With ``listing`` a change of its children wakes, and fewer children than that mean a retry now.
        """
        state.wake_up.clear()
        self.wake_ups.expect(path, state.wake_up)
        ask = self.transport.children if listing else self.transport.get
        answers = await self.transport.ask_all((ask(path, self.wake_ups.changed), self.transport.get(holder)), until)
        changed = any(isinstance(answer, NoNode) for answer in answers) or (listing and len(answers[0]) < listing)
        return None if changed else answers[1]

    async def remove(self, state: TicketState, until: float) -> bool:
        """Remove all nodes of a ticket in its session; return whether there were any."""
        if state.uncertain:
            await self.find(state, state.folders, until)
        if not state.nodes:
            return False
        answers = await self.transport.ask_all([self.transport.delete(path) for path in state.nodes], until)
        state.nodes = {}
        return not all(isinstance(answer, NoNode) for answer in answers)

    async def refuse_other_use(self, state: TicketState, siblings: Sequence[Contender], until: float) -> None:
        """Raise `NameInUse` if the name is in use as another primitive."""
        wanted = state.ticket.terms.mode
        for one in siblings:
            kind = KINDS.get(one.mark, wanted.kind) if one.mark else wanted.kind
            if kind is not wanted.kind:
                await self._refuse(state, kind.value, until)
        if wanted.kind is Kind.SEMAPHORE:
            return
        parts = [f"{state.path}/{one.child}" for one in siblings if one.child in (LOCKS, LEASES)]
        if parts:
            lists = await self.transport.ask_all(list(map(self.transport.children, parts)), until)
            if any(children for children in lists if not isinstance(children, NoNode)):
                await self._refuse(state, Kind.SEMAPHORE.value, until)

    async def refuse_other_limit(self, state: TicketState, data: Sequence[bytes], until: float) -> None:
        """Raise `NameInUse` if a permit was taken under another limit."""
        wanted = state.ticket.terms.mode.limit
        for limit in {entries.limit_of(one) for one in data} - {None, wanted}:
            await self._refuse(state, f"semaphore of {limit}", until)

    async def _refuse(self, state: TicketState, what: str, until: float) -> None:
        await self.remove(state, until)
        raise wrong_kind(state.name, what, state.ticket.terms.mode)
