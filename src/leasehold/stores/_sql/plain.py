"""The plain case in one statement: a free name is acquired, and a name that nobody waits for is released.

Theory of operation
-------------------
Functions on the server do both steps, each in a transaction of its own (``functions.sql`` of each server). They lock
the name's row unless another transaction has it, look at what is committed under that lock, and write. Whatever is not
plain (an entry of another ticket, a lock delay, a row that is locked or missing) changes nothing, and is answered by 0.
Then the store takes its own steps, with the same ticket. Its steps are the specification: what a function does is what
they would have done.

A function commits by itself, so its transaction cannot be waited for before it begins: a call without an answer may
still be on its way when its ticket is released over another connection. It would then make a holder that nobody
releases. So the release of such a ticket writes a *refusal*, under the lock of the name: a cell without a value, named
after the ticket, which `leasehold_acquire` looks for under the same lock. The sweep drops it after an hour.

Without the functions, or the right to call them, all steps are the store's own.
"""

from __future__ import annotations

from leasehold._model import Finding, Granted, LockMode, Severity, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.unanswered import Unanswered
from leasehold.stores._sql.queue_snapshot import Key, ns
from leasehold.stores._sql.transport import Call, SQLTransport

FUNCTIONS = 1
"""Version of the functions, at the end of their names. One whose meaning or arguments change gets another version."""

ACQUIRE, RELEASE = (f"leasehold_{what}_{FUNCTIONS}" for what in ("acquire", "release"))

PLAIN = (LockMode(), LockMode(fair=True))
"""How a ticket must hold its name to be plain."""

CROWDED_FOR = 1.0
"""Seconds for which a name that was not plain is taken for one that is not."""

MOST_CROWDED = 1000
"""Names of which that is known."""

MISSING_FOR = 30.0
"""Seconds after which a client without functions looks again whether a connection has them."""


def finding(subject: str, *, there: bool, kind: str) -> Finding:
    """Return what `leasehold doctor` reports of the functions."""
    if there:
        meaning = "one statement acquires a free lock, and one releases it"
        return Finding(Severity.OK, subject, f"{ACQUIRE}, {RELEASE}", meaning)
    meaning = "locks work, but each acquire and release takes two round trips and more of the server's time"
    remedy = f"run: leasehold init URL; then GRANT EXECUTE ON {kind} {ACQUIRE}, and {RELEASE}, to this user"
    return Finding(Severity.NOTE, subject, "missing, or not executable", meaning, remedy)


def refusal(key: Key, ticket: str) -> Key:
    """Return the arguments of `Dialect.refuse`. No name of a user has the byte 0xFF."""
    return key[0], b"\xff" + ticket.encode()


class PlainCase:
    """Calls the functions for one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, space: bytes, transport: SQLTransport) -> None:
        self._runtime = runtime
        self._space = space
        self._transport = transport
        self._missing_until = 0.0
        self._crowded: dict[str, float] = {}
        self.unanswered = Unanswered()

    def forget(self) -> None:
        """Begin anew in a forked child: the tickets are the parent's."""
        self.unanswered.clear()
        self._crowded = {}

    async def acquire(self, name: str, ticket: Ticket, within: float) -> Granted | None:
        """Acquire a free name; None if that is not plain, and nothing was changed."""
        terms, since = ticket.terms, self._runtime.now()
        if terms.mode not in PLAIN or ticket.alongside or ticket.id in self.unanswered or not self._may(name, since):
            return None
        args = (
            *(self._space, name.encode(), ticket.id, int(terms.mode.fair), ns(terms.lease), ns(terms.lock_delay)),
            *(str(terms.owner), terms.meta, self._transport.channel),
        )
        self.unanswered[ticket.id] = None  # until there is an answer: a release may overtake this call
        try:
            token = await self._call(name, Call(ACQUIRE, args), since, within)
        except StoreUnavailable as error:
            if not error.unknown:
                self.unanswered.pop(ticket.id, None)
            raise
        self.unanswered.pop(ticket.id, None)
        return Granted(token, since, terms.lease) if token else None

    async def release(self, name: str, ticket: Ticket, within: float) -> bool:
        """Release a name that nobody waits for; return whether that was plain. If not, nothing was changed."""
        now = self._runtime.now()
        if ticket.terms.mode not in PLAIN or ticket.id in self.unanswered or not self._may(name, now):
            return False
        return await self._call(name, Call(RELEASE, (self._space, name.encode(), ticket.id)), now, within) == 1

    def _may(self, name: str, now: float) -> bool:
        return now >= self._missing_until and not (self._crowded and self._crowded.get(name, 0.0) > now)

    def was_free(self, name: str) -> None:
        """Record that a name was free although that was not plain: it was new, or an expired entry was in the way."""
        self._crowded.pop(name, None)

    async def _call(self, name: str, call: Call, now: float, within: float) -> int:
        answer = await self._transport.transact(lambda tx: tx.call(call), within=within)
        if answer is None:
            self._missing_until = now + MISSING_FOR
        elif not answer:
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded = {}
            self._crowded[name] = now + CROWDED_FOR
        return answer or 0
