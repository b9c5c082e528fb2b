"""The plain case in one statement: a free name is acquired, and a name without waiters is released.

Theory of operation
-------------------
The holder of a plain lock that was free is stored in the name's row, which also has the number of the name's entries.
So one UPDATE of that row decides and writes, as a transaction of its own. It changes nothing if there is a holder or an
entry, or a lock delay: then the store takes its own steps, with the same ticket. Those are the specification: what the
statement does is what they would have done.

A row that is locked is passed over, or on MySQL waited for, for a second at most. If the row changed after the
statement began, it decides by the row as it is now, but it would read any other row as it was before. So nothing that
another transaction may change in between is read elsewhere. Its clock, too, is that of before a wait: the lease then
ends earlier on the server than it could, but not earlier than its holder counts on.

The transaction cannot be waited for before it begins: a claim without an answer may still be on its way when its ticket
is released over another connection. It would then make a holder that is never released. So the release of such a ticket
adds it to those that the name refuses, under the lock of the row.

A client whose statement fails for a reason that lasts, such as a session that may only read, does not try it for
`PAUSE`. The store's own steps either work there, or tell the caller the reason.
"""

from __future__ import annotations

from leasehold._model import Granted, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.unanswered import Unanswered
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import ns
from leasehold.stores._sql.row_holder import is_plain
from leasehold.stores._sql.transport import SQLTransport, Statement

CROWDED_FOR = 1.0
"""Seconds for which a name that was not plain is taken for one that is not."""

MOST_CROWDED = 1000
"""Names of which that is known."""

PAUSE = 30.0
"""Seconds after which the statement is tried again that was refused for a lasting reason."""


class PlainCase:
    """Takes the plain case for one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, space: bytes, dialect: Dialect, transport: SQLTransport) -> None:
        self._runtime = runtime
        self._space = space
        self._dialect = dialect
        self._transport = transport
        self._pause_until = 0.0
        self._crowded: dict[str, float] = {}
        self.unanswered = Unanswered()

    def forget(self) -> None:
        """Begin anew in a forked child: the tickets are the parent's."""
        self.unanswered.clear()
        self._crowded = {}

    async def acquire(self, name: str, ticket: Ticket, within: float) -> Granted | None:
        """Acquire a free name; None if that is not plain, and nothing was changed."""
        terms, since = ticket.terms, self._runtime.now()
        if not is_plain(ticket) or ticket.id in self.unanswered or not self._may(name, since):
            return None
        args = (
            *(self._space, name.encode(), ticket.id, int(terms.mode.fair)),
            *(ns(terms.lease), ns(terms.lock_delay), str(terms.owner), terms.meta),
        )
        self.unanswered[ticket.id] = None  # until there is an answer: a release may overtake this statement
        try:
            token = await self._change(name, Statement(self._dialect.acquire_free, args), since, within)
        except StoreUnavailable as error:
            if not error.unknown:
                self.unanswered.pop(ticket.id, None)
            raise
        self.unanswered.pop(ticket.id, None)
        return Granted(token, since, terms.lease) if token else None

    async def release(self, name: str, ticket: Ticket, within: float) -> bool:
        """Release a name without waiters; return whether that was plain. If not, nothing was changed."""
        now = self._runtime.now()
        if not is_plain(ticket) or ticket.id in self.unanswered or not self._may(name, now):
            return False
        statement = Statement(self._dialect.release_held, (self._space, name.encode(), ticket.id))
        return await self._change(name, statement, now, within) > 0

    def _may(self, name: str, now: float) -> bool:
        return now >= self._pause_until and not (self._crowded and self._crowded.get(name, 0.0) > now)

    def was_free(self, name: str) -> None:
        """Record that a name was free although that was not plain: it was new, or an expired entry was in the way."""
        self._crowded.pop(name, None)

    async def _change(self, name: str, statement: Statement, now: float, within: float) -> int:
        number = await self._transport.transact(lambda tx: tx.alone(statement), within=within)
        if number is None:
            self._pause_until = now + PAUSE
        elif not number:
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded = {}
            self._crowded[name] = now + CROWDED_FOR
        return number or 0
