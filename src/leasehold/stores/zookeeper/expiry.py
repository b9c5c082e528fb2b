"""What ends tickets that nobody renews, and removes nodes whose removal was not confirmed.

The server knows sessions only: it removes our nodes when our session ends. A ticket's own lease is kept by its client:
one job sleeps until the next ticket runs out, and removes its nodes. If the client dies, the session ends instead.

*Ghosts* are nodes of tickets that left while the server did not answer. They would stay as long as our session lives,
so they are removed again and again until the server confirms or the session is over. A create whose reply was lost may
even arrive after the removal, if the network kept it: such a ticket is looked for several times more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import LeaseholdError
from leasehold.stores.zookeeper.ticket_state import Place

LOOK_AGAIN = (1.0, 5.0, 30.0)
"""Seconds after which a ticket whose create had no reply is looked for again, one after the other."""

RETRY = 0.2
"""Seconds after which a removal is tried again."""

LINGER = 10.0
"""Seconds after which a job with nothing to do ends."""

log = logging.getLogger("leasehold")

Remove = Callable[[Place], Coroutine[Any, Any, bool]]


@dataclass(eq=False, slots=True)
class Ghost:
    """Nodes to remove at ``when``; after that as many times more as ``again`` has entries."""

    place: Place
    when: float
    again: tuple[float, ...] = ()


class Lapses:
    """Ends tickets and removes ghosts, for one client."""

    def __init__(self, runtime: Runtime, places: dict[str, Place], remove: Remove, session: Callable[[], int]) -> None:
        self._runtime = runtime
        self._places = places
        self._remove = remove
        self._session = session
        self._mutex = runtime.mutex()
        self._wake = runtime.signal()
        self._ghosts: list[Ghost] = []
        self._job: Job | None = None
        self._sleeps_until = 0.0
        self._closed = False

    def watch(self, until: float) -> None:
        """Take note that a ticket may run out at ``until``."""
        with self._mutex:
            if self._closed:
                return
            if self._job is None or not self._job.alive():
                self._sleeps_until = 0.0
                self._job = self._runtime.spawn(self._run, "leasehold-zookeeper-lapses")
            elif until < self._sleeps_until:
                self._wake.set()

    def haunt(self, place: Place, *, unsure: bool) -> None:
        """Remove the nodes of a ticket that has left, until that is confirmed; with ``unsure`` look again later."""
        now = self._runtime.now()
        with self._mutex:
            self._ghosts.append(Ghost(place, now + RETRY, LOOK_AGAIN if unsure else ()))
        self.watch(now + RETRY)

    def stop(self) -> None:
        """Begin nothing more: the session ends, and all nodes with it."""
        with self._mutex:
            self._closed = True
            self._wake.set()

    async def join(self, within: float) -> None:
        """Wait for the end of the job."""
        job, self._job = self._job, None
        if job is not None:
            await job.join(within)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._runtime.now()
            for place in [place for place in list(self._places.values()) if place.until <= now]:
                self._places.pop(place.ticket.id, None)
                place.over = True
                await self._clear(Ghost(place, now))
            for ghost in [ghost for ghost in self._ghosts if ghost.when <= now]:
                self._ghosts.remove(ghost)
                await self._clear(ghost)
            with self._mutex:
                times = [place.until for place in list(self._places.values())] + [ghost.when for ghost in self._ghosts]
                now = self._runtime.now()
                self._sleeps_until = min(times, default=now + LINGER)
                if self._closed:
                    return
            rang = await self._wake.wait(max(0.0, self._sleeps_until - now))
            with self._mutex:
                self._sleeps_until = 0.0
                if self._closed or not (rang or times or self._places or self._ghosts):
                    self._job = None
                    return

    async def _clear(self, ghost: Ghost) -> None:
        place = ghost.place
        if place.session != self._session() or self._closed:
            return  # the nodes ended with their session
        try:
            await self._remove(place)
        except LeaseholdError:
            self._put(ghost, RETRY, ghost.again)
        except Exception:
            log.exception("the nodes of a ticket for %r could not be removed", place.name)
            self._put(ghost, RETRY * 10, ghost.again)
        else:
            if ghost.again:
                place.unsure = True
                self._put(ghost, ghost.again[0], ghost.again[1:])

    def _put(self, ghost: Ghost, pause: float, again: tuple[float, ...]) -> None:
        with self._mutex:
            self._ghosts.append(Ghost(ghost.place, self._runtime.now() + pause, again))
