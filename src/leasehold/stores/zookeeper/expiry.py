"""Expires tickets that nobody renews, and repeats removals of nodes that were not confirmed.

The server knows sessions only: it removes our nodes when our session ends. So the client itself expires a single
ticket: one job sleeps until the next ticket expires, and removes its nodes. If the client dies, the session ends
instead.

A ticket that was released while the server did not answer may still have nodes, which would exist as long as our
session lives. So the job repeats the removal until the server confirms it or the session has ended. A create whose
reply was lost may even arrive after the removal, if the network delayed it. Such a ticket is searched for again several
times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError
from leasehold.stores._common.upkeep_job import UpkeepJob
from leasehold.stores.zookeeper.queue_nodes import TicketState

LOOK_AGAIN = (1.0, 5.0, 30.0)
"""Pauses in seconds before the further searches for a ticket whose create had no reply."""

RETRY = 0.2
"""Seconds before a removal is repeated."""

log = logging.getLogger("leasehold")

Remove = Callable[[TicketState], Coroutine[Any, Any, bool]]


class ExpiryJob(UpkeepJob[TicketState]):
    """Expires tickets and repeats removals, for one client."""

    def __init__(
        self, runtime: Runtime, states: dict[str, TicketState], remove: Remove, session: Callable[[], int]
    ) -> None:
        super().__init__(runtime, "leasehold-zookeeper-expiry")
        self._states = states
        self._remove = remove
        self._session = session

    def remove_later(self, state: TicketState, *, uncertain: bool) -> None:
        """Remove the nodes of a released ticket until that is confirmed; if ``uncertain``, search again later."""
        self._later(RETRY, state, LOOK_AGAIN if uncertain else ())

    def _times(self) -> list[float]:
        return super()._times() + [state.until for state in list(self._states.values())]

    async def _step(self) -> None:
        now = self._runtime.now()
        for state in [state for state in list(self._states.values()) if state.until <= now]:
            self._states.pop(state.ticket.id, None)
            state.over = True
            self._later(0.0, state, ())
        for state, again in self._due():
            await self._clear(state, again)

    async def _clear(self, state: TicketState, again: tuple[float, ...]) -> None:
        if state.session != self._session() or self._closed:
            return  # the nodes ended with their session
        try:
            await self._remove(state)
        except LeaseholdError:
            self._later(RETRY, state, again)
        except Exception:
            log.exception("the nodes of a ticket for %r could not be removed", state.name)
            self._later(RETRY * 10, state, again)
        else:
            if again:
                state.uncertain = True
                self._later(again[0], state, again[1:])
