"""What one client knows of a ticket's nodes, and the signals that wake its waiters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leasehold._model import Kind, Ticket
from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores.zookeeper.connection.requests import Node
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS


@dataclass(eq=False, slots=True)
class TicketState:
    """A ticket of this client.

    Attributes:
        path: the lock's node.
        wake_up: set when a retry is worthwhile.
        session: the id of the session whose nodes these are; 0 before there is one.
        nodes: the known nodes, by path.
        uncertain: whether a create was sent whose reply has not come: there may be an unknown node.
        token: the fencing token while it holds.
        until: boot-time clock at which the ticket ends unless it is renewed; infinite before its first answer.
        over: whether it has expired or was released; that is final.

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

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the parent nodes below which ours may be."""
        return folders(self.path, self.ticket.terms.mode.kind)

    def node_in(self, folder: str) -> Node | None:
        """Return the ticket's node below ``folder``, None if none is known."""
        return next((node for path, node in self.nodes.items() if path.rpartition("/")[0] == folder), None)

    def node_at(self, path: str) -> Node:
        """Return the ticket's node at ``path``, which existed just now.

        Raises:
            StoreUnavailable: it was removed meanwhile, because the ticket expired.

        """
        node = self.nodes.get(path)
        if node is None:
            raise self.over_error()
        return node

    def raise_if_over(self) -> None:
        """Raise StoreUnavailable if the ticket is over: a node that is created now would never be removed."""
        if self.over:
            raise self.over_error()

    def over_error(self) -> StoreUnavailable:
        """Return the error of an acquire that took longer than the lease of its ticket."""
        return StoreUnavailable(
            f"ZooKeeper: the acquire of {self.name!r} took longer than its lease; use a longer lease", unknown=True
        )

    def forget_nodes(self, session: int) -> None:
        """Start again in a new session: the nodes of the old one are no longer ours."""
        self.session, self.nodes, self.uncertain, self.token = session, {}, False, None


def folders(path: str, kind: Kind) -> tuple[str, ...]:
    """Return the nodes below which a ticket of this kind has its own."""
    return (f"{path}/{LEASES}", f"{path}/{LOCKS}") if kind is Kind.SEMAPHORE else (path,)


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
