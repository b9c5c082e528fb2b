"""The background job of a client: heartbeats of its sessions, the end of tickets that are not renewed, late releases.

The servers know sessions only: a lock is free when its session has ended. So the client itself ends a single ticket: it
releases the lock of a ticket that was not renewed. If the client dies, its session ends instead.

A claim without an answer may reach the servers after the release of its ticket, and would then keep the lock as long as
the session lives. So the release is repeated, later and later, until the session has ended.
"""

from __future__ import annotations

from itertools import islice

from leasehold._runtimes.base import Runtime
from leasehold._runtimes.log import log
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._common.drivers import Answer
from leasehold.stores._common.upkeep_job import UpkeepJob
from leasehold.stores.hazelcast.releasing import Releaser
from leasehold.stores.hazelcast.sessions import Session, Sessions
from leasehold.stores.hazelcast.tickets import TicketState

AGAIN = (1.0, 5.0, 30.0)
"""Pauses in seconds before the further releases of a ticket with a claim that had no answer; the last one repeats."""

RETRY = 0.5
"""Seconds before a heartbeat or a release without an answer is repeated."""

WITHIN = 3.0
"""Seconds for an answer to one of these requests."""

LATE_WITHIN = 5.0
"""Seconds that a release in the background may take."""

TOGETHER = 20
"""Tickets that are released at the same time, at most."""


class Upkeep(UpkeepJob[TicketState]):
    """Runs while there is anything to do, for one client."""

    def __init__(
        self, runtime: Runtime, states: dict[str, TicketState], sessions: Sessions, releaser: Releaser
    ) -> None:
        super().__init__(runtime, "leasehold-hazelcast")
        self._states = states
        self._sessions = sessions
        self._releaser = releaser
        releaser.again = self.release_again

    def release_again(self, state: TicketState, pauses: tuple[float, ...] = AGAIN) -> None:
        """Release a ticket that is gone again after each of these pauses, each counted from the one before."""
        self._later(pauses[0], state, pauses[1:] or pauses)

    def _times(self) -> list[float]:
        times = super()._times() + [state.until for state in list(self._states.values())]
        return times + [session.beat_at for session in (*self._in_use(), *self._sessions.closing)]

    def _in_use(self) -> list[Session]:
        return [one for one in list(self._sessions.all) if one.tickets]

    async def _step(self) -> None:
        """Do all that is due. After each request, or some that are sent together, heartbeats come first again."""
        await self._beat()
        states = iter(list(self._states.values()))
        while some := list(islice(filter(self._is_overdue, states), TOGETHER)):
            await self._runtime.gather(*map(self._end, some))
            await self._beat()
        for state, pauses in self._due():
            if not self._closed:
                await self._undo(state, pauses)
                await self._beat()
        await self._sessions.close_retired(self._runtime.now() + WITHIN)

    def _is_overdue(self, state: TicketState) -> bool:
        now = self._runtime.now()
        return not self._closed and state.overdue(now, now + WITHIN)

    async def _end(self, state: TicketState) -> None:
        """Release a ticket that was not renewed; it stays until that is confirmed."""
        try:
            await self._releaser.leave(state, self._runtime.now() + _within(LATE_WITHIN, state.session))
        except LeaseholdError:
            pass
        except Exception:
            log.exception("the release of lock %r, which was not renewed, failed; it is repeated", state.name)

    async def _beat(self) -> None:
        """Send the heartbeats that are due."""
        now = self._runtime.now()
        for session in [one for one in self._in_use() if one.beat_at <= now]:
            session.beat_at = self._runtime.now() + RETRY
            try:
                await self._sessions.beat(session, self._runtime.now() + _within(WITHIN, session))
            except (Answer, LeaseholdError):
                pass  # it is repeated; the holders of an ended session were notified

    async def _undo(self, state: TicketState, pauses: tuple[float, ...]) -> None:
        try:
            await self._releaser.undo(state, self._runtime.now() + _within(LATE_WITHIN, state.session))
        except StoreUnavailable as error:
            if error.lasting:
                return
            pauses = (RETRY, *pauses)
        if not state.session.ended:
            self.release_again(state, pauses)


def _within(longest: float, session: Session) -> float:
    """Return how long a request may take, so that the session's heartbeats are not late."""
    return min(longest, session.ttl / 3)
