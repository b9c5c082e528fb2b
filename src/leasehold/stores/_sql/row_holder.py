"""The holder that is stored in its name's row: a plain lock that was granted at once. It has no entry.

All else (waiters, and what was granted to one that waited; readers, permits, and what enters alongside) has entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leasehold._model import Kind, LockMode, QueueEntry, Ticket
from leasehold._rules import Queue
from leasehold.stores._sql.queue_snapshot import Added, Changed, Dropped, EntryRow, QueueSnapshot, ns

HOLDER = "holder, holder_token, holder_expires, holder_fair, holder_lease, holder_delay, holder_owner, holder_meta"
"""The columns of a name that describe the holder in its row."""

NOBODY = ("", 0, 0, 0, 0, 0, "", "")
"""What they are without one."""

COLUMNS = len(NOBODY)

MODES = (LockMode(), LockMode(fair=True))
"""How a plain lock holds its name."""


def is_plain(ticket: Ticket) -> bool:
    """Return whether a ticket is that of a plain lock."""
    return ticket.terms.mode in MODES and not ticket.alongside


def as_entries(columns: Sequence[int | str]) -> list[EntryRow]:
    """Return the holder as the row of an entry; nothing without a holder."""
    ticket, token, expires, fair, lease, delay, owner, meta = columns
    if not ticket:
        return []
    return [(ticket, 0, token, expires, Kind.MUTEX.value, 1, 0, 1, 1, fair, lease, delay, owner, meta, "", "")]


def columns_of(after: Queue, ticket: str) -> tuple[int | str, ...]:
    """Return the columns of `HOLDER` for a ticket; an empty one means no holder."""
    entry = next((one for one in after.holders if one.ticket.id == ticket), None) if ticket else None
    if entry is None or entry.token is None:
        return NOBODY
    terms = entry.ticket.terms
    return (
        *(ticket, entry.token, ns(entry.expires), int(terms.mode.fair)),
        *(ns(terms.lease), ns(terms.lock_delay), str(terms.owner), terms.meta),
    )


@dataclass(slots=True)
class Changes:
    """What a step changes, by where it is stored.

    Attributes:
        holder: the ticket in the name's row afterwards; empty: none.
        name_differs: whether the name's row differs because of it, or of its lease.
        of_entries: what is written to entries.
    """

    holder: str
    name_differs: bool
    of_entries: list[Dropped | Added | Changed]


def changes(snapshot: QueueSnapshot, differences: Iterable[Dropped | Added | Changed]) -> Changes:
    """Sort the differences between a snapshot and the queue after a step."""
    found = Changes(snapshot.row_holder, False, [])
    for one in differences:
        if isinstance(one, Dropped) and one.ticket == found.holder:
            found.holder, found.name_differs = "", True
        elif isinstance(one, Changed) and one.entry.ticket.id == found.holder:
            found.name_differs = True
        elif isinstance(one, Added) and not found.holder and _may_be_in_row(one.entry):
            found.holder, found.name_differs = one.entry.ticket.id, True
        else:
            found.of_entries.append(one)
    return found


def _may_be_in_row(entry: QueueEntry) -> bool:
    return entry.token is not None and is_plain(entry.ticket)
