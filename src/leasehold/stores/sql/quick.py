"""Claims and leaves in one round trip, where nobody else is at a name.

Theory of operation
-------------------
What a step writes depends on what it reads, so in general it is two requests: read under the lock, then write and
commit. Where a name has no seat at all there is nothing to decide: whoever claims it has it, with the next token. And
where the ticket that leaves has the only seat nobody is to be told. Both conditions the server can check by itself, by
a statement behind the one that locks the name's row; so all goes in one request with the commit, and the row is never
locked for as long as a client thinks.

If the condition is not met nothing is written, and the step is taken in the general way. So a repeated claim, whose
ticket has a seat already, and all that has expired, is left to the ledger. Names that were not free the last time are
not tried in this way until they have been.
"""

from __future__ import annotations

import enum

from leasehold.model import Seat, Ticket
from leasehold.rules import Queue
from leasehold.stores.sql.dialect import Dialect
from leasehold.stores.sql.pages import USED_TO_WITHIN, Key, row_of
from leasehold.wires.sql import Statement, Transaction

MOST = 4096
"""Names that are remembered as busy; then all are forgotten."""

MARGIN = 0.1
"""Seconds that an answer may take beside the wait for a lock."""

Won = tuple[int, int]
"""The token, and the server's clock in nanoseconds."""


class Not(enum.Enum):
    """Why a claim was not had at once."""

    SIMPLE = "somebody is, or was, at the name"
    THERE = "the name has no row yet"


class Quick:
    """Those of one client. Used from many threads at once."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._busy: set[Key] = set()

    def worth(self, key: Key) -> bool:
        """Say whether nobody else was at the name when it was used last."""
        return key not in self._busy

    def suffices(self, left: float) -> bool:
        """Say whether so many seconds suffice for a claim.

        If the row is locked the server must say so in time: of a request with a commit in it that is not answered
        nobody knows what became of it, and then the claim must be undone. A leave is repeated in any case.
        """
        return left > self._dialect.shortest_wait + MARGIN

    def saw(self, key: Key, ticket: str, queue: Queue) -> None:
        """Take note of who is at a name after a step of a ticket."""
        if any(seat.ticket.id != ticket for seat in queue.seats()):
            self.note(key)
        else:
            self._busy.discard(key)

    async def claim(self, tx: Transaction, key: Key, ticket: Ticket, hint: str) -> Won | Not:
        """Hold the name if it has no seat."""
        columns = row_of(Seat(ticket, 0, 0.0, 0), 0, hint)
        args = (*key, columns[0], *columns[4:])
        lock = Statement(self._dialect.quick_lock, key)
        locked, *answers = await tx.commit(lock, *(Statement(text, args) for text in self._dialect.quick_claim))
        if not locked:
            return Not.THERE
        won = next((rows[0] for rows in answers if rows), None)
        if won is None or won[0] != 1:
            self.note(key)
            return Not.SIMPLE
        return won[1], won[2]

    async def leave(self, tx: Transaction, key: Key, ticket: Ticket) -> bool:
        """Take the ticket out if its seat is the only one of the name; return False if it is not so simple."""
        lock, args = Statement(self._dialect.quick_lock, key), (*key, ticket.id, USED_TO_WITHIN)
        _, *answers = await tx.commit(lock, *(Statement(text, args) for text in self._dialect.quick_leave))
        gone = next((rows[0][0] for rows in answers if rows), 0)
        if gone != 1:
            self.note(key)
        return gone == 1

    def note(self, key: Key) -> None:
        """Take note that somebody is at a name."""
        if len(self._busy) >= MOST:
            self._busy = set()
        self._busy.add(key)
