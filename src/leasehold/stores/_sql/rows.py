"""Queues and cells on a database server: read what decides under the lock of the name's row, write what changed.

Theory of operation
-------------------
One transaction is one step: lock the name's row, read clock and entries by the next statement (see `Transaction`), let
`ledger` say what becomes of them, write the differences and commit. Entries are written only under the lock of their
name, so whoever has the lock sees them as they are.

A name's row is made, and committed, before an entry is: there is always a row to wait for. So a leave that follows a
claim of which nobody knows whether it was committed finds either its entry or nothing, and never overtakes it.

A step at several names locks them one after another in order of name, whoever takes it, and nobody else waits while he
holds the lock of a name (renewals and the sweep pass over what is locked): so there is no deadlock of ours. Others, as
of a server that locks more than it was asked to, are its to end, and the transaction is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from leasehold._rules import Queue
from leasehold.stores._common.queues import Step
from leasehold.stores._sql import queue_snapshot
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import WINDOW, Added, Changed, EntryRow, Key, QueueSnapshot, ns, row_of
from leasehold.stores._sql.tables import schema
from leasehold.stores._sql.transport import Statement, Transaction

CONSTANTS = 3
"""Columns of `Dialect.entries` before those of the entry."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The server's time in seconds, and the highest token of all names that were forgotten."""

    now: float
    fence: int

    @property
    def floor(self) -> int:
        """The least token to give."""
        return max(int(self.now * 1e6), self.fence + 1)


Take = Callable[[QueueSnapshot, Clock], Step]
"""What an operation makes of a name."""

Target = tuple[Key, str]
"""A name, and the ticket concerned."""

Found = tuple[QueueSnapshot, Clock]

TakeAll = Callable[[Sequence[Found | None]], Sequence[Step | None]]
"""What an operation makes of several names, each None if it has no row; a step of None leaves the name as it is."""

Taken = tuple[QueueSnapshot, Clock, Step | None]


async def read(tx: Transaction, dialect: Dialect, targets: Sequence[Target], window: int) -> list[Found | None]:
    """Lock the names in order, whatever order they come in, and read clock and entries; None for a name without a row.

    At most names there are few entries, and a plain look at the first of them finds all.
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
    more = {place: (asked[nth], asked[len(full) + nth]) for nth, place in enumerate(full)}
    found = list[Found | None]([None] * count)
    for place, index in enumerate(order):
        if answers[place]:
            first, edge = more.get(place, (answers[count + place], None))
            found[index] = _found(targets[index][0], answers[place][0], first, edge)
    return found


def _found(key: Key, row: EntryRow, rows: Sequence[EntryRow], more: Sequence[EntryRow] | None) -> Found:
    clock = clock_of(rows)
    some: list[EntryRow] = [one[CONSTANTS:] for one in rows if one[CONSTANTS] is not None]
    name = key[1].decode("utf-8", "surrogatepass")
    return queue_snapshot.snapshot_of(name, (row[0], row[1], row[2], row[3]), some, more, clock.now), clock


def clock_of(rows: Sequence[EntryRow]) -> Clock:
    """Read the columns before the entry, and check the layout of the tables."""
    schema.check(rows)
    return Clock(rows[0][0] / 1e9, rows[0][2])


async def advance(tx: Transaction, dialect: Dialect, targets: Sequence[Target], take: TakeAll) -> list[Taken | None]:
    """Read the names and take a step at each, with as many waiters as it needs; None for a name without a row.

    A waiter who would get the name, but whose client has no connection, is passed over: it may be dead, and would hold
    up the others for a lease. It keeps its place for `snapshots.COME_BACK`, for one that lost only its connection asks
    anew as soon as it has another.
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
    """Return the channels of those who would get a name on which nobody listens."""
    if dialect.listening is None:
        return set()
    channels = sorted({hint for snapshot, step in steps for hint in snapshot.hints_of(step.woken).values() if hint})
    if not channels:
        return set()
    (found,) = await tx.ask(dialect.listening(channels))
    return set(channels) - {row[0] for row in found} - known


def writes(dialect: Dialect, snapshot: QueueSnapshot, after: Queue, now: float, hint: str) -> Iterator[Statement]:
    """Yield the statements that write what differs from the page that was read."""
    assert snapshot.row is not None
    name_id = snapshot.row[0]
    changes = list(queue_snapshot.differences(snapshot, after, now, hint))
    if queue_snapshot.name_differs(snapshot, after, now):
        yield Statement(dialect.set_name, (after.fence, ns(after.blocked_until), ns(now), name_id))
    for one in changes:
        if isinstance(one, Added):
            yield Statement(dialect.add_entry, (name_id, *row_of(one.entry, one.place, hint)))
        elif isinstance(one, Changed):
            entry = one.entry
            args = (one.place, entry.token, ns(entry.expires), one.hint, entry.ticket.id, name_id)
            yield Statement(dialect.set_entry, args)
        else:
            yield Statement(dialect.drop_entry, (one.ticket, name_id))


def views_of(rows: Sequence[EntryRow]) -> list[Queue]:
    """Put together the rows of `Dialect.names`, which are in order of name."""
    by_name: dict[bytes, list[EntryRow]] = {}
    for row in rows:
        by_name.setdefault(row[1], []).append(row)
    queues: list[Queue] = []
    for name, found in by_name.items():
        head = (found[0][0], found[0][2], found[0][3], 0)
        entries = [one[4:] for one in found if one[4] is not None]
        queues.append(queue_snapshot.snapshot_of(name.decode("utf-8", "surrogatepass"), head, entries, None, 0.0).queue)
    return queues
