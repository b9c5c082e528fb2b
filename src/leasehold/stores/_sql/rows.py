"""Queues on a database server: read what decides under the lock of the name's row, write what changed.

Theory of operation
-------------------
One transaction is one step:

1. lock the name's row;
2. read clock and entries by the next statement (see `Transaction`);
3. let `queues` compute the new queue;
4. write the differences and commit.

Entries are written only under the lock of their name, so the owner of that lock sees them as they are.

A plain lock that was granted at once is stored in the name's row, without an entry: the plain case is one statement on
that row (see `_sql.plain`). It must know whether there are entries without reading them, so the row has their number.

The row of a name is added and committed before any entry: there is always a row to wait for. A release may follow an
acquire whose commit is unknown. It waits for that row, and then finds either the entry or nothing; it never overtakes
the acquire.

A step at several names locks them in order of name. No other transaction waits while it owns the lock of a name:
renewals (`_sql.renewals`) and the sweep skip locked names. So our transactions cannot deadlock with each other. A
server that locks more than it was asked to may still find a deadlock; it ends one transaction, and that is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from leasehold._model import Cell, Change, QueueEntry, ReleaseReason, Ticket, View
from leasehold._rules import Queue
from leasehold.stores._common import queues
from leasehold.stores._common.cells import EMPTY, apply_change
from leasehold.stores._common.queues import Step
from leasehold.stores._sql import queue_snapshot, row_holder, tables
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import (
    WINDOW,
    Added,
    Changed,
    Dropped,
    EntryRow,
    Key,
    QueueSnapshot,
    ns,
    row_of,
)
from leasehold.stores._sql.transport import Row, Statement, Transaction
from leasehold.stores._sql.waiting import message

CONSTANTS, ITS_PLACE = 3, 4
"""Columns of `Dialect.entries` before those of the entry, and the column with its place."""

OF_NAME, NAMES = 4, 5
"""Columns of `Dialect.lock_name` before the number of entries, and of `Dialect.names` before those of the entry."""

TICKET, PLACE, EXPIRES, HINT = (NAMES + index for index in (0, 1, 3, 15))
"""Columns of `Dialect.names`."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The server's time in seconds, and the highest token of all forgotten names."""

    now: float
    fence: int

    @property
    def floor(self) -> int:
        """The lowest token that may be granted."""
        return max(int(self.now * 1e6), self.fence + 1)


Take = Callable[[QueueSnapshot, Clock], Step]
"""The step of an operation at one name."""

Target = tuple[Key, str]
"""A name and the ticket of the operation."""

Found = tuple[QueueSnapshot, Clock]

TakeAll = Callable[[Sequence[Found | None]], Sequence[Step | None]]
"""The steps of an operation at several names; None for a name without a row. A step of None changes nothing."""

Taken = tuple[QueueSnapshot, Clock, Step | None]


async def read(tx: Transaction, dialect: Dialect, targets: Sequence[Target], window: int) -> list[Found | None]:
    """Lock the names in order of name, then read clock and entries; return None for a name without a row.

    Most names have few entries, and one read of the first entries returns all of them. If many hold a name, a second
    one tells whether that many wait, too.
    """
    front = 2 * window
    count, order = len(targets), sorted(range(len(targets)), key=lambda index: targets[index][0])
    locks = [Statement(dialect.lock_name, targets[index][0]) for index in order]
    fronts = [Statement(dialect.front, (*targets[index][0], front)) for index in order]
    answers = await tx.ask(*locks, *fronts)
    full = [place for place in range(count) if answers[place] and len(answers[count + place]) >= front]
    entries = [Statement(dialect.entries, (*targets[order[place]][0], window)) for place in full]
    edges = [Statement(dialect.edges, (*targets[order[place]][0], targets[order[place]][1])) for place in full]
    asked = await tx.ask(*entries, *edges) if full else []
    more = {place: (asked[nth], _edge(window, asked[nth], asked[len(full) + nth])) for nth, place in enumerate(full)}
    found = list[Found | None]([None] * count)
    for place, index in enumerate(order):
        if answers[place]:
            first, edge = more.get(place, (answers[count + place], None))
            found[index] = _found(targets[index][0], answers[place][0], first, edge)
    return found


def _edge(window: int, first: Sequence[EntryRow], edge: Sequence[EntryRow]) -> Sequence[EntryRow] | None:
    """Return what was read beyond the first waiters; None if these are fewer than were asked for, so all."""
    return edge if sum(1 for one in first if one[ITS_PLACE]) >= window else None


def _found(key: Key, row: EntryRow, rows: Sequence[EntryRow], more: Sequence[EntryRow] | None) -> Found:
    clock = clock_of(rows)
    some: list[EntryRow] = [one[CONSTANTS:] for one in rows if one[CONSTANTS] is not None]
    name = key[1].decode("utf-8", "surrogatepass")
    entries, *holder = row[OF_NAME:]
    holders = row_holder.as_entries(holder)
    snapshot = queue_snapshot.snapshot_of(name, (row[0], row[1], row[2], row[3]), [*holders, *some], more, clock.now)
    snapshot.entries, snapshot.row_holder = entries, holder[0]
    snapshot.counted = len(some) if more is None else None
    return snapshot, clock


def clock_of(rows: Sequence[EntryRow]) -> Clock:
    """Read the columns before those of the entry, and check the layout of the tables."""
    tables.check(rows[0][1] if rows else None)
    return Clock(rows[0][0] / 1e9, rows[0][2])


async def advance(tx: Transaction, dialect: Dialect, targets: Sequence[Target], take: TakeAll) -> list[Taken | None]:
    """Read the names and take a step at each, with as many waiters as it needs; None for a name without a row.

    A waiter whose client has no connection is passed over, even if it is next: it may be dead, and would block the
    others for a lease. It keeps its place for `queue_snapshot.COME_BACK`: a client that lost only its connection asks
    again as soon as it has another.
    """
    window = WINDOW
    unreachable: set[str] = set()
    while True:
        read_now = await read(tx, dialect, targets, window)
        found = [
            one and (one[0].without(unreachable, me), one[1]) for one, (_, me) in zip(read_now, targets, strict=True)
        ]
        steps = take(found)
        taken = [one and (*one, step) for one, step in zip(found, steps, strict=True)]
        stepped = [(snapshot, step) for snapshot, _, step in filter(None, taken) if step is not None]
        if not all(snapshot.suffices(step.queue) for snapshot, step in stepped):
            window *= 2
        elif fresh := await _unreachable(tx, dialect, stepped, unreachable):
            unreachable |= fresh
        else:
            return taken


async def _unreachable(
    tx: Transaction, dialect: Dialect, steps: Sequence[tuple[QueueSnapshot, Step]], known: set[str]
) -> set[str]:
    """Return the channels without a listener, of waiters that would be granted a name."""
    if dialect.listening is None:
        return set()
    channels = sorted({hint for snapshot, step in steps for hint in snapshot.hints_of(step.woken).values() if hint})
    if not channels:
        return set()
    (found,) = await tx.ask(dialect.listening(channels))
    return set(channels) - {row[0] for row in found} - known


def writes(dialect: Dialect, snapshot: QueueSnapshot, after: Queue, now: float, hint: str) -> Iterator[Statement]:
    """Yield the statements that write what differs from the snapshot."""
    assert snapshot.row is not None
    name_id = snapshot.row[0]
    changes = row_holder.changes(snapshot, queue_snapshot.differences(snapshot, after, now, hint))
    entries = snapshot.entries if snapshot.counted is None else snapshot.counted  # a wrong number is set right
    entries += sum(isinstance(one, Added) - isinstance(one, Dropped) for one in changes.of_entries)
    if changes.name_differs or entries != snapshot.entries or queue_snapshot.name_differs(snapshot, after, now):
        holder = row_holder.columns_of(after, changes.holder)
        fixed = (after.fence, ns(after.blocked_until), ns(now), entries)
        yield Statement(dialect.set_name, (*fixed, *holder, name_id))
    for one in changes.of_entries:
        if isinstance(one, Added):
            yield Statement(dialect.add_entry, (name_id, *row_of(one.entry, one.place, hint)))
        elif isinstance(one, Changed):
            entry = one.entry
            args = (one.place, entry.token, ns(entry.expires), one.hint, entry.ticket.id, name_id)
            yield Statement(dialect.set_entry, args)
        else:
            yield Statement(dialect.drop_entry, (one.ticket, name_id))


def messages(
    dialect: Dialect, snapshot: QueueSnapshot, woken: Sequence[QueueEntry], clock: Clock
) -> Iterator[Statement]:
    """Yield the statements that notify the waiters that were granted the name."""
    channels = snapshot.hints_of(woken)
    for entry in woken:
        if dialect.notify is not None and channels[entry.ticket.id]:
            text = message(entry.ticket.id, token_of(entry), int(clock.now * 1e6))
            yield Statement(dialect.notify, (channels[entry.ticket.id], text))


def token_of(entry: QueueEntry | None) -> int:
    """Return the token of a holder."""
    assert entry is not None
    assert entry.token is not None
    return entry.token


def views_of(rows: Sequence[EntryRow], now: float) -> list[View]:
    """Return the queues in the rows of `Dialect.names`, which are in order of name, as they are at ``now``."""
    by_name: dict[bytes, list[EntryRow]] = {}
    for row in rows:
        by_name.setdefault(row[1], []).append(row)
    found: list[View] = []
    for name, some in by_name.items():
        row_id, _, *head = some[0][:NAMES]
        holders = row_holder.as_entries(some[0][-row_holder.COLUMNS :])
        entries = [*holders, *(one[NAMES : -row_holder.COLUMNS] for one in some if one[TICKET] is not None)]
        text = name.decode("utf-8", "surrogatepass")
        found.append(queues.view(queue_snapshot.snapshot_of(text, (row_id, *head), entries, None, now).queue, now))
    return found


# --- the steps of an operation: pure -------------------------------------------------------------------------------


def acquire(ticket: Ticket, *, join: bool) -> Take:
    """Return the step that tries to acquire a name for this ticket."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.try_acquire(snapshot.queue, ticket, join=join, now=clock.now, floor=clock.floor)

    return take


def release(ticket: Ticket, reason: ReleaseReason) -> Take:
    """Return the step that releases a name."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.release(snapshot.queue, ticket.id, reason=reason, now=clock.now, floor=clock.floor)

    return take


def each(takes: Sequence[Take]) -> TakeAll:
    """Return what takes one of these steps at each name that has a row."""

    def take_all(found: Sequence[Found | None]) -> list[Step | None]:
        return [here and take(*here) for take, here in zip(takes, found, strict=True)]

    return take_all


def acquire_in_order(tickets: Sequence[Ticket], *, keep: bool) -> TakeAll:
    """Return what acquires in order up to the first unavailable name; see `BatchStore.try_acquire_many`.

    It takes no step while one of the names has no row. An acquire whose answer was lost is repeated. The repetition may
    find that it has lost one name and still has a later one. So it releases what it must not keep; not acquiring it
    would be too little.
    """

    def take_all(found: Sequence[Found | None]) -> list[Step | None]:
        steps, there = list[Step | None](), [here for here in found if here is not None]
        if len(there) < len(found):
            return [None] * len(found)
        for ticket, here in zip(tickets, there, strict=True):
            step = acquire(ticket, join=False)(*here)
            steps.append(step)
            if step.blocked is not None:
                last = len(steps)
                kept = steps if keep else [*map(_without, tickets[: last - 1], there), step]
                return [*kept, *map(_without, tickets[last:], there[last:])]
        return steps

    return take_all


def _without(ticket: Ticket, here: Found) -> Step | None:
    """Release a name if an earlier attempt of the same ticket acquired it."""
    if all(entry.ticket.id != ticket.id for entry in here[0].queue.entries()):
        return None
    return release(ticket, ReleaseReason.RELEASE)(*here)


async def read_cell(tx: Transaction, dialect: Dialect, key: Key) -> Cell:
    """Read a cell."""
    (found,) = await tx.ask(Statement(dialect.read_cell, key))
    return _cell_of(found[0]) if found else EMPTY


async def change_cell(tx: Transaction, dialect: Dialect, key: Key, change: Change) -> Cell | None:
    """Change a cell; return None if it has no row yet."""
    (found,) = await tx.ask(Statement(dialect.lock_cell, key))
    if not found:
        return None
    after = apply_change(_cell_of(found[0]), change)
    if after.changed:
        ttl = ns(change.ttl)
        args = (after.value, after.version, after.fence, found[0][4] + ttl, ttl, *key)
        await tx.commit(Statement(dialect.set_cell, args))
    return after


def _cell_of(row: Row) -> Cell:
    """Read a row of `Dialect.lock_cell`; an expired cell is empty."""
    value, version, fence, expires, now = row
    return EMPTY if value is None or expires <= now else Cell(bytes(value), version, fence)
