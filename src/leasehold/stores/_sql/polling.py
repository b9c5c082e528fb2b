"""Looks for grants where the server sends no messages: one query for all waiters of a client, rarer and rarer.

A waiter looks first after `FIRST_LOOK`, then each time after an eighth of the time for which nothing has moved at its
name (so a hand-over is noticed at most an eighth later than it could be), and after that many times as long as it has
others in front of it: none of these pauses is longer than `LONGEST_LOOK`. Waiters who are due at about the same time
are looked for together, and a client never asks more than once in `FIRST_LOOK`. So a client with a thousand waiters
asks as often as one with a single one, and after a long wait twice a second.

What a look finds is a hint, as a message is. It brings the grant; or it says that the entry is gone, or that nobody is
in the way any more: then the ticket asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.clock_sample import GrantMessage
from leasehold.stores._common.slots import Slot

FIRST_LOOK, LONGEST_LOOK = 0.005, 0.5
"""Seconds between two looks for one waiter."""

PART = 1 / 8
"""Of the time since something moved at its name: the pause before a waiter's next look."""

MOST = 500
"""Tickets that one query asks for."""

AFTER_AN_ERROR = 0.1
"""Seconds before a look that failed is tried again, with jitter."""


@dataclass(frozen=True, slots=True)
class EntryState:
    """What was seen of a ticket that waited. Times are nanoseconds by the server's clock.

    Attributes:
        token: it holds with this token; None while it waits.
        expires: when its entry is void.
        lease: its length.
        ahead: how many wait in front of it.
        first_expiry: when the first lease of the holders ends; None if nobody holds.
        fence: the highest token given out at its name.

    """

    ticket: str
    token: int | None
    expires: int
    lease: int
    ahead: int
    first_expiry: int | None
    fence: int


@dataclass(slots=True)
class Watched:
    """A waiter: when it is looked for next, and since when nothing has moved (boot-time clock)."""

    slot: Slot
    due: float
    unchanged_since: float
    fence: int = 0
    ahead: int = 0


Look = Callable[[Sequence[str]], Coroutine[Any, Any, tuple[int, list[EntryState]]]]
"""Takes tickets; returns what was seen of those that have an entry, and if there is any, the server's clock."""


class Poller:
    """Used by many threads or tasks at once. Its thread or task lives only while somebody waits."""

    def __init__(self, runtime: Runtime, look: Look, wake: Callable[[Slot], None], seen: Callable[[float, int], None]):
        """Make one; ``wake`` wakes a slot, ``seen`` hears when the server's clock was asked, and what it showed."""
        self._runtime = runtime
        self._look = look
        self._wake = wake
        self._seen = seen
        self._mutex = runtime.mutex()
        self._watched: dict[str, Watched] = {}
        self._sooner = runtime.signal()
        self._job: Job | None = None
        self._asked = 0.0

    def watch(self, slot: Slot) -> None:
        """Look for a waiter until `forget`."""
        now = self._runtime.now()
        with self._mutex:
            if slot.ticket not in self._watched:
                self._watched[slot.ticket] = Watched(slot, now + FIRST_LOOK, now)
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn(self._run, "leasehold-look")
            self._sooner.set()

    def forget(self, ticket: str) -> None:
        """Look for it no longer; without any left, the thread or task ends."""
        with self._mutex:
            if self._watched.pop(ticket, None) is not None and not self._watched:
                self._sooner.set()

    async def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._watched:
                    self._job = None
                    return
                due = self._due(self._runtime.now())
                self._sooner.clear()
                wait = min(one.due for one in self._watched.values()) - self._runtime.now()
            if due:
                await self._query_due(due)
            else:
                await self._sooner.wait(max(wait, 0.0))

    def _due(self, now: float) -> list[Watched]:
        """Return who is to be looked for now, if anyone: with those whose turn comes soon."""
        if now < self._asked + FIRST_LOOK or all(one.due > now for one in self._watched.values()):
            earliest = self._asked + FIRST_LOOK
            for one in self._watched.values():
                one.due = max(one.due, earliest)
            return []
        return [one for one in self._watched.values() if one.due <= now + self._pause(one, now) / 2][:MOST]

    def _pause(self, one: Watched, now: float) -> float:
        return min(max((now - one.unchanged_since) * PART, FIRST_LOOK) * (1 + one.ahead), LONGEST_LOOK)

    async def _query_due(self, due: Sequence[Watched]) -> None:
        self._asked = sent = self._runtime.now()
        try:
            clock, states = await self._look([one.slot.ticket for one in due])
        except StoreUnavailable as error:
            pause = AFTER_AN_ERROR * (0.5 + self._runtime.jitter())
            for one in due:
                one.due = self._runtime.now() + pause
                if error.lasting:
                    self._wake(one.slot)
            return
        if states:
            self._seen(sent, clock // 1000)
        found = {state.ticket: state for state in states}
        woken = set[str]()
        for one in due:
            self._update(one, found.get(one.slot.ticket), clock, woken)

    def _update(self, one: Watched, state: EntryState | None, clock: int, woken: set[str]) -> None:
        now = self._runtime.now()
        if state is None:
            self._wake(one.slot)
        elif state.token is not None:
            one.slot.grant_message = GrantMessage(state.ticket, state.token, (state.expires - state.lease) // 1000)
            self._wake(one.slot)
        elif (state.first_expiry is None or state.first_expiry <= clock) and one.slot.name not in woken:
            woken.add(one.slot.name)  # one of them settles the queue for all
            self._wake(one.slot)
        if state is not None:
            if (state.fence, state.ahead) != (one.fence, one.ahead) and one.fence:
                one.unchanged_since = now
            one.fence, one.ahead = state.fence, state.ahead
        one.due = now + self._pause(one, now) * (1 - self._runtime.jitter() / 4)
