"""Which state of a ticket may be used, and by whom: an acquire, or the job that removes the nodes of ended ones.

All nodes of a ticket have its UUID in their names. So whoever searches for the nodes of one state finds those of
another, too. Therefore a ticket has at most one state at a time, and one of two users of it:

- *Current*: acquires, renewals and the release use it. While an acquire is under way, the ticket does not expire,
  unless the acquire is stuck; when that goes on, it finds that the state is over, or its grant came too late.
- *Ended*: it expired, or its release was not confirmed. The job removes its nodes. An acquire of the same ticket, which
  the engine repeats while the store does not answer, first removes them itself; the two take turns. Only when that is
  confirmed, the ticket gets a new state, and from then on nobody removes anything for the old one.

An acquire that is repeated in an outage longer than its lease, step by step:

1. A first try sends a create, and the connection is lost. The state is current; the try alone uses it.
2. The lease ends, and no try is under way: the state becomes ended, in one step. The job begins to remove its nodes.
3. A second try marks the ticket as acquired and finds the ended state. It removes the nodes when the job has finished
   what it does now; the job does nothing more for a ticket that is marked.
4. The removal is confirmed, and the ended state is forgotten under that lock. What the job still has to do for it is
   void. A create or a delete that had no reply cannot come later than this: one connection keeps the order, and so does
   the driver's queue of what is still to be sent; and a server carries out nothing of an earlier connection when its
   session has moved.
5. The second try makes a new state and its node.

The engine does not acquire for a ticket that it has released, unless a try was under way; then it releases it again.
"""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.zookeeper.queue_nodes import TicketState

STUCK = 1.0
"""Seconds after its end at which an acquire counts as stuck, with its event loop."""


class Tickets:
    """The states of the tickets of one client, by the tickets' ids. Thread-safe.

    Attributes:
        mutex: guards each step from current to ended, and from there to a new state.
        current: the states in use.
        acquiring: the tickets for which an acquire is under way, and when that ends at the latest.
        ended: the states whose nodes are still to be removed.
        locks: one for each ticket, held while the nodes of its ended state are removed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.mutex = runtime.mutex()
        self.current: dict[str, TicketState] = {}
        self.acquiring: dict[str, float] = {}
        self.ended: dict[str, TicketState] = {}
        self.locks = KeyedLock(runtime, "ZooKeeper: the nodes of an earlier request are still being removed")

    def is_acquired(self, ticket: str, now: float) -> bool:
        """Return whether an acquire of the ticket is under way, and not stuck."""
        return now < self.acquiring.get(ticket, float("-inf")) + STUCK

    def expire(self, now: float) -> list[TicketState]:
        """End the states of tickets that nobody has renewed, and return them."""
        expired = list[TicketState]()
        for ticket, state in list(self.current.items()):
            with self.mutex:
                acquired = self.is_acquired(ticket, now)
                if state.until <= now and not acquired and self.current.get(ticket) is state:
                    state.uncertain = state.uncertain or ticket in self.acquiring
                    self._end(state)
                    del self.current[ticket]
                    expired.append(state)
        return expired

    def end(self, state: TicketState) -> None:
        """Keep a state that is no longer current until its nodes are removed."""
        with self.mutex:
            self._end(state)

    def _end(self, state: TicketState) -> None:
        state.over = True
        if self.ended.get(state.ticket.id, state) is not state:
            state.uncertain = True  # it is searched for, and so the nodes of the other are found
        self.ended[state.ticket.id] = state

    def removed(self, state: TicketState) -> None:
        """Forget an ended state: its nodes are removed."""
        with self.mutex:
            if self.ended.get(state.ticket.id) is state:
                del self.ended[state.ticket.id]
