"""What one client knows of a ticket's nodes, and the bells that wake those who wait."""

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
    """A ticket of ours at a name.

    Attributes:
        path: the lock's node.
        bell: rings when it is worth asking again.
        session: the id of the session whose nodes these are; 0 before there is one.
        nodes: the nodes that we know of, by path.
        unsure: whether a create was sent whose reply we have not seen: there may be a node that we do not know of.
        token: the fencing token while it holds.
        until: boot-time clock at which the ticket ends unless it is renewed; infinite before its first answer.
        over: it has ended or left; nothing revives it.

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
        """Return the nodes below which ours may be."""
        return folders(self.path, self.ticket.terms.mode.kind)

    def node_in(self, folder: str) -> Node | None:
        """Return the ticket's node below ``folder``, None if we know of none."""
        return next((node for path, node in self.nodes.items() if path.rpartition("/")[0] == folder), None)

    def node_at(self, path: str) -> Node:
        """Return the ticket's node at ``path``, which was there just now.

        Raises:
            StoreUnavailable: it has been removed meanwhile, for the ticket's time was over.

        """
        node = self.nodes.get(path)
        if node is None:
            raise self.over_error()
        return node

    def raise_if_over(self) -> None:
        """Raise StoreUnavailable if the ticket is over: what its claim made now would stay, since nobody removes it."""
        if self.over:
            raise self.over_error()

    def over_error(self) -> StoreUnavailable:
        """Return the error of a claim that took longer than its ticket had."""
        return StoreUnavailable(
            f"ZooKeeper: the time of a ticket was over while {self.name!r} was claimed", unknown=True
        )

    def forget_nodes(self, session: int) -> None:
        """Begin anew in another session: what was made in an old one is not ours any more."""
        self.session, self.nodes, self.uncertain, self.token = session, {}, False, None


def folders(path: str, kind: Kind) -> tuple[str, ...]:
    """Return the nodes below which a ticket of this kind has its own."""
    return (f"{path}/{LEASES}", f"{path}/{LOCKS}") if kind is Kind.SEMAPHORE else (path,)


class Signals:
    """Who is to be woken when a node changes.

    One function serves all watches, so that the driver keeps one for each node however many wait there. A lost
    connection rings them all, since the watches are lost with it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._waiting: dict[str, dict[Signal, None]] = {}

    def expect(self, path: str, wake_up: Signal) -> None:
        """Set ``wake_up`` at the next change of ``path``; called before the watch is asked for."""
        with self._mutex:
            self._waiting.setdefault(path, {})[wake_up] = None

    def forget(self, wake_up: Signal) -> None:
        """Set ``wake_up`` no more, but once now: whoever waits finds that there is nothing to wait for."""
        with self._mutex:
            for path in [path for path, wake_ups in self._waiting.items() if wake_up in wake_ups]:
                self._waiting[path].pop(wake_up, None)
                if not self._waiting[path]:
                    del self._waiting[path]
        wake_up.set()

    def changed(self, event: Any) -> None:
        """Take the driver's word that a node has changed, or that the connection was lost (then without a path)."""
        self.set(event.path)

    def set(self, path: str | None) -> None:
        """Wake those who wait for ``path``, or all."""
        with self._mutex:
            if path is None:
                wake_ups = {wake_up: None for found in self._waiting.values() for wake_up in found}
                self._waiting.clear()
            else:
                wake_ups = self._waiting.pop(path, {})
        for wake_up in wake_ups:
            wake_up.set()
