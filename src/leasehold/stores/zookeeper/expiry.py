"""Expires tickets that are not renewed, and repeats removals of nodes that were not confirmed.

The server knows sessions only: it removes our nodes when our session ends. So the client itself expires a single
ticket: one job sleeps until the next ticket expires, and removes its nodes. If the client dies, the session ends
instead. The job is a thread in both flavors: the session lives on while an event loop is stuck.

A ticket that was released while the server did not answer may still have nodes, which would exist as long as our
session lives. So the job repeats the removal until the server confirms it or the session has ended. A create that was
sent before the removal does not arrive after it (``tickets.py`` says why, at step 4). But an acquire that is under way
at the release may still wait for a connection, and send its create later than the removal. So a ticket whose nodes are
uncertain is searched for again several times.

Both is done for *ended* states only, of which an acquire of the same ticket makes no use; see ``tickets.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold._runtimes.log import log
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._common.upkeep_job import UpkeepJob
from leasehold.stores.zookeeper.queue_nodes import Signals, TicketState
from leasehold.stores.zookeeper.tickets import Tickets

LOOK_AGAIN = (1.0, 5.0, 30.0)
"""Pauses in seconds before the further searches for a ticket whose nodes are uncertain."""

RETRY = 0.2
"""Seconds before a removal is repeated, or a ticket that an acquire uses is looked at again."""

LONGEST_RETRY = 30.0
"""Seconds before a removal is repeated that is refused, as for want of a right."""

REMOVED_WITHIN = 2.0
"""Seconds that a removal in the background may take before it is tried again."""

Remove = Callable[[TicketState, float], Coroutine[Any, Any, bool]]


class ExpiryJob(UpkeepJob[TicketState]):
    """Expires tickets and repeats removals, for one client."""

    def __init__(
        self, runtime: Runtime, tickets: Tickets, wake_ups: Signals, remove: Remove, session: Callable[[], int]
    ) -> None:
        super().__init__(runtime.beside(), "leasehold-zookeeper-expiry")
        self._sleep = runtime.sleep
        self._warned = False
        self._tickets = tickets
        self._wake_ups = wake_ups
        self._remove = remove
        self._session = session

    def remove_later(self, state: TicketState, *, uncertain: bool) -> None:
        """Remove the nodes of a released ticket until that is confirmed; if ``uncertain``, search again later."""
        self._tickets.end(state)
        self._later(RETRY, state, LOOK_AGAIN if uncertain else ())

    async def finish(self, ticket: str, until: float) -> None:
        """Remove the nodes of the ticket's ended state now, so that it may get another one.

        Raises:
            StoreUnavailable: that is not confirmed.
        """
        async with self._tickets.locks.hold(ticket, until):
            state = self._tickets.ended.get(ticket)
            if state is not None:
                await self._remove_nodes(state, until)
                self._tickets.removed(state)

    async def close(self, within: float) -> None:
        self.stop()
        until, job = self._runtime.now() + within, self._job  # the job sets that to None when it ends
        while job is not None and job.alive() and self._runtime.now() < until:
            await self._sleep(0.005)  # a join would block an event loop

    def _times(self) -> list[float]:
        tickets, soon = self._tickets, self._runtime.now() + RETRY
        return super()._times() + [
            max(state.until, soon) if ticket in tickets.acquiring else state.until
            for ticket, state in list(tickets.current.items())
        ]

    async def _step(self) -> None:
        for state in self._tickets.expire(self._runtime.now()):
            self._wake_ups.forget(state.wake_up)  # a waiter must join the queue again
            self._later(0.0, state, LOOK_AGAIN if state.uncertain else ())
        for state, again in self._due():
            await self._clear(state, again)

    async def _clear(self, state: TicketState, again: tuple[float, ...]) -> None:
        if self._closed:
            return
        try:
            await self._clear_in_turn(state, again)
        except LeaseholdError as error:
            lasting = not isinstance(error, StoreUnavailable) or error.lasting
            state.refused = state.refused + 1 if lasting else 0
            self._later(min(RETRY * 2 ** min(state.refused, 8), LONGEST_RETRY), state, again)
            if lasting and not self._warned:
                self._warned = True
                log.warning("the hold of %r has ended, but its nodes cannot be removed: %s", state.name, error)
        except Exception:
            log.exception("the nodes of a ticket for %r could not be removed", state.name)
            self._later(RETRY * 10, state, again)

    async def _clear_in_turn(self, state: TicketState, again: tuple[float, ...]) -> None:
        tickets, until = self._tickets, self._runtime.now() + REMOVED_WITHIN
        async with tickets.locks.hold(state.ticket.id, until):
            if tickets.ended.get(state.ticket.id) is not state:
                return  # an acquire has removed its nodes, and the ticket may have a new state
            if tickets.is_acquired(state.ticket.id, self._runtime.now()):
                # that acquire removes them, or it began before the release
                self._later(RETRY, state, again)
            elif await self._remove_nodes(state, until) and again:
                state.uncertain = True
                self._later(again[0], state, again[1:])
            else:
                tickets.removed(state)

    async def _remove_nodes(self, state: TicketState, until: float) -> bool:
        """Remove the nodes of a state; return False if they have ended with their session."""
        lives = state.session == (session := self._session()) or state.may_be_in(session)
        if lives:
            await self._remove(state, until)
        return lives
