"""The waiters of one client and what wakes them: messages, renewals, timers, or polling where there are no messages.

A message contains the grant: ticket, token and time. So its receiver need not ask the server. It is a hint all the
same: a lost message costs a third of a lease, and a late or repeated one is ignored.

Where the server sends no messages, `Poller` queries the entries of all waiters of a client at once, ever less often.
The pause before a waiter's next query is an eighth of the time for which its name has not changed, times one plus the
number of waiters ahead of it. So a hand-over is noticed at most an eighth later than it could be. The first pause is
`FIRST_LOOK`, and none is longer than `LONGEST_LOOK`. Waiters that are due at about the same time share a query, and a
client never queries more than once in `FIRST_LOOK`. So a client with a thousand waiters queries as often as one with a
single waiter: after a long wait twice a second. A result is a hint, as a message is: it brings the grant, or it shows
that the entry is gone, or that no holder is left, and then the ticket asks again.

Waiters also poll while a server refuses the connection for messages, as one that has as many as it allows. One of them
tries to subscribe again, ever more seldom. Each asks once more when that has succeeded, so that its entry names the
channel.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold._model import Granted, RenewalResult, Ticket
from leasehold._runtimes.base import Job, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.clock_sample import ClockSample, GrantMessage
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores._sql.transport import SQLTransport

LISTEN_WITHIN = 2.0
"""Seconds that opening the subscription may take."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds after a refused subscription until the next attempt, with jitter: at first, and at most. They double."""

LOOK = "leasehold-look"  # the name of the job

IDLE = 10
"""Leases after which a waiter asks again although another one watches the holder.

It need not: the watchdog renews its place.
"""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds after an expiry at which a clock that counts microseconds has surely passed it."""

FIRST_LOOK, LONGEST_LOOK = 0.005, 0.5
"""Seconds between two queries for one waiter: at first, and at most."""

PART = 1 / 8
"""The pause before a waiter's next query, as a part of the time since its name changed."""

MOST = 500
"""Tickets in one query."""

AFTER_AN_ERROR = 0.1
"""Seconds before a failed query is retried, with jitter."""


def message(ticket: str, token: int, at: int) -> str:
    """Return the message of a grant; ``at`` is the server's time in microseconds."""
    return f"{ticket} {token} {at}"


class Waiting:
    """The waiting tickets of one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, look: Look) -> None:
        """Make one; ``look`` queries the state of tickets, for servers without messages."""
        self._runtime = runtime
        self._slots = Slots(runtime)
        self._poller = Poller(runtime, look)
        self.clock_sample: ClockSample | None = None
        self._pause = self._listen_at = 0.0  # after a refused subscription: for how long, and until when none is tried

    def expect(self, name: str, ticket: Ticket) -> Slot:
        """Register a waiter, before its claim is sent."""
        return self._slots.add(name, ticket)

    def knows(self, ticket: Ticket) -> bool:
        """Return whether a ticket waits."""
        return ticket.id in self._slots

    def ask_again(self, slot: Slot | None, ticket: Ticket, expiry: float, at: int) -> float:
        """Return after how many seconds a ticket that waits since the server's time ``at`` must ask again by itself."""
        expiry += ASK_AGAIN_AT_LEAST
        if slot is None:
            return expiry
        slot.last_reply = at
        # A waiter alongside its own ticket waits for other holders than the first waiter does, so it watches itself.
        watches = self._slots.enlist(slot) or ticket.alongside != ""
        return expiry if watches else expiry + IDLE * ticket.terms.lease

    def remove(self, ticket: Ticket) -> None:
        """Remove a ticket that holds; the next watcher learns of that by a message or by its renewal."""
        self._poller.forget(ticket.id)
        self._slots.remove(ticket.id)

    def forget(self, ticket: Ticket) -> None:
        """Remove a ticket that gives up; another one watches the holder from now on."""
        self._poller.forget(ticket.id)
        next_waiter = self._slots.remove(ticket.id)
        if next_waiter is not None:
            next_waiter.wake()

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket that leaves, and wake a caller that still sleeps for it, as when the client is closed."""
        mine = self._slots.get(ticket.id)
        self.forget(ticket)
        if mine is not None:
            mine.wake()

    def hand_over(self, ticket: str, token: int, at: int) -> None:
        """Deliver a grant that a transaction of this client made, if its ticket is one of this client."""
        self._deliver(GrantMessage(ticket, token, at))

    async def wait(self, transport: SQLTransport, ticket: Ticket, mark: object, timeout: float) -> Granted | None:
        """Sleep until a retry may succeed, at most ``timeout`` seconds; return a grant that a message brought."""
        slot = self._slots.get(ticket.id)
        if slot is None:
            return None
        until = self._runtime.now() + timeout
        while True:
            generation = await self._listen(transport, slot, until)
            if not transport.channel:
                if mark and not generation:
                    return None  # its entry names a subscription that has ended: claim once more
                self._poller.watch(slot)
            elif generation != mark or not generation:  # the latter: another thread has opened it since `_listen`
                return None  # no message came of a hand-over before the subscription: ask once more
            else:
                self._poller.forget(ticket.id)
            now = self._runtime.now()
            again = self._listen_at if self._pause and not generation else until
            await self._sleep(slot, min(until, again) - now)
            if slot.news or again >= until:
                return self._grant(slot, ticket)

    async def _listen(self, transport: SQLTransport, slot: Slot, until: float) -> int:
        """Subscribe to messages; return the number of the subscription, 0 if there is none now."""
        now = self._runtime.now()
        if not transport.generation():
            if now < self._listen_at:
                return 0
            if self._pause:
                return await self._listen_again(transport, slot, until)
        planned = self._listen_at
        try:
            generation = await transport.listen(max(min(LISTEN_WITHIN, until - now), 0.001))
        except StoreUnavailable as error:
            if error.lasting:
                raise
            if self._listen_at == planned:  # else another waiter has counted this failure
                self._refused()
            return 0
        self._pause = 0.0
        return generation

    async def _listen_again(self, transport: SQLTransport, slot: Slot, until: float) -> int:
        """Try to subscribe after a refusal. A grant ends the sleep meanwhile: the server may be silent. Others poll."""
        self._refused()  # until it has succeeded
        self._listen_at = max(self._listen_at, (now := self._runtime.now()) + LISTEN_WITHIN)
        self._poller.watch(slot)
        try:
            await transport.listen(0.001)
        except StoreUnavailable as error:
            if error.lasting:
                raise
            await self._sleep(slot, min(LISTEN_WITHIN, until - now))  # the attempt goes on
        if generation := transport.generation():
            self._pause = 0.0
        return generation

    def _refused(self) -> None:
        """Set when to subscribe again: a server that has as many connections as it allows must not be asked often."""
        self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
        self._listen_at = self._runtime.now() + self._pause * (1 + self._runtime.jitter() / 4)

    def receive(self, text: str) -> None:
        """Deliver a message to its ticket."""
        if (grant_message := GrantMessage.parse(text.encode())) is not None:
            self._deliver(grant_message)

    def _deliver(self, grant_message: GrantMessage) -> None:
        slot = self._slots.get(grant_message.ticket)
        if slot is not None:
            slot.grant_message = grant_message
            slot.wake()

    def wake_all(self) -> None:
        """Let all tickets ask again: messages may have been lost."""
        for slot in self._slots:
            slot.wake()

    def renewed(self, results: Mapping[str, RenewalResult], names: Iterable[str]) -> None:
        """Wake tickets that hold without a message, or that the server has forgotten, and new watchers."""
        for ticket, result in results.items():
            slot = self._slots.get(ticket)
            if slot is not None and result in (RenewalResult.HELD, RenewalResult.GONE):
                slot.wake()
        for name in names:
            next_waiter = self._slots.next_to_watch(name)
            if next_waiter is not None:
                next_waiter.wake()

    async def _sleep(self, slot: Slot, timeout: float) -> None:
        until, signal = self._runtime.now() + timeout, slot.ready(self._runtime)
        while not slot.news and (left := until - self._runtime.now()) > 0:
            await signal.wait(left)
            if not slot.news:
                signal.clear()

    def _grant(self, slot: Slot, ticket: Ticket) -> Granted | None:
        grant_message = slot.read()
        if grant_message is None or grant_message.at < slot.last_reply:
            return None  # none, or of a grant that had ended when the server answered "wait"
        since = grant_message.since(self.clock_sample, self._runtime.now(), ticket.terms.lease)
        if since is None:
            return None
        self.remove(ticket)
        return Granted(grant_message.token, since, ticket.terms.lease)


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

    def __init__(self, runtime: Runtime, look: Look) -> None:
        self._runtime = runtime
        self._look = look
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
                self._job = self._runtime.spawn_loop(self._run, LOOK)
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
        self._asked = self._runtime.now()
        try:
            answer = await self._runtime.attempt(self._look([one.slot.ticket for one in due]), LOOK, None)
        except StoreUnavailable as error:
            pause = AFTER_AN_ERROR * (0.5 + self._runtime.jitter())
            for one in due:
                one.due = self._runtime.now() + pause
                if error.lasting:
                    one.slot.wake()
            return
        if answer is None:
            return
        clock, states = answer
        found = {state.ticket: state for state in states}
        woken = set[str]()
        for one in due:
            self._update(one, found.get(one.slot.ticket), clock, woken)

    def _update(self, one: Watched, state: EntryState | None, clock: int, woken: set[str]) -> None:
        now = self._runtime.now()
        if state is None:
            one.slot.wake()
        elif state.token is not None:
            one.slot.grant_message = GrantMessage(state.ticket, state.token, (state.expires - state.lease) // 1000)
            one.slot.wake()
        elif (state.first_expiry is None or state.first_expiry <= clock) and one.slot.name not in woken:
            woken.add(one.slot.name)  # one retry settles the queue for all
            one.slot.wake()
        if state is not None:
            if (state.fence, state.ahead) != (one.fence, one.ahead) and one.fence:
                one.unchanged_since = now
            one.fence, one.ahead = state.fence, state.ahead
        one.due = now + self._pause(one, now) * (1 - self._runtime.jitter() / 4)
