"""Polls for grants where the server sends no messages: one query for all waiters of a client, ever less often.

The pause before a waiter's next query is an eighth of the time for which its name has not changed, times one plus the
number of waiters ahead of it. So a hand-over is noticed at most an eighth later than it could be. The first pause is
`FIRST_LOOK`, and none is longer than `LONGEST_LOOK`.

Waiters that are due at about the same time share a query, and a client never queries more than once in `FIRST_LOOK`. So
a client with a thousand waiters queries as often as one with a single waiter: after a long wait twice a second.

A result is a hint, as a message is. It brings the grant. Or it shows that the entry is gone, or that no holder is left:
then the ticket asks again.
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
"""Seconds between two queries for one waiter: at first, and at most."""

PART = 1 / 8
"""The pause before a waiter's next query, as a part of the time since its name changed."""

MOST = 500
"""Tickets in one query."""

AFTER_AN_ERROR = 0.1
"""Seconds before a failed query is retried, with jitter."""


@dataclass(frozen=True, slots=True)
class EntryState:
    """The state of a ticket that waited. Times are nanoseconds by the server's clock.

    Attributes:
        token: that of its grant; None while it waits.
        expires: when its entry expires.
        lease: its length.
        ahead: number of waiters ahead of it.
        first_expiry: when the first lease of the holders ends; None without holders.
        fence: the highest token granted at its name.

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
    """A waiter, when it is queried next, and since when its name has not changed (boot-time clock)."""

    slot: Slot
    due: float
    unchanged_since: float
    fence: int = 0
    ahead: int = 0


Look = Callable[[Sequence[str]], Coroutine[Any, Any, tuple[int, list[EntryState]]]]
"""Takes tickets; returns the server's clock (0 without results) and the states of those that have an entry."""


class Poller:
    """Used by many threads or tasks at once. Its thread or task runs only while there are waiters."""

    def __init__(self, runtime: Runtime, look: Look, wake: Callable[[Slot], None], seen: Callable[[float, int], None]):
        """Make one; ``wake`` wakes a slot, ``seen`` gets the time of a query and the server's clock in microseconds."""
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
        """Query the state of a waiter until `forget`."""
        now = self._runtime.now()
        with self._mutex:
            if slot.ticket not in self._watched:
                self._watched[slot.ticket] = Watched(slot, now + FIRST_LOOK, now)
            if self._job is None or not self._job.alive():
                self._job = self._runtime.spawn(self._run, "leasehold-look")
            self._sooner.set()

    def forget(self, ticket: str) -> None:
        """Stop querying a waiter; without any left, the thread or task ends."""
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
        """Return the waiters to query now, if any is due, with those that are due soon."""
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
            woken.add(one.slot.name)  # one retry settles the queue for all
            self._wake(one.slot)
        if state is not None:
            if (state.fence, state.ahead) != (one.fence, one.ahead) and one.fence:
                one.unchanged_since = now
            one.fence, one.ahead = state.fence, state.ahead
        one.due = now + self._pause(one, now) * (1 - self._runtime.jitter() / 4)
