"""The store for locks in another library's table, on a database server.

Theory of operation
-------------------
The holder is the one in the row of the other library's table. Each acquisition has a holder's id of its own there, made
from the ticket. So a repeated claim finds itself, and a release frees only what its own claim has acquired.

A claim is one transaction of two requests. The first takes the row if its lease has ended, adds it if there is none,
and reads it; the second commits, if the row is ours then. Nothing is kept before the commit. And a commit that is late
finds its row locked: the release of a claim without a reply adds the row, too, or locks it. Either waits until the
claim's transaction has ended. So a claim never takes effect after its own release.

The other programs write by the clocks of their hosts, we by the server's. So a *margin* is kept, both ways: a row of
theirs is taken only that much after its end, and one of ours ends that much after our lease. While no clock is off by
more than the margin, no two holders overlap; a holder of ours is notified by its own clock, before the margin.

No messages are sent. The first waiter of each client for a name polls, with jitter, and by a read alone while the row
is held. The others of that client look seldom: a release by the client, or the end of the first waiter, wakes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    LeaseTerms,
    LockMode,
    Owner,
    QueueEntry,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.layouts.sql import doctor, rights
from leasehold.layouts.sql.format import Format, us
from leasehold.layouts.sql.found import Found, found_in
from leasehold.stores._common.names import before
from leasehold.stores._common.slots import Slot, Slots
from leasehold.stores._common.unanswered import MOST, Unanswered
from leasehold.stores._sql import tables
from leasehold.stores._sql.transport import Outcome, Refused, Row, SQLTransport, Statement, Transaction

T = TypeVar("T")

POLL = 0.1
"""Seconds, on average, between two looks of a client's first waiter; Spring's registry has the same."""

SHORTEST_PAUSE = 0.005
"""Seconds, on average, after the first rollback by a conflict; doubled after each further one, up to `POLL`."""

SELDOM = 10.0
"""How many times more seldom the waiters behind it look."""

WITHIN = 5.0
"""Seconds that an operation without a timeout of its own may take."""

MOST_IN_ONE = 500
"""Rows that one transaction renews."""

ALONE_WITHIN = 0.25
"""Part of the time for a batch of renewals that one locked row may take."""


class SharedRowStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(self, runtime: Runtime, transport: SQLTransport, namespace: str, layout: Format) -> None:
        self._runtime = runtime
        self._transport = transport
        self._namespace = namespace
        self.layout = layout
        self.capabilities = layout.capabilities
        self._slots = Slots(runtime)
        self._rights_known = False
        self._begin()

    def _begin(self) -> None:
        self._unanswered = Unanswered()
        self._mine: dict[str, tuple[str, Ticket]] = {}  # by holder: the name and the ticket of a hold of this client

    # --- the store protocol --------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        key, me = self.layout.row_key(self._namespace, name), self.layout.id_of(ticket)
        until = self._runtime.now() + within
        if not self._rights_known:
            left = partial(self._left_until, until)
            self._rights_known = await rights.check(self._transport, self.layout, left)
        slot = self._slots.add(name, ticket) if join else None
        repeated, since = ticket.id in self._unanswered, self._runtime.now()
        self._unanswered[ticket.id] = None  # until there is a reply: a release may overtake this claim
        waits = slot is not None and slot.listed
        claim = partial(self._claim, key=key, me=me, length=self._length(ticket.terms), look_first=waits)
        try:
            found = await self._transact(claim, until)
        except BaseException as error:
            known = isinstance(error, StoreUnavailable) and not error.unknown
            if known and not repeated:
                self._unanswered.pop(ticket.id, None)
            if slot is not None and not slot.listed and known:
                self._forget(ticket)  # the server does not know it, so its client will not release it
            raise
        if not repeated:
            self._unanswered.pop(ticket.id, None)
        if found.held_by(me):
            self._forget(ticket)
            if len(self._mine) >= MOST:
                self._mine.pop(next(iter(self._mine)))
            self._mine[me] = name, ticket
            return Granted(found.since, since, ticket.terms.lease)
        return Wait(None, self._until_next_look(slot, found), self._owner(found))

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        key, me = self.layout.row_key(self._namespace, name), self.layout.id_of(ticket)
        waiting = self._slots.get(ticket.id)
        self._forget(ticket)
        if waiting is not None:  # at the close of a client, another thread may still wait
            _wake(waiting)
        self._unanswered.limit()
        late, ran = ticket.id in self._unanswered, me in self._mine
        free = partial(self._free, key=key, me=me, at_least=us(ticket.terms.at_least or 0) if ran else 0, late=late)
        found = await self._transact(free, self._runtime.now() + within)
        self._mine.pop(me, None)
        self._unanswered.forget((ticket.id,))
        if (first := self._slots.first(name)) is not None:
            _wake(first)
        return waiting is not None or (found is not None and found.held_by(me))

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until, results, failed = self._runtime.now() + within, dict[str, RenewalResult](), list[StoreUnavailable]()
        holding = sorted(
            (self.layout.row_key(self._namespace, name), ticket)
            for name, ticket in tickets
            if ticket.id not in self._slots
        )
        batches = [(holding[at : at + MOST_IN_ONE], False) for at in range(0, len(holding), MOST_IN_ONE)]
        try:
            for some, alone in (*batches, *(([one], True) for one in holding)):
                if alone and some[0][1].id in results:
                    continue  # else its row was locked, or is gone: wait for it, but not for long
                if alone and self._runtime.now() >= until:
                    break
                limit = min(until, self._runtime.now() + within * ALONE_WITHIN) if alone else until
                try:
                    results |= await self._renewed(some, limit, alone=alone)
                except StoreUnavailable as error:
                    failed.append(error)
                    if not alone:
                        break  # a batch waits for no row: what it fails of concerns all, and none is tried by itself
            if failed and not results:
                raise failed[0]
        finally:
            failed.clear()  # else the error and this frame refer to each other, and keep the callers' frames
        return [
            RenewalResult.QUEUED if ticket.id in self._slots else results.get(ticket.id, RenewalResult.UNKNOWN)
            for _, ticket in tickets
        ]

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        slot = self._slots.get(ticket.id)
        if slot is None:
            return None
        until, signal = self._runtime.now() + timeout, slot.ready(self._runtime)
        while not slot.news and (left := until - self._runtime.now()) > 0:
            await signal.wait(left)
            if not slot.news:
                signal.clear()
        slot.read()
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        layout = self.layout
        names = {layout.row_key(self._namespace, name): name for name, _ in list(self._mine.values())}
        read = layout.look_at()
        if exact:
            try:
                key = layout.row_key(self._namespace, prefix)
            except Unsupported:  # no row can have this name
                return []
            names[key], read = prefix, layout.look_at(key)
        answers = await self._transact(lambda tx: self._ask(tx, read), self._runtime.now() + within)
        start = before(self._namespace)
        views = list[View]()
        for key, *rest in answers[-1]:
            found, name = Found(*rest), names.get(key)
            if name is None and key.startswith(start) and (layout.named or not start):
                name = key.removeprefix(start)  # a key that is made from a name is shown itself
            if name is not None and (name == prefix if exact else name.startswith(prefix)) and found.until > found.now:
                views.append(self._view(name, found))
        return sorted(views, key=lambda view: view.name)

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; {self.capabilities.why_not}")

    async def diagnose(self) -> list[Finding]:
        return await doctor.examine(self._runtime, self.layout, self._transport)

    async def prepare(self) -> bool:
        """Make the table; return whether it was missing."""
        try:
            await self._transact(lambda tx: self._ask(tx, self.layout.look("")), self._runtime.now() + WITHIN)
        except Refused as error:
            if error.code != self.layout.dialect.missing[0]:
                raise
        else:
            return False
        make = [Statement(text) for text in tables.split(self.layout.schema + "\n")]
        await self._transact(lambda tx: tx.commit(*make), self._runtime.now() + tables.CREATE_WITHIN)
        return True

    async def close(self) -> None:
        await self._transport.close()

    def after_fork(self) -> None:
        self._slots.forget_all()
        self._begin()
        self._transport.after_fork()

    # --- transactions --------------------------------------------------------------------------------------------

    async def _transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float, *, reserved: bool = False
    ) -> T:
        """Run a transaction; one that a conflict rolled back is run again while there is time.

        Raises:
            Refused: its text says what to do about the other library's table.
        """
        pause = SHORTEST_PAUSE
        while True:
            try:
                return await self._transport.transact(work, within=self._left_until(until), reserved=reserved)
            except Refused as error:
                if why := self.layout.wrong_table(error.code):
                    text = f"the database at {self._transport.where} refused: {why}"
                    raise Refused(text, code=error.code, outcome=Outcome.LASTING) from None
                left = until - self._runtime.now()
                if error.outcome is not Outcome.AGAIN or left <= 0:
                    raise
            await self._runtime.sleep(min(pause * (0.5 + self._runtime.jitter()), left))
            pause = min(2 * pause, POLL)

    def _left_until(self, until: float) -> float:
        return max(until - self._runtime.now(), 0.001)

    async def _ask(self, tx: Transaction, *statements: Statement) -> list[list[Row]]:
        return await tx.ask(*self.layout.dialect.first, *statements)

    async def _claim(self, tx: Transaction, *, key: str, me: str, length: int, look_first: bool) -> Found:
        layout, look = self.layout, self.layout.look(key)
        if look_first:
            found = found_in(await self._ask(tx, look))
            if found is not None and not found.held_by(me) and self._left(found) > 0:
                return found
        steps = layout.take(key, me, length), layout.add(key, me, length), look
        while (found := found_in(await self._ask(tx, *steps))) is None:
            pass  # it was deleted between the steps
        if found.held_by(me):
            await tx.commit()
        return found

    async def _free(self, tx: Transaction, *, key: str, me: str, at_least: int, late: bool) -> Found | None:
        layout = self.layout
        adds = [layout.add(key, me, 0)] if late else []
        found = found_in(await self._ask(tx, *adds, layout.lock(key)))
        if found is not None and found.holder == me:
            await tx.commit(layout.free(key, me, at_least))
        return found

    async def _renewed(
        self, holding: Sequence[tuple[str, Ticket]], until: float, *, alone: bool = False
    ) -> dict[str, RenewalResult]:
        """Renew what can be locked at once, or ``alone`` what can be locked in time; return results by ticket."""
        layout = self.layout

        async def work(tx: Transaction) -> dict[str, RenewalResult]:
            looks = [layout.lock(key, wait=alone) for key, _ in holding]
            answers = (await self._ask(tx, *looks))[-len(looks) :]
            results, writes = dict[str, RenewalResult](), list[Statement]()
            for (key, ticket), rows in zip(holding, answers, strict=True):
                me, found = layout.id_of(ticket), found_in([rows])
                if found is not None and found.held_by(me):
                    at_least = us(ticket.terms.at_least or 0)
                    writes.append(layout.renew(key, me, us(ticket.terms.lease + layout.margin), at_least))
                    results[ticket.id] = RenewalResult.HELD
                elif alone or found is not None:
                    results[ticket.id] = RenewalResult.GONE
            if writes:
                await tx.commit(*writes)
            return results

        return await self._transact(work, until, reserved=True)

    # --- inside --------------------------------------------------------------------------------------------------

    def _length(self, terms: LeaseTerms) -> int:
        """Return for how long a row of ours holds: the lease and the margin, at least ``at_least``."""
        return us(max(terms.lease + self.layout.margin, terms.at_least or 0))

    def _left(self, found: Found) -> float:
        """Return seconds until others may take a row; below 0 if they may now."""
        _, _, ours = self.layout.owner_of(found.holder)
        return (found.until - found.now) / 1e6 + (0 if ours else self.layout.margin)

    def _until_next_look(self, slot: Slot | None, found: Found) -> float:
        poll = POLL * (0.5 + self._runtime.jitter())
        if slot is not None and not self._slots.enlist(slot):
            poll *= SELDOM
        return max(min(self._left(found), poll), 0.001)

    def _owner(self, found: Found) -> Owner:
        mine = self._mine.get(found.holder)
        return mine[1].terms.owner if mine is not None else self.layout.owner_of(found.holder)[1]

    def _view(self, name: str, found: Found) -> View:
        ticket, owner, ours = self.layout.owner_of(found.holder)
        left = (found.until - found.now) / 1e6
        mine = self._mine.get(found.holder)
        terms = mine[1].terms if mine is not None else LeaseTerms(LockMode(), owner, max(left, 0.0))
        token = found.since if ours else None
        return View(name, Kind.MUTEX, token or 0, (QueueEntry(Ticket(ticket, terms), 0, left, token),))

    def _forget(self, ticket: Ticket) -> None:
        """Remove a ticket that waits no more; the next one polls from now on."""
        if (next_waiter := self._slots.remove(ticket.id)) is not None:
            _wake(next_waiter)

    def __repr__(self) -> str:
        return f"<SharedRowStore {self.layout.name} {self._transport.where} namespace={self._namespace!r}>"


def _wake(slot: Slot) -> None:
    slot.news = True
    slot.set()
