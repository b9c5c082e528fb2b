"""The waiters of one client and what wakes them: messages, renewals, timers, or polling where there are no messages.

A message contains the grant: ticket, token and time. So its receiver need not ask the server. It is a hint all the
same: a lost message costs a third of a lease, and a late or repeated one is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leasehold._model import Granted, RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.clock_sample import ClockSample, GrantMessage
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores._sql.polling import Look, Poller
from leasehold.stores._sql.transport import SQLTransport

LISTEN_WITHIN = 2.0
"""Seconds that opening the subscription may take."""

IDLE = 10
"""Leases after which a waiter asks again although another one watches the holder.

It need not: the watchdog renews its place.
"""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds after an expiry at which a clock that counts microseconds has surely passed it."""


def message(ticket: str, token: int, at: int) -> str:
    """Return the message of a grant; ``at`` is the server's time in microseconds."""
    return f"{ticket} {token} {at}"


class Waiting:
    """The waiting tickets of one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, look: Look) -> None:
        """Make one; ``look`` queries the state of tickets, for servers without messages."""
        self._runtime = runtime
        self._slots = Slots(runtime)
        self._poller = Poller(runtime, look, _wake, self._set_clock_sample)
        self.clock_sample: ClockSample | None = None

    def expect(self, name: str, ticket: Ticket) -> Slot:
        """Register a waiter, before its claim is sent."""
        return self._slots.add(name, ticket)

    def ask_again(self, slot: Slot | None, ticket: Ticket, expiry: float, at: int) -> float:
        """Return after how many seconds a ticket that waits since the server's time ``at`` must ask again by itself."""
        expiry += ASK_AGAIN_AT_LEAST
        if slot is None:
            return expiry
        slot.asked = at
        # A waiter alongside its own ticket waits for other holders than the first waiter does, so it watches itself.
        watches = self._slots.watches(slot) or ticket.alongside != ""
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
            _wake(next_waiter)

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket that leaves, and wake a caller that still sleeps for it, as when the client is closed."""
        mine = self._slots.get(ticket.id)
        self.forget(ticket)
        if mine is not None:
            _wake(mine)

    def hand_over(self, ticket: str, token: int, at: int) -> None:
        """Deliver a grant that a transaction of this client made, if its ticket is one of this client."""
        self.receive(message(ticket, token, at))

    async def wait(self, transport: SQLTransport, ticket: Ticket, mark: object, timeout: float) -> Granted | None:
        """Sleep until a retry may succeed, at most ``timeout`` seconds; return a grant that a message brought."""
        slot = self._slots.get(ticket.id)
        if slot is None:
            return None
        try:
            generation = await transport.listen(max(min(LISTEN_WITHIN, timeout), 0.001))
        except StoreUnavailable as error:
            if error.lasting:
                raise
            await self._runtime.sleep(min(timeout, 0.05 + 0.1 * self._runtime.jitter()))
            return None
        if not transport.channel:
            self._poller.watch(slot)
        elif generation != mark:
            return None  # no message came of a hand-over before the subscription: ask once more
        await self._sleep(slot, timeout)
        return self._grant(slot, ticket)

    def receive(self, text: str) -> None:
        """Deliver a message to its ticket."""
        grant_message = GrantMessage.parse(text.encode())
        slot = None if grant_message is None else self._slots.get(grant_message.ticket)
        if slot is not None:
            slot.grant_message = grant_message
            _wake(slot)

    def wake_all(self) -> None:
        """Let all tickets ask again: messages may have been lost."""
        for slot in self._slots:
            _wake(slot)

    def renewed(self, results: Mapping[str, RenewalResult], names: Iterable[str]) -> None:
        """Wake tickets that hold without a message, or that the server has forgotten, and new watchers."""
        for ticket, result in results.items():
            slot = self._slots.get(ticket)
            if slot is not None and result in (RenewalResult.HELD, RenewalResult.GONE):
                _wake(slot)
        for name in names:
            next_waiter = self._slots.unarmed(name)
            if next_waiter is not None:
                _wake(next_waiter)

    async def _sleep(self, slot: Slot, timeout: float) -> bool:
        until, signal = self._runtime.now() + timeout, slot.ready(self._runtime)
        while not slot.news and (left := until - self._runtime.now()) > 0:
            await signal.wait(left)
            if not slot.news:
                signal.clear()
        return slot.news

    def _set_clock_sample(self, sent: float, clock: int) -> None:
        self.clock_sample = ClockSample(sent, clock)

    def _grant(self, slot: Slot, ticket: Ticket) -> Granted | None:
        grant_message = slot.read()
        if grant_message is None or grant_message.at < slot.asked:
            return None  # none, or of a grant that had ended when the server answered "wait"
        since = grant_message.since(self.clock_sample, self._runtime.now(), ticket.terms.lease)
        if since is None:
            return None
        self.remove(ticket)
        return Granted(grant_message.token, since, ticket.terms.lease)


def _wake(slot: Slot) -> None:
    slot.news = True
    slot.set()
