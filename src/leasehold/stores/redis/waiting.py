"""Those of one client who wait for names on one Redis: who is told what, and who watches for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasehold._model import Granted, RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores._common.clock_sample import ClockSample, GrantMessage
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores.redis import shared

IDLE = 10
"""Leases after which a waiter asks again that need not:

another watches the holder, and the watchdog renews its place.
"""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds. The server counts in milliseconds, so a lease has surely ended one after its count did."""


class Waiting(Slots):
    """All of a client. Used from many threads at once.

    Args:
        runtime: clocks and signals.
        nudge: wakes one who waits, or who reads messages for all.

    """

    def __init__(self, runtime: Runtime, notify: Callable[[Slot], None]) -> None:
        super().__init__(runtime)
        self._notify = notify

    def forget_all(self) -> None:
        super().forget_all()
        self._clock_sample: ClockSample | None = None

    def give_up(self, ticket: Ticket) -> None:
        """Wait no longer; whoever watches the holder's lease from now on looks at it at once."""
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None:
            self.wake(next_waiter)

    def drop(self, slot: Slot, ticket: Ticket) -> None:
        """Wait no longer though somebody may still sleep for it."""
        self.give_up(ticket)
        self.wake(slot)

    # --- what the server says ----------------------------------------------------------------------------------

    def saw(self, since: float, server: int) -> None:
        """Take note of the server's clock, in microseconds, as it was after ``since`` of ours."""
        self._clock_sample = ClockSample(since, server)

    def told_to_wait(self, slot: Slot | None, ticket: Ticket, since: float, server: int, left: float) -> float:
        """Take the answer to a claim that the holder's lease has ``left`` seconds; return seconds to the next claim."""
        self.saw(since, server)
        expiry = max(left, 0.0) + ASK_AGAIN_AT_LEAST
        if slot is None:
            return expiry
        slot.asked, slot.until = server, since + expiry
        # Who waits beside a ticket of its own waits for others than the first in line does, and watches for itself.
        if self.watches(slot) or ticket.alongside != "":
            return expiry
        return expiry + IDLE * ticket.terms.lease

    def granted(self, ticket: Ticket) -> None:
        """Take note that a claim was granted."""
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None and shared.is_shared(ticket):
            self.wake(next_waiter)  # one lease has ended, others may hold on: it watches those

    def renewed(self, results: Mapping[str, RenewalResult], names: set[str]) -> None:
        """Wake who holds by now, and heard nothing of it, or whom the server has forgotten: they ask again.

        ``names``: those that were waited for; whoever watched may have got the name since.
        """
        for ticket, result in results.items():
            slot = self.get(ticket)
            if slot is not None and result in (RenewalResult.HELD, RenewalResult.GONE):
                self.wake(slot)
        for name in names:
            if (next_waiter := self.unarmed(name)) is not None:
                self.wake(next_waiter)

    def heard(self, message: bytes) -> None:
        """Take a message: of a grant, or only a ticket, which is to ask again."""
        grant_message = GrantMessage.parse(message)
        slot = self.get(message.decode("ascii", "replace") if grant_message is None else grant_message.ticket)
        if slot is not None:
            slot.grant_message = grant_message
            self.wake(slot)

    def inherited(self, slot: Slot, ticket: Ticket) -> Granted | None:
        """Read what was heard; return the grant, or None if it is to be asked for."""
        grant_message = slot.read()
        if grant_message is not None and grant_message.at < slot.asked:
            grant_message = None  # of a grant that was over when the server answered "wait"
        since = (
            None
            if grant_message is None
            else grant_message.since(self._clock_sample, self._runtime.now(), ticket.terms.lease)
        )
        if grant_message is None or since is None:
            return None
        next_waiter = self.remove(ticket.id)
        if next_waiter is not None and shared.is_shared(ticket):
            self._bequeath(slot, next_waiter)
        return Granted(grant_message.token, since, ticket.terms.lease)

    def _bequeath(self, slot: Slot, next_waiter: Slot) -> None:
        """Let another waiter watch the other holders' leases until then: it need not ask for that."""
        next_waiter.until = next_waiter.handed_over = slot.until
        next_waiter.watching = True
        next_waiter.news = True
        self._notify(next_waiter)

    # --- waking ------------------------------------------------------------------------------------------------

    def wake_all(self) -> None:
        """Let all ask again."""
        for slot in self:
            self.wake(slot)

    def wake(self, slot: Slot) -> None:
        """Let one ask again."""
        slot.called = True  # before the news: who reads it asks for whom
        slot.news = True
        self._notify(slot)
