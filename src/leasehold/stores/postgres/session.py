"""``mode=session``: advisory locks, each held by a connection of its own. Freed the moment that the connection dies.

Theory of operation
-------------------
The lock is the server's and belongs to a session. A hold has a session to itself, and so has one who waits: the server
queues the waiters, in order of arrival, and nobody polls. A job reads the answer, so that neither a thread nor a loop
is held up by it.

Each session is told to end when nothing is heard of it for the length of the lease (from PostgreSQL 14). The renewal
is a statement on that very session. So a holder that stalls, or whose host vanishes, loses the lock at the end of its
lease, as with lease rows, and is told before; one whose process or connection dies loses it at once. Before 14 only
TCP's keep-alive ends a session whose host has vanished.

The row of the name keeps the token; seats show to people who holds and waits, and are believed only while the server's
own list of locks says the same. A connection on which an answer is late is closed: the hold is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.model import Capabilities, Departure, Granted, Owner, Seat, Standing, Ticket, View, Wait
from leasehold.rules import Queue
from leasehold.runtimes.base import Job, Runtime, Signal
from leasehold.stores import ledger
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.store import PostgresStore
from leasehold.stores.sql import rows, schema
from leasehold.stores.sql.pages import above, ns
from leasehold.stores.sql.store import PATIENCE
from leasehold.wires.postgres.errors import Broken, ServerError, no_answer, refused
from leasehold.wires.postgres.link import Link
from leasehold.wires.postgres.pool import Pool
from leasehold.wires.postgres.settings import Settings
from leasehold.wires.sql import Row, Statement, Transaction

IDLE = 10
"""Leases after which a waiter asks again that need not: the server will tell it."""

WATCH_EVERY = 0.2
"""Seconds between two looks at the connections of holds: local ones, nothing is sent."""

Hear = Callable[[Standing, Collection[str] | None], None]


@dataclass(eq=False, slots=True)
class Entry:
    """The session of one ticket."""

    name: str
    ticket: Ticket
    link: Link
    turn: Pool
    signal: Signal
    heard: float
    token: int | None = None
    parked: bool = False
    locked: bool = False
    failed: StoreUnavailable | None = None
    hint: str = field(default="")

    @property
    def dead(self) -> bool:
        """Whether the connection is of no more use, and with it the lock."""
        return not self.link.open or self.failed is not None


class SessionStore(PostgresStore):
    """See `leasehold.stores.base.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=False, permits=False, delay=False, crash_bound="at once when the connection dies, else the lease"
    )

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str) -> None:
        super().__init__(runtime, settings, namespace)
        self._namespace = namespace
        self._entries: dict[str, Entry] = {}
        self._hear: Hear | None = None
        self._watch: Job | None = None
        self._rows = self._space + advisory.SPACE

    # --- the queue ---------------------------------------------------------------------------------------------

    async def claim(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        until = since + within
        entry = self._entries.get(ticket.id)
        if entry is None:
            entry = await self._enter(name, ticket, until)
        entry.heard = since
        try:
            if entry.parked and await self._transact(self._is_granted(entry), until):
                await entry.signal.wait(max(until - self._runtime.now(), 0.0))
            if entry.failed is not None:
                raise entry.failed
            if not entry.locked and not entry.parked:
                ((tried,), _) = await self._ask(entry, until, self._tries(entry), self._holds_open(ticket))
                entry.locked = bool(tried[0])
            if entry.locked:
                return await self._granted(entry, since, until)
            if not entry.parked:
                return await self._wait(entry, join, until)
        except BaseException:
            self._end(entry)
            raise
        return Wait(None, IDLE * ticket.terms.lease)

    async def leave(self, name: str, ticket: Ticket, *, how: Departure, within: float) -> bool:
        until = self._runtime.now() + within
        entry = self._entries.pop(ticket.id, None)
        if entry is None:
            return await self._break(name, ticket, until) if how is Departure.BREAK else False
        entry.signal.set()
        if entry.dead or entry.parked:
            there = not entry.dead or entry.token is None
            pid = entry.link.facts["backend"]
            self._give_up(entry)
            await self._forget(name, ticket, pid, until)  # who waits in the server would else be there a while yet
            return there
        key = self._key_of(name)
        try:
            _, (freed,) = await self._ask(
                entry, until, Statement(advisory.DROP, (ticket.id,)), Statement(advisory.UNLOCK, (key,))
            )
        except BaseException as error:
            self._postgres.drop(entry.link)  # with the session the lock is gone
            if isinstance(error, LeaseholdError) and entry.failed is not None:
                return False  # the session had ended, perhaps long ago
            raise
        self._postgres.keep(entry.link)
        return bool(freed[0])

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[Standing]:
        until = self._runtime.now() + within
        answers = await self._runtime.gather(*(self._renew_one(ticket, until) for _, ticket in tickets))
        return [answer if isinstance(answer, Standing) else Standing.UNKNOWN for answer in answers]

    async def _renew_one(self, ticket: Ticket, until: float) -> Standing:
        entry = self._entries.get(ticket.id)
        if entry is None or entry.dead:
            if entry is not None:
                entry.signal.set()
            return Standing.GONE
        if entry.token is None:
            entry.heard = self._runtime.now()
            return Standing.QUEUED
        try:
            await self._ask(entry, until, Statement(advisory.BEAT, (ticket.id,)))
        except StoreUnavailable:
            return Standing.GONE if entry.dead else Standing.UNKNOWN
        return Standing.HELD

    async def changed(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        entry = self._entries.get(ticket.id)
        if entry is None or not await entry.signal.wait(timeout):
            return None
        entry.signal.clear()
        return None  # the claim that follows finds the lock, and takes its token

    async def look(self, prefix: str, *, exact: bool = False) -> list[View]:
        start = prefix.encode("utf-8", "surrogatepass")
        end = start + b"\0" if exact else above(start)

        async def work(tx: Transaction) -> tuple[float, list[Row], list[Row]]:
            (clock,) = await tx.ask(Statement(self._dialect.clock))
            now = rows.clock_of(clock).now
            text = Statement(self._dialect.names, (self._rows, start, end, ns(now)))
            found, locks = await tx.commit(text, Statement(advisory.LOCKS))
            return now, found, locks

        now, found, locks = await self._transact(work, self._runtime.now() + PATIENCE)
        hints = {row[4]: row[19] for row in found if row[4] is not None}
        there = {(f"pid:{pid}", key) for pid, key in locks}
        views = [ledger.view(self._living(queue, hints, there, now), now) for queue in rows.views_of(found)]
        return [view for view in views if view.holders or view.waiters]

    def _living(self, queue: Queue, hints: dict[str, str], there: set[tuple[str, int]], now: float) -> Queue:
        """Keep the seats whose sessions the server knows."""
        key = self._key_of(queue.name)

        def kept(seats: Sequence[Seat]) -> tuple[Seat, ...]:
            living = (seat for seat in seats if (hints[seat.ticket.id], key) in there)
            return tuple(replace(seat, expires=max(seat.expires, now + 0.001)) for seat in living)

        return replace(queue, holders=kept(queue.holders), waiters=kept(queue.waiters))

    # --- its own life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        for entry in list(self._entries.values()):
            self._end(entry)
        if self._watch is not None:
            await self._watch.join(1.0)
        await super().close()

    def after_fork(self) -> None:
        self._entries = {}
        self._watch = None
        super().after_fork()

    def tell(self, hear: Hear) -> None:
        """Tell ``hear`` from now on of holds whose connections end."""
        self._hear = hear

    async def _watching(self) -> None:
        """Look for connections that end while nothing is asked on them, for as long as there are holds."""
        while self._entries:
            await self._runtime.sleep(WATCH_EVERY)
            for entry in list(self._entries.values()):
                if entry.token is not None and not entry.dead and not entry.turn.busy and not self._lives(entry.link):
                    entry.failed = no_answer(self._postgres.where, "the server closed the connection", unknown=False)
                    if self._hear is not None:
                        self._hear(Standing.GONE, (entry.ticket.id,))

    def _lives(self, link: Link) -> bool:
        return link.open and self._postgres.alive(link)

    # --- sessions ----------------------------------------------------------------------------------------------

    async def _enter(self, name: str, ticket: Ticket, until: float) -> Entry:
        """Get a session for a ticket."""
        link = await self._postgres.session(until)
        backend = link.facts["backend"]
        turn, signal = Pool(self._runtime, 1), self._runtime.signal()
        entry = Entry(name, ticket, link, turn, signal, self._runtime.now(), hint=f"pid:{backend}")
        self._entries[ticket.id] = entry
        return entry

    def _end(self, entry: Entry) -> None:
        """Give the session up, and with it the lock."""
        self._entries.pop(entry.ticket.id, None)
        self._give_up(entry)
        entry.signal.set()

    def _give_up(self, entry: Entry) -> None:
        if entry.parked:
            entry.link.shut()  # the job that reads closes it: a descriptor that is waited for must not become another's
        else:
            self._postgres.drop(entry.link)

    async def _ask(self, entry: Entry, until: float, *statements: Statement) -> list[list[Row]]:
        """Run statements on the session, one batch at a time; one that is late or refused ends it."""
        where = self._postgres.where
        try:
            await entry.turn.take(until)
        except TimeoutError as error:
            raise no_answer(where, error, unknown=False) from None
        try:
            if not entry.link.open:
                raise no_answer(where, "the connection is closed", unknown=False)
            return await self._postgres.run(entry.link.exchange(statements), until)
        except ServerError as error:
            self._postgres.drop(entry.link)
            entry.failed = refused(where, error) if error.fatal else None
            raise refused(where, error) from None
        except Broken as error:
            self._postgres.drop(entry.link)
            entry.failed = no_answer(where, error, unknown=False)
            raise no_answer(where, error, unknown=True) from None
        except TimeoutError as error:
            self._postgres.drop(entry.link)
            raise no_answer(where, error, unknown=True) from None
        except BaseException:
            self._postgres.drop(entry.link)
            raise
        finally:
            entry.turn.give(None)

    def _tries(self, entry: Entry) -> Statement:
        return Statement(advisory.TRY, (self._key_of(entry.name),))

    def _holds_open(self, ticket: Ticket) -> Statement:
        return Statement(advisory.IDLE_END, (f"{max(int(ticket.terms.lease * 1000), 1)}ms",))

    async def _granted(self, entry: Entry, since: float, until: float) -> Granted:
        """Take the token of a lock that the session has; a claim that is repeated gets the same."""
        if entry.token is None:
            while not (found := (await self._ask(entry, until, self._seat(advisory.GRANT, entry)))[0]):
                await self._ask(entry, until, self._adding_row(entry.name))
            schema.check_version(found[0][1])
            entry.token, entry.parked = int(found[0][0]), False
            if self._watch is None or not self._watch.alive():
                self._watch = self._runtime.spawn(self._watching, "leasehold-watch")
        else:
            await self._ask(entry, until, Statement(advisory.BEAT, (entry.ticket.id,)))
        assert entry.token is not None
        return Granted(entry.token, since, entry.ticket.terms.lease)

    async def _wait(self, entry: Entry, join: bool, until: float) -> Wait:
        statements = [Statement(advisory.HOLDER, (self._rows, entry.name.encode()))]
        if join:
            statements += [self._adding_row(entry.name), self._seat(advisory.QUEUE, entry)]
        held, *_ = await self._ask(entry, until, *statements)
        held_by = Owner.parse(held[0][0]) if held else None
        if not join:
            self._entries.pop(entry.ticket.id, None)
            self._postgres.keep(entry.link)
            return Wait(None, entry.ticket.terms.lease, held_by)
        entry.parked = True
        self._runtime.spawn(lambda: self._park(entry), "leasehold-wait")
        return Wait(None, IDLE * entry.ticket.terms.lease, held_by)

    async def _park(self, entry: Entry) -> None:
        """Wait in the server's queue until it grants the lock, the session ends, or nobody renewed for a lease."""
        where = self._postgres.where
        failed: StoreUnavailable | None = None
        waits = entry.link.exchange([Statement(advisory.WAIT, (self._key_of(entry.name),))])
        try:
            while not entry.locked:
                until = entry.heard + entry.ticket.terms.lease
                try:
                    await self._postgres.run(waits, until)
                    entry.locked = True
                except TimeoutError:
                    if until >= entry.heard + entry.ticket.terms.lease:
                        raise
        except ServerError as error:
            failed = refused(where, error)
        except (Broken, TimeoutError) as error:
            failed = no_answer(where, error, unknown=False)
        finally:
            entry.parked = False
            if not entry.locked or self._entries.get(entry.ticket.id) is not entry:
                self._postgres.drop(entry.link)
                entry.failed = failed or no_answer(where, "the wait was ended", unknown=False)
            entry.signal.set()

    def _is_granted(self, entry: Entry) -> Callable[[Transaction], Coroutine[Any, Any, bool]]:
        async def work(tx: Transaction) -> bool:
            backend = entry.link.facts["backend"]
            (found,) = await tx.commit(Statement(advisory.GRANTED, (backend, self._key_of(entry.name))))
            return bool(found)

        return work

    async def _forget(self, name: str, ticket: Ticket, backend: int, until: float) -> None:
        async def work(tx: Transaction) -> None:
            ends = Statement(advisory.END, (backend, self._key_of(name)))
            await tx.commit(Statement(advisory.DROP, (ticket.id,)), ends)

        await self._transact(work, until)

    async def _break(self, name: str, ticket: Ticket, until: float) -> bool:
        """End the session of somebody else, which frees the lock; the token moves on."""

        async def work(tx: Transaction) -> bool:
            (found,) = await tx.ask(Statement(advisory.HINT_OF, (ticket.id,)))
            if not found:
                return False
            ends = Statement(advisory.END, (int(found[0][0].removeprefix("pid:")), self._key_of(name)))
            key = (self._rows, name.encode())
            ended, *_ = await tx.commit(ends, Statement(advisory.RAISE, key), Statement(advisory.DROP, (ticket.id,)))
            return bool(ended)

        return await self._transact(work, until)

    def _seat(self, text: str, entry: Entry) -> Statement:
        terms = entry.ticket.terms
        shown = (ns(terms.lease), str(terms.owner), terms.meta, entry.hint)
        return Statement(text, (self._rows, entry.name.encode(), entry.ticket.id, *shown))

    def _adding_row(self, name: str) -> Statement:
        return Statement(self._dialect.add_name, (self._rows, name.encode()))

    def _key_of(self, name: str) -> int:
        return advisory.key_of(self._namespace, name)
