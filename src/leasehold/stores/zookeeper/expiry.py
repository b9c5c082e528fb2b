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

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import LeaseholdError
from leasehold.stores.zookeeper.queue_nodes import TicketState

LOOK_AGAIN = (1.0, 5.0, 30.0)
"""Pauses in seconds before the further searches for a ticket whose create had no reply."""

RETRY = 0.2
"""Seconds before a removal is repeated."""

LINGER = 10.0
"""Seconds after which a job with nothing to do ends."""

log = logging.getLogger("leasehold")

Remove = Callable[[TicketState], Coroutine[Any, Any, bool]]


class ExpiryJob:
    """Expires tickets and repeats removals, for one client."""

    def __init__(
        self, runtime: Runtime, states: dict[str, TicketState], remove: Remove, session: Callable[[], int]
    ) -> None:
        self._runtime = runtime
        self._states = states
        self._remove = remove
        self._session = session
        self._mutex = runtime.mutex()
        self._wake = runtime.signal()
        self._pending: list[tuple[float, TicketState, tuple[float, ...]]] = []
        """When to remove the nodes of which ticket, and the pauses before further searches."""
        self._job: Job | None = None
        self._sleeps_until = 0.0
        self._closed = False

    def watch(self, until: float) -> None:
        """Make sure that the job checks for expired tickets at ``until``."""
        with self._mutex:
            if self._closed:
                return
            if self._job is None or not self._job.alive():
                self._sleeps_until = 0.0
                self._job = self._runtime.spawn(self._run, "leasehold-zookeeper-expiry")
            elif until < self._sleeps_until:
                self._wake.set()

    def remove_later(self, state: TicketState, *, uncertain: bool) -> None:
        """Remove the nodes of a released ticket until that is confirmed; if ``uncertain``, search again later."""
        self.watch(self._schedule(RETRY, state, LOOK_AGAIN if uncertain else ()))

    def stop(self) -> None:
        """Stop the job: the session ends, and all nodes with it."""
        with self._mutex:
            self._closed = True
            self._wake.set()

    async def join(self, within: float) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job.join(within)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._runtime.now()
            for state in [state for state in list(self._states.values()) if state.until <= now]:
                self._states.pop(state.ticket.id, None)
                state.over = True
                await self._clear(state, ())
            for pending in [pending for pending in self._pending if pending[0] <= now]:
                self._pending.remove(pending)
                await self._clear(*pending[1:])
            with self._mutex:
                times = [state.until for state in list(self._states.values())] + [when for when, *_ in self._pending]
                now = self._runtime.now()
                self._sleeps_until = min(times, default=now + LINGER)
                if self._closed:
                    return
            woken = await self._wake.wait(max(0.0, self._sleeps_until - now))
            with self._mutex:
                self._sleeps_until = 0.0
                if self._closed or not (woken or times or self._states or self._pending):
                    self._job = None
                    return

    async def _clear(self, state: TicketState, again: tuple[float, ...]) -> None:
        if state.session != self._session() or self._closed:
            return  # the nodes ended with their session
        try:
            await self._remove(state)
        except LeaseholdError:
            self._schedule(RETRY, state, again)
        except Exception:
            log.exception("the nodes of a ticket for %r could not be removed", state.name)
            self._schedule(RETRY * 10, state, again)
        else:
            if again:
                state.uncertain = True
                self._schedule(again[0], state, again[1:])

    def _schedule(self, pause: float, state: TicketState, again: tuple[float, ...]) -> float:
        when = self._runtime.now() + pause
        with self._mutex:
            self._pending.append((when, state, again))
        return when
