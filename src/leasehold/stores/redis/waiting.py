"""Those of one client who wait for names on one Redis: who is told what, and who watches for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasehold._model import Granted, Standing, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores._common.clock_sample import Anchor, Notice
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores.redis import shared

IDLE = 10
"""Leases after which a waiter asks again that need not: another watches the holder, and the keeper renews its place."""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds. The server counts in milliseconds, so a lease has surely ended one after its count did."""


class Waiting(Slots):
    """All of a client. Used from many threads at once.

    Args:
        runtime: clocks and signals.
        nudge: wakes one who waits, or who reads messages for all.

    """

    def __init__(self, runtime: Runtime, nudge: Callable[[Slot], None]) -> None:
        super().__init__(runtime)
        self._nudge = nudge

    def forget_all(self) -> None:
        super().forget_all()
        self._anchor: Anchor | None = None

    def give_up(self, ticket: Ticket) -> None:
        """Wait no longer; whoever watches the holder's lease from now on looks at it at once."""
        heir = self.remove(ticket.id)
        if heir is not None:
            self.wake(heir)

    def drop(self, slot: Slot, ticket: Ticket) -> None:
        """Wait no longer though somebody may still sleep for it."""
        self.give_up(ticket)
        self.wake(slot)

    # --- what the server says ----------------------------------------------------------------------------------

    def saw(self, since: float, server: int) -> None:
        """Take note of the server's clock, in microseconds, as it was after ``since`` of ours."""
        self._anchor = Anchor(since, server)

    def told_to_wait(self, slot: Slot | None, ticket: Ticket, since: float, server: int, left: float) -> float:
        """Take the answer to a claim that the holder's lease has ``left`` seconds; return seconds to the next claim."""
        self.saw(since, server)
        expiry = max(left, 0.0) + ASK_AGAIN_AT_LEAST
        if slot is None:
            return expiry
        slot.asked, slot.until = server, since + expiry
        # Who waits beside a ticket of its own waits for others than the first in line does, and watches for itself.
        if self.watches(slot) or ticket.beside != "":
            return expiry
        return expiry + IDLE * ticket.terms.lease

    def granted(self, ticket: Ticket) -> None:
        """Take note that a claim was granted."""
        heir = self.remove(ticket.id)
        if heir is not None and shared.is_shared(ticket):
            self.wake(heir)  # one lease has ended, others may hold on: it watches those

    def renewed(self, standings: Mapping[str, Standing], names: set[str]) -> None:
        """Wake who holds by now, and heard nothing of it, or whom the server has forgotten: they ask again.

        ``names``: those that were waited for; whoever watched may have got the name since.
        """
        for ticket, standing in standings.items():
            slot = self.get(ticket)
            if slot is not None and standing in (Standing.HELD, Standing.GONE):
                self.wake(slot)
        for name in names:
            if (heir := self.unarmed(name)) is not None:
                self.wake(heir)

    def heard(self, message: bytes) -> None:
        """Take a message: of a grant, or only a ticket, which is to ask again."""
        notice = Notice.parse(message)
        slot = self.get(message.decode("ascii", "replace") if notice is None else notice.ticket)
        if slot is not None:
            slot.notice = notice
            self.wake(slot)

    def inherited(self, slot: Slot, ticket: Ticket) -> Granted | None:
        """Read what was heard; return the grant, or None if it is to be asked for."""
        notice = slot.read()
        if notice is not None and notice.at < slot.asked:
            notice = None  # of a grant that was over when the server answered "wait"
        since = None if notice is None else notice.since(self._anchor, self._runtime.now(), ticket.terms.lease)
        if notice is None or since is None:
            return None
        heir = self.remove(ticket.id)
        if heir is not None and shared.is_shared(ticket):
            self._bequeath(slot, heir)
        return Granted(notice.token, since, ticket.terms.lease)

    def _bequeath(self, slot: Slot, heir: Slot) -> None:
        """Let another waiter watch the other holders' leases until then: it need not ask for that."""
        heir.until = heir.bequest = slot.until
        heir.armed = True
        heir.news = True
        self._nudge(heir)

    # --- waking ------------------------------------------------------------------------------------------------

    def wake_all(self) -> None:
        """Let all ask again."""
        for slot in self:
            self.wake(slot)

    def wake(self, slot: Slot) -> None:
        """Let one ask again."""
        slot.called = True  # before the news: who reads it asks for whom
        slot.news = True
        self._nudge(slot)
