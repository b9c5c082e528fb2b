"""The waiting tickets of one client at one Redis: the grants they receive, and which of them watches a holder's lease.

A release grants the lock to the first waiter and notifies that waiter's client. The client here finds the ticket and
wakes the thread or task that waits for it. One waiter of each name has a timer that ends with the holder's lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasehold._model import Granted, RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores._common.clock_sample import ClockSample, GrantMessage
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores.redis.connection.base import Transport
from leasehold.stores.redis.scripts.commands import is_shared

IDLE = 10
"""After so many leases a waiter that watches no lease retries.

It need not retry earlier: another waiter watches the lease, and the watchdog renews this one's queue entry.
"""

RETRY_AFTER_EXPIRY = 0.001
"""Seconds. The server counts whole milliseconds: one after its reported end, a lease has surely ended."""


class Waiters(Slots):
    """All waiters of a client. Safe to use from many threads at once.

    ``notify`` wakes the thread or task of one waiter, even one that is reading the messages for all.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.notify: Callable[[Slot], None] = Slot.set  # that of the transport, as soon as there is one

    def forget_all(self) -> None:
        super().forget_all()
        self._clock_sample: ClockSample | None = None

    def give_up(self, ticket: Ticket) -> None:
        """Stop waiting; the waiter that watches the holder's lease from now on retries at once."""
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None:
            self.wake(next_waiter)

    def cancel(self, slot: Slot, ticket: Ticket) -> None:
        """Stop waiting, and wake a thread or task that may still wait for the ticket."""
        self.give_up(ticket)
        self.wake(slot)

    async def sleep(self, transport: Transport, slot: Slot, timeout: float) -> None:
        """Sleep at most ``timeout`` seconds, or until it is worth retrying."""
        until = self._runtime.now() + timeout
        while not slot.should_retry:
            await transport.receive(slot, max(0.0, until - self._runtime.now()))
            if slot.handed_over is None:
                break
            until, slot.handed_over = min(until, slot.handed_over), None  # it watches a lease from now on
            slot.clear()

    # --- replies of the server ---------------------------------------------------------------------------------

    def sample_clock(self, since: float, server: int) -> None:
        """Store a reading of the server's clock, in microseconds, taken after ``since`` of our clock."""
        self._clock_sample = ClockSample(since, server)

    def queued(self, slot: Slot | None, ticket: Ticket, since: float, server: int, left: float) -> float:
        """Take the reply that the holder's lease has ``left`` seconds; return seconds until the next attempt."""
        self._clock_sample = ClockSample(since, server)
        expiry = (left if left > 0.0 else 0.0) + RETRY_AFTER_EXPIRY
        if slot is None:
            return expiry
        slot.last_reply, slot.until, slot.lease = server, since + expiry, ticket.terms.lease
        # A waiter alongside a ticket of its own waits for other holders than the first waiter: it has its own timer.
        if self.enlist(slot) or ticket.alongside != "":
            return expiry
        return expiry + IDLE * ticket.terms.lease

    def granted(self, ticket: Ticket) -> None:
        """Remove a ticket that was granted by a reply."""
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None and is_shared(ticket):
            self.wake(next_waiter)  # one lease has ended, other holders may remain: it retries to learn their expiry

    def renewed(self, results: Mapping[str, RenewalResult], names: set[str]) -> None:
        """Wake the waiters whose renewal shows that they hold, or that the server has forgotten them: they retry.

        ``names``: the names with waiters. The waiter that watched a lease may hold by now: then another must watch.
        """
        for ticket, result in results.items():
            slot = self.get(ticket)
            if slot is not None and result in (RenewalResult.HELD, RenewalResult.GONE):
                self.wake(slot)
        for name in names:
            if (next_waiter := self.next_to_watch(name)) is not None:
                self.wake(next_waiter)

    def receive(self, message: bytes) -> None:
        """Take a message: a grant, or a ticket alone, which is to retry. An empty one only counted receivers."""
        if not message:
            return
        grant_message = GrantMessage.parse(message)
        slot = self.get(message.decode("ascii", "replace") if grant_message is None else grant_message.ticket)
        if slot is not None:
            slot.grant_message = grant_message
            slot.should_retry = slot.news = True  # see `wake`
            self.notify(slot)

    def take_grant(self, slot: Slot, ticket: Ticket) -> Granted | None:
        """Return the grant that a message brought; None if the waiter must retry."""
        grant_message = slot.read()
        # A grant from before the last reply "wait" was over by then.
        if grant_message is None or grant_message.at < slot.last_reply:
            return None
        since = grant_message.since(self._clock_sample, self._runtime.now(), ticket.terms.lease)
        if since is None:
            return None
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None and is_shared(ticket):
            self._pass_watch(slot, next_waiter)
        return Granted(grant_message.token, since, ticket.terms.lease)

    def _pass_watch(self, slot: Slot, next_waiter: Slot) -> None:
        """Let another waiter watch the other holders' leases until the known expiry; it need not ask the server."""
        next_waiter.until = next_waiter.handed_over = slot.until
        next_waiter.watching = True
        next_waiter.news = True
        self.notify(next_waiter)

    # --- waking ------------------------------------------------------------------------------------------------

    def wake_all(self) -> None:
        for slot in self:
            self.wake(slot)

    def wake(self, slot: Slot) -> None:
        """Let one waiter retry."""
        slot.should_retry = True  # before `news`: the thread that reads `news` then looks at `should_retry`
        slot.news = True
        self.notify(slot)
