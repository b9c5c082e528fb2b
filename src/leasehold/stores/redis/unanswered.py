"""Claims that may reach the server after their own leave.

A claim without an answer may still be on its way, on a connection that the client has given up. The leave goes out on
another connection, and may overtake it. The claim would then make its ticket a holder, or a waiter, for which nobody
leaves any more: others would wait for one lease. So such a leave asks the server to refuse later claims of its ticket;
see ``refuse_later`` in ``scripts/queue.lua``.
"""

from __future__ import annotations

from collections import OrderedDict

MOST = 4096
"""Tickets that are remembered; the oldest are forgotten first.

A ticket is forgotten when its leave is confirmed. Only tickets whose leave failed until the end of their lease stay. A
new ticket needs an acquire of its own to fail. So a ticket that is still needed is forgotten only if thousands of
acquires of one client fail within its lease. Its leave is then an ordinary one, and a late claim ends with its lease.
"""


class Unanswered:
    """How many claims of each ticket are under way or had no answer. Used from many threads at once."""

    def __init__(self) -> None:
        self._claims: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._claims

    def __len__(self) -> int:
        return len(self._claims)

    def sent(self, ticket: str) -> None:
        """Take note of a claim that is about to be sent."""
        claims = self._claims
        claims[ticket] = claims.get(ticket, 0) + 1
        if len(claims) > MOST:
            claims.popitem(last=False)

    def answered(self, ticket: str) -> None:
        """Take note that it was answered, or that it was not carried out and never will be."""
        others = self._claims.pop(ticket, 1) - 1
        if others:
            self._claims[ticket] = others

    def left(self, ticket: str) -> None:
        """Take note that the server refuses later claims of the ticket."""
        self._claims.pop(ticket, None)

    def forget_all(self) -> None:
        """Begin anew: in a forked child the tickets are the parent's."""
        self._claims = OrderedDict()
