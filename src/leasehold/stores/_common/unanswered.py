"""Claims that may reach the server after their own release.

A claim without a reply may still be on its way, on a connection that the client has given up. The release uses another
connection, and may overtake it. The claim would then make its ticket a holder, or a waiter, that is never
released: others would wait for one lease. So such a release makes the server refuse later claims of its ticket; see
``refuse_later`` in ``redis/scripts/queue.lua``, and `_sql.plain`.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 4096
"""Tickets that are remembered; the oldest are forgotten first.

A ticket is forgotten when its release is confirmed. Only tickets whose release failed until the end of their lease
stay. Each of them needs a failed acquire. So a ticket that is still needed is forgotten only if thousands of acquires
of one client fail within its lease. Its release is then a plain one, and a late claim ends with its lease.
"""


class Unanswered(dict[str, None]):
    """The ids of tickets whose claim is under way, or got no reply; oldest first. Used from many threads at once.

    It is a `dict` because each claim writes to it twice, and method calls would cost more than the writes.
    """

    __slots__ = ()

    def forget(self, tickets: Iterable[str]) -> None:
        """Remove tickets whose claims got replies, or whose later claims the server refuses."""
        for ticket in tickets:
            self.pop(ticket, None)

    def limit(self) -> None:
        """Forget the oldest if there are too many; called before each release, whose reply may be lost."""
        if len(self) > MOST:
            self.forget(list(self)[:-MOST])
