"""The nodes of a queue: a ticket's node is created, found again after a lost reply, watched, and removed.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leasehold._model import Kind, Ticket
from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.answers import name_in_use
from leasehold.stores._common.drivers import Answer
from leasehold.stores.zookeeper.connection.errors import NodeExists, NoNode
from leasehold.stores.zookeeper.connection.requests import CONTAINER, EPHEMERAL, SEQUENCE, Node, Request, names_in
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.nodes import (
    LEASES,
    LOCKS,
    Contender,
    Mark,
    child_of,
    data_of,
    limit_of,
    parse,
    path_prefixes,
    stem,
)

KINDS: Mapping[Mark | None, Kind] = {
    Mark.LOCK: Kind.MUTEX,
    Mark.READER: Kind.READ_WRITE,
    Mark.WRITER: Kind.READ_WRITE,
}


@dataclass(eq=False, slots=True)
class TicketState:
    """What this client knows of the nodes of one of its tickets.

    Attributes:
        path: the lock's node.
        wake_up: set when a retry is worthwhile.
        session: the id of the session whose nodes these are; 0 before there is one.
        nodes: the known nodes, by path.
        uncertain: whether a create was sent whose reply has not come: there may be an unknown node.
        token: the fencing token while it holds.
        until: boot-time clock at which the ticket ends unless it is renewed; infinite before its first answer.
        over: whether it has expired or was released; that is final.
        refused: how often in a row the removal of its nodes was refused.
    """

    name: str
    path: str
    ticket: Ticket
    wake_up: Signal
    session: int = 0
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    uncertain: bool = False
    token: int | None = None
    until: float = float("inf")
    over: bool = False
    refused: int = 0

    def node_in(self, folder: str) -> Node | None:
        """Return the ticket's node below ``folder``, None if none is known."""
        return next((node for path, node in self.nodes.items() if path.rpartition("/")[0] == folder), None)

    def node_at(self, path: str) -> Node:
        """Return the ticket's node at ``path``, which existed just now, unless the ticket was released meanwhile."""
        node = self.nodes.get(path)
        if node is None:
            raise self._over_error()
        return node

    def raise_if_over(self) -> None:
        """Raise StoreUnavailable if the ticket is over: a node that is created now would never be removed."""
        if self.over:
            raise self._over_error()

    def _over_error(self) -> StoreUnavailable:
        return StoreUnavailable(f"ZooKeeper: the ticket for {self.name!r} has ended meanwhile", unknown=True)

    def keep(self, node: Node) -> None:
        """Record a node of ours.

        Raises:
            StoreUnavailable: it belongs to another session.
        """
        if node.owner != self.session:
            raise StoreUnavailable("ZooKeeper: the session expired while a node was created", unknown=True)
        self.nodes[node.path] = node

    def forget_nodes(self, session: int) -> None:
        """Start again in a new session: the nodes of the old one are no longer ours.

        What is uncertain stays so: a create may wait for a connection, and be sent in a later session than its acquire
        began in.
        """
        self.session, self.nodes, self.token = session, {}, None

    def may_be_in(self, session: int) -> bool:
        """Return whether it may have nodes in ``session``, the present one and not its own; 0: there is none.

        If so, it is from now on a state in that session.
        """
        if not (self.uncertain and session):
            return False
        self.forget_nodes(session)
        return True


class Signals:
    """The signals to set when a node changes.

    One function serves all watches, so the driver keeps one watch for each node, however many waiters it has. A lost
    connection sets all signals, since the watches are lost with it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._waiting: dict[str, dict[Signal, None]] = {}

    def expect(self, path: str, wake_up: Signal) -> None:
        """Set ``wake_up`` at the next change of ``path``; called before the watch is asked for."""
        with self._mutex:
            self._waiting.setdefault(path, {})[wake_up] = None

    def forget(self, wake_up: Signal) -> None:
        """Stop watching for ``wake_up``, and set it once: its waiter must not wait any longer."""
        with self._mutex:
            for path in [path for path, wake_ups in self._waiting.items() if wake_up in wake_ups]:
                self._waiting[path].pop(wake_up, None)
                if not self._waiting[path]:
                    del self._waiting[path]
        wake_up.set()

    def changed(self, event: Any) -> None:
        """Handle an event of the driver: a node has changed, or the connection was lost (then without a path)."""
        self.set(event.path)

    def set(self, path: str | None) -> None:
        """Wake the waiters for ``path``, or all waiters for None."""
        with self._mutex:
            if path is None:
                wake_ups = {wake_up: None for found in self._waiting.values() for wake_up in found}
                self._waiting.clear()
            else:
                wake_ups = self._waiting.pop(path, {})
        for wake_up in wake_ups:
            wake_up.set()


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
                await self.find(state, until)
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
            if mine is not None:  # it is gone: an operator removed it, or a release, which has recorded that
                state.nodes.pop(mine.path, None)

    async def _make(
        self, state: TicketState, folder: str, mark: Mark, until: float, also: Sequence[Request]
    ) -> tuple[Node | None, Any, list[Any]]:
        path = f"{folder}/{stem(state.ticket.id, mark, up=state.ticket.terms.mode.upgradeable)}"
        create = self.transport.create(path, data_of(state.ticket), EPHEMERAL | SEQUENCE)
        state.uncertain = True
        made, children, *answers = await self.transport.ask_all((create, self.transport.children(folder), *also), until)
        if isinstance(made, Node):
            state.keep(made)
        state.uncertain = False  # not earlier: a signal handler may raise before the node is recorded
        return (made if isinstance(made, Node) else None), children, answers

    async def make_alongside(self, state: TicketState, other: Contender, mark: Mark, *, up: bool, until: float) -> None:
        """Create a node with the sort key of ``other``, if that still exists."""
        path = f"{state.path}/{stem(state.ticket.id, mark, up=up)}{other.sort_key}"
        both = self.transport.all_or_none(
            self.transport.check(f"{state.path}/{other.child}"),
            self.transport.create_in_transaction(path, data_of(state.ticket), EPHEMERAL),
        )
        state.uncertain = True
        made, node = await self.transport.ask_all((both, self.transport.get(path)), until)
        if isinstance(node, Node) and (isinstance(made, NodeExists) or not isinstance(made, Exception)):
            state.keep(node)
        state.uncertain = False

    async def paths_of(self, ticket: Ticket, path: str, until: float) -> list[str]:
        """Return the paths of a ticket's nodes at the lock's node ``path``, after all changes of the leader."""
        semaphore = ticket.terms.mode.kind is Kind.SEMAPHORE
        folders = (f"{path}/{LEASES}", f"{path}/{LOCKS}") if semaphore else (path,)
        requests = [self.transport.sync(folders[0]), *map(self.transport.children, folders)]
        _, *lists = await self.transport.ask_all(requests, until)
        return [
            f"{folder}/{child}"
            for folder, children in zip(folders, lists, strict=True)
            for child in names_in(children)
            if ticket.id in (parse(child).ticket, child)  # a node of another program is known by its name
        ]

    async def find(self, state: TicketState, until: float) -> None:
        """Find the nodes that a create with a lost reply has made in this session."""
        paths = await self.paths_of(state.ticket, state.path, until)
        state.nodes = {}
        for node in await self.transport.ask_all(list(map(self.transport.get, paths)), until):
            if isinstance(node, Node) and node.owner == state.session:
                state.nodes[node.path] = node
        state.uncertain = False

    async def remove(self, state: TicketState, until: float) -> bool:
        """Remove all nodes of a ticket in its session; return whether there were any."""
        if state.uncertain:
            await self.find(state, until)
        if not state.nodes:
            return False
        found = await self.remove_all(list(state.nodes), until)
        state.nodes = {}
        return found

    async def remove_all(self, paths: Sequence[str], until: float) -> bool:
        """Remove nodes; return whether one of them existed."""
        answers = await self.transport.ask_all(list(map(self.transport.delete, paths)), until)
        return not all(isinstance(answer, NoNode) for answer in answers)

    async def make_parents(self, folder: str, until: float, *, lasting: bool = False) -> None:
        """Create the parent nodes; the server removes them some time after their last child, unless ``lasting``."""
        paths = path_prefixes(folder)
        there = await self.transport.ask_all(list(map(self.transport.exists, paths)), until)
        # only the missing ones: we may lack rights on the others
        missing = [path for path, found in zip(paths, there, strict=True) if not found]
        flags = 0 if lasting else CONTAINER
        answers = await self.transport.ask_all([self.transport.create(path, b"", flags) for path in missing], until)
        if answers and isinstance(answers[-1], NoNode):
            raise StoreUnavailable(f"ZooKeeper: the node {folder} was removed while it was created; try again")

    async def make_in(self, folder: str, request: Request, until: float) -> Any:
        """Create a node in ``folder`` by a request; return its answer.

        Raises:
            StoreUnavailable: it cannot be created.
        """
        for _ in range(3):
            (made,) = await self.transport.ask_all((request,), until)
            if not isinstance(made, Answer):
                return made
            await self.make_parents(folder, until)
        raise StoreUnavailable(f"ZooKeeper: the node {folder} cannot be created")

    async def watch(
        self, state: TicketState, path: str, holder: str, until: float, *, listing: int = 0
    ) -> tuple[bool, Node | None]:
        """Wake the ticket when ``path`` changes; return whether it may wait for that, and the holder's node.

        It retries now if there is no such path. With ``listing`` a change of its children wakes, and it retries now if
        there are fewer of them. The holder is for people only: another may hold by now, and then there is no node.
        """
        state.wake_up.clear()
        self.wake_ups.expect(path, state.wake_up)
        ask = self.transport.children if listing else self.transport.get
        watched, held = await self.transport.ask_all(
            (ask(path, self.wake_ups.changed), self.transport.get(holder)), until
        )
        waits = not isinstance(watched, NoNode) and len(names_in(watched) if listing else ()) >= listing
        return waits, held if isinstance(held, Node) else None

    async def refuse_other_use(self, state: TicketState, siblings: Sequence[Contender], until: float) -> None:
        """Raise `NameInUse` if the name is in use as another primitive."""
        wanted = state.ticket.terms.mode.kind
        for one in siblings:
            if (kind := KINDS.get(one.mark, wanted)) is not wanted:
                await self._refuse(state, kind.value, until)
        folders = [f"{state.path}/{one.child}" for one in siblings if one.child in (LOCKS, LEASES)]
        if folders and wanted is not Kind.SEMAPHORE:
            lists = await self.transport.ask_all(list(map(self.transport.children, folders)), until)
            if any(map(names_in, lists)):
                await self._refuse(state, Kind.SEMAPHORE.value, until)

    async def refuse_other_limit(self, state: TicketState, data: Sequence[bytes], until: float) -> None:
        """Raise `NameInUse` if a permit was taken under another limit."""
        wanted = state.ticket.terms.mode.limit
        for limit in {limit_of(one) for one in data} - {None, wanted}:
            await self._refuse(state, f"semaphore of {limit}", until)

    async def _refuse(self, state: TicketState, what: str, until: float) -> None:
        await self.remove(state, until)
        raise name_in_use(state.name, what, state.ticket.terms.mode)
