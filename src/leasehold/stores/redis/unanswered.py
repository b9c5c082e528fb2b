"""Claims that may reach the server after their own leave.

A claim without an answer may still be on its way, on a connection that the client has given up. The leave goes out on
another connection, and may overtake it. The claim would then make its ticket a holder, or a waiter, for which nobody
leaves any more: others would wait for one lease. So such a leave asks the server to refuse later claims of its ticket;
see ``refuse_later`` in ``scripts/queue.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 4096
"""Tickets that are remembered; the oldest are forgotten first.

A ticket is forgotten when its leave is confirmed. Only tickets whose leave failed until the end of their lease stay. A
new ticket needs an acquire of its own to fail. So a ticket that is still needed is forgotten only if thousands of
acquires of one client fail within its lease. Its leave is then an ordinary one, and a late claim ends with its lease.
"""


class Unanswered(dict[str, None]):
    """The ids of tickets of which a claim is under way, or had no answer; oldest first. Used from many threads at once.

    It is a `dict` because each claim writes to it twice, and calls of methods would cost more than that.
    """

    __slots__ = ()

    def forget(self, tickets: Iterable[str]) -> None:
        """Take note that claims were answered, or that the server refuses later claims of these tickets."""
        for ticket in tickets:
            self.pop(ticket, None)

    def limit(self) -> None:
        """Forget the oldest if there are too many; called before each leave, whose answer may be lost."""
        if len(self) > MOST:
            self.forget(list(self)[:-MOST])
