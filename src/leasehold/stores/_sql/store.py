"""The store of lease rows on a database server: many machines share its tables.

Theory of operation
-------------------
Every operation is one transaction on one or several names (see `_sql.rows`): lock the name's row, compute the new queue
with `queues`, write what changed, commit. The server provides the mutual exclusion of transactions, for milliseconds.
Our lock is a lease in the rows, with a token and an expiry on the server's clock, read after the row was locked.

A client that dies in a transaction keeps the row locked until the server notices; each transport bounds that time. A
cancelled transaction is rolled back or committed before the release that undoes it is sent.

Three things notify a waiter:

* The transaction that hands the name over sends a message with the grant, when it commits, to the waiter's client only.
* A renewal, at a third of the lease, finds a grant whose message was lost.
* One waiter of each client and name has a timer that ends with the holder's lease.

Without messages, waiters poll their entries, first often and then less (see `_sql.waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Granted,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._rules import Blocked
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common import queues
from leasehold.stores._common.cells import check_fence, check_size
from leasehold.stores._common.clock_sample import ClockSample
from leasehold.stores._sql import renewals, rows, tables
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.plain import PlainCase
from leasehold.stores._sql.queue_snapshot import Key, above, ns
from leasehold.stores._sql.rows import Clock, change_cell, read_cell, token_of
from leasehold.stores._sql.sweep import Sweeper
from leasehold.stores._sql.transport import (
    OnDisconnect,
    OnMessage,
    Outcome,
    Refused,
    Row,
    SQLTransport,
    Statement,
    Transaction,
)
from leasehold.stores._sql.waiting import EntryState, Waiting

T = TypeVar("T")

At = tuple[Clock, queues.Step | None]
"""The result of a step at a name, and its time."""

PATIENCE = 5.0
"""Seconds that an operation without a timeout of its own may take."""


class RowStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(shared=True, permits=True, batches=True, crash_bound="within the lease + 250 ms")

    def __init__(
        self,
        runtime: Runtime,
        namespace: str,
        dialect: Dialect,
        connect: Callable[[OnMessage, OnDisconnect], SQLTransport],
    ) -> None:
        """Make a store. ``connect`` makes its transport, given callbacks for messages and for lost subscriptions."""
        self._runtime = runtime
        self._space = namespace.encode()
        self._dialect = dialect
        self._waiting = Waiting(runtime, self._query_entries)
        self._transport = connect(lambda text: self._waiting.receive(text), lambda: self._waiting.wake_all())
        self._sweeper = Sweeper(dialect, runtime)
        self._plain = PlainCase(runtime, self._space, dialect, self._transport)

    # --- the queue ---------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Try to acquire ``name``."""
        until = self._runtime.now() + within
        if not self._waiting.knows(ticket) and (granted := await self._plain.acquire(name, ticket, within)) is not None:
            return granted
        # Before the request: a message may overtake its reply.
        slot = self._waiting.expect(name, ticket) if join else None
        generation, hint = self._transport.generation(), self._transport.channel
        take = rows.each([rows.acquire(ticket, join=join)])
        try:
            since, ((clock, step),) = await self._claimed([(name, ticket)], take, hint, until)
        except BaseException as error:
            if slot is not None and not slot.last_reply and not (isinstance(error, StoreUnavailable) and error.unknown):
                self._waiting.forget(ticket)  # the server does not know it, so its client will not release it
            raise
        assert step is not None
        if step.blocked is None:
            if slot is None or not slot.last_reply:
                self._plain.was_free(name)
            self._waiting.remove(ticket)
            return Granted(token_of(step.mine), since, ticket.terms.lease)
        expiry = max(step.blocked.until - clock.now, 0.0)
        again = self._waiting.ask_again(slot, ticket, expiry, int(clock.now * 1e6))
        return Wait(generation, again, _held_by(step.blocked))

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        """Acquire in order, in one transaction, up to the first unavailable name."""
        until = self._runtime.now() + within
        take = rows.acquire_in_order([ticket for _, ticket in claims], keep=keep)
        since, found = await self._claimed(claims, take, "", until)
        answers = list[Granted | Wait]()
        for (_, ticket), (clock, step) in zip(claims, found, strict=True):
            if step is None or (step.mine is None and step.blocked is None):
                continue  # not acquired, or not kept
            if step.blocked is not None:
                return [*answers, Wait(None, max(step.blocked.until - clock.now, 0.0), _held_by(step.blocked))]
            answers.append(Granted(token_of(step.mine), since, ticket.terms.lease))
        return answers

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove ``ticket`` and hand the name over."""
        until = self._runtime.now() + within
        self._waiting.leave(ticket)
        if reason is ReleaseReason.RELEASE and await self._plain.release(name, ticket, within):
            await self._sweep(until)
            return True
        (found,) = await self._left([(name, ticket)], reason, until)
        return found

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        """Remove each ticket and hand its name over, in one transaction."""
        return await self._left(releases, ReleaseReason.RELEASE, self._runtime.now() + within)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Set leases to full length."""
        names, results = {ticket.id: name.encode() for name, ticket in tickets}, renewals.Results()
        try:
            results = await renewals.renew(
                self._transact, self._runtime, self._dialect, self._space, names, within=within
            )
        finally:
            self._waiting.renewed(results, {name for name, _ in tickets})
        return [results.get(ticket.id, RenewalResult.UNKNOWN) for _, ticket in tickets]

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until a message, a timer or a renewal; return the grant if a message brought it."""
        return await self._waiting.wait(self._transport, ticket, mark, timeout)

    # --- looking, cells ----------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        """Show names in use."""

        async def work(tx: Transaction) -> tuple[float, list[Row]]:
            _, names = await self._names(tx, self._space, prefix, exact=exact)
            found, clock = await tx.commit(names, Statement(self._dialect.clock))
            return rows.clock_of(clock).now, found  # read after the rows: a lease that was just renewed is not too long

        now, found = await self._transact(work, self._runtime.now() + within)
        return [view for view in rows.views_of(found, now) if view.holders or view.waiters or view.free_in > 0]

    async def _names(self, tx: Transaction, space: bytes, prefix: str, *, exact: bool) -> tuple[float, Statement]:
        """Return the server's clock, and what reads the names in use by then."""
        start = prefix.encode("utf-8", "surrogatepass")
        end = start + b"\0" if exact else above(start)
        (clock,) = await tx.ask(Statement(self._dialect.clock))
        now = rows.clock_of(clock).now
        return now, Statement(self._dialect.names, (space, start, end, ns(now)))

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        """Change or read a cell."""
        check_size(change)
        check_fence(change)
        until, key = self._runtime.now() + within, self._key(name)
        if change.value is None:
            return await self._transact(lambda tx: read_cell(tx, self._dialect, key), until)
        while (cell := await self._transact(lambda tx: change_cell(tx, self._dialect, key, change), until)) is None:
            await self._write([Statement(self._dialect.add_cell, key)], until)
        return cell

    # --- its own life ------------------------------------------------------------------------------------------

    async def prepare(self) -> bool:
        """Create the tables; return whether any was missing."""
        return await tables.prepare(self._transport, self._dialect)

    async def close(self) -> None:
        """Give back the connections."""
        await self._transport.close()

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        self._waiting = Waiting(self._runtime, self._query_entries)
        self._sweeper = Sweeper(self._dialect, self._runtime)
        self._plain.forget()
        self._transport.after_fork()

    # --- transactions ------------------------------------------------------------------------------------------

    async def _transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float, *, reserved: bool = False
    ) -> T:
        """Run a transaction; one that a conflict rolled back is run again while there is time."""
        while True:
            try:
                within = max(until - self._runtime.now(), 0.001)
                return await self._transport.transact(work, within=within, reserved=reserved)
            except Refused as error:
                if error.outcome is not Outcome.AGAIN or self._runtime.now() >= until:
                    raise

    async def _write(self, statements: Sequence[Statement], until: float, *, reserved: bool = False) -> list[list[Row]]:
        """Run statements as one transaction; return the rows of each."""
        return await self._transact(lambda tx: tx.commit(*statements), until, reserved=reserved)

    async def _claimed(
        self, claims: Sequence[tuple[str, Ticket]], take: rows.TakeAll, hint: str, until: float
    ) -> tuple[float, list[At]]:
        """Take steps at names, adding missing rows; return the time before the request, and the results."""
        while True:
            since = self._runtime.now()
            steps = await self._steps(claims, take, hint, until)
            found = [one for one in steps if one is not None]
            if len(found) == len(steps):
                self._waiting.clock_sample = ClockSample(since, int(found[0][0].now * 1e6))
                return since, found
            await self._add_names(claims, steps, until)

    async def _left(self, releases: Sequence[tuple[str, Ticket]], reason: ReleaseReason, until: float) -> list[bool]:
        for _, ticket in releases:
            self._waiting.leave(ticket)
        take = rows.each([rows.release(ticket, reason) for _, ticket in releases])
        self._plain.unanswered.limit()
        steps: Sequence[At | None]
        if reason is ReleaseReason.RELEASE and any(ticket.id in self._plain.unanswered for _, ticket in releases):
            steps = await self._refusing(releases, take, until)
        else:
            steps = await self._steps(releases, take, "", until)
        await self._sweep(until)
        return [one is not None and one[1] is not None and one[1].found for one in steps]

    async def _refusing(self, releases: Sequence[tuple[str, Ticket]], take: rows.TakeAll, until: float) -> list[At]:
        """Release tickets so that no late claim acquires with them: see `_sql.plain`."""
        unanswered, refuse = self._plain.unanswered, self._dialect.refuse
        late = [(name, ticket.id) for name, ticket in releases if ticket.id in unanswered]
        more = [Statement(refuse, (ticket, *self._key(name))) for name, ticket in late]
        while True:
            steps = await self._steps(releases, take, "", until, more)
            found = [one for one in steps if one is not None]
            if len(found) == len(steps):
                unanswered.forget(ticket for _, ticket in late)
                return found
            await self._add_names(releases, steps, until)  # there must be a row that both lock

    async def _add_names(
        self, concerned: Sequence[tuple[str, Ticket]], steps: Sequence[At | None], until: float
    ) -> None:
        for (name, _), one in zip(concerned, steps, strict=True):
            if one is None:  # each alone: the owner of a new row must not wait for the server's counter of ids
                adds = [Statement(self._dialect.add_name, self._key(name)), Statement(self._dialect.clock)]
                rows.clock_of((await self._write(adds, until))[-1])  # without meta's row it was not added

    async def _sweep(self, until: float) -> None:
        if self._sweeper.due():
            await self._sweeper.step(self._transact, until)

    async def _steps(
        self,
        concerned: Sequence[tuple[str, Ticket]],
        take: rows.TakeAll,
        hint: str,
        until: float,
        more: Sequence[Statement] = (),
    ) -> list[At | None]:
        """Take steps and notify the waiters that were granted a name; None for a name without a row.

        ``more`` is written with them, unless a name has no row.
        """
        targets = [(self._key(name), ticket.id) for name, ticket in concerned]

        async def work(tx: Transaction) -> list[rows.Taken | None]:
            taken = await rows.advance(tx, self._dialect, targets, take)
            writes, messages = list[Statement](), list[Statement]()
            for snapshot, clock, step in filter(None, taken):
                if step is not None:
                    writes += rows.writes(self._dialect, snapshot, step.queue, clock.now, hint)
                    messages += rows.messages(self._dialect, snapshot, step.woken, clock)
            if more and None not in taken:
                writes += more
            if writes:
                await tx.commit(*writes, *messages)
            return taken

        taken = await self._transact(work, until)
        for _, clock, step in filter(None, taken):
            for entry in step.woken if step is not None else ():
                self._waiting.hand_over(entry.ticket.id, token_of(entry), int(clock.now * 1e6))
        return [one and one[1:] for one in taken]

    async def _query_entries(self, tickets: Sequence[str]) -> tuple[int, list[EntryState]]:
        """Read the entries of waiting tickets without a lock."""
        sent = self._runtime.now()
        (found,) = await self._write([self._dialect.entry_states(tickets)], sent + PATIENCE)
        if not found:
            return 0, []
        clock: int = found[0][0]
        self._waiting.clock_sample = ClockSample(sent, clock // 1000)
        return clock, [EntryState(one[1], one[2], one[3], one[4], max(one[5] or 0, 0), *one[6:]) for one in found]

    def _key(self, name: str) -> Key:
        return self._space, name.encode()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.where}>"


def _held_by(blocked: Blocked) -> Owner | None:
    return None if blocked.by is None else blocked.by.ticket.terms.owner
