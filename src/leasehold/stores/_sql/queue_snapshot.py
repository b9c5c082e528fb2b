"""Queues as rows: what a step reads of a name, and what differs after it. Pure; all SQL stores use it.

Why a window of the queue is enough: a step looks at waiters in order and stops at the first that must stay. If the
window holds such a waiter, the step would not have looked at any later one. If not, and more are waiting, the step,
which is pure, is taken again with a window twice as large. So 1,000 waiters cost a step no more than ten do, and a
thousand dead ones are removed once.

Two kinds of waiters do not count as the one that stays. A step may pass over some that must stay (see
`_rules.successors`). A waiter alongside a ticket may enter before all others, so these are always read. Always read are
also the holders, the ticket's own entry, and the last row of the queue, whose number the next arrival counts from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket
from leasehold._rules import Queue, stops

WINDOW = 8
"""Waiters that a step reads at first."""

USED_TO_WITHIN = 600 * 10**9
"""Nanoseconds by which ``name.used`` may lag behind, so that most releases need not write that row."""

COME_BACK = 1.0
"""Seconds for which a waiter that could not be notified keeps its place, as on Redis."""

SET_BACK_AT_LEAST = 0.001
"""Seconds by which a clock must have been set back to be corrected for: more than times are rounded by."""

ALL = 1 << 31
"""As a window: all waiters."""

Key = tuple[bytes, bytes]
"""Namespace and name."""

COLUMNS = (
    "ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, meta, "
    "alongside, hint"
)
"""The columns of an entry that all SQL stores have, in the order in which they are read and written."""

EntryRow = tuple[Any, ...]
"""The columns of `COLUMNS`, in that order; a store's own may follow."""

NameRow = tuple[int, int, int, int]
"""Id, fence, blocked_until and used of a name."""


def ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return round(seconds * 1e9)


def above(prefix: bytes) -> bytes:
    """Return the upper bound of the names that begin with ``prefix``: UTF-8 has no byte 0xFF, so it exists."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


@dataclass(slots=True)
class QueueSnapshot:
    """The queue of one name as it was read.

    Attributes:
        row: the name's row; None if there is none.
        queue: the holders and the waiters that were read.
        whole: whether all waiters were read.
        last: the highest number in the queue, even of an expired entry; 0 without waiters.
        window: tickets of the first waiters that have not expired and that no step passes over. An expired one goes to
            the end of the queue when it asks again.
        hints: the channel for messages of each entry.
        own: the columns of each entry that only this store has.
        entries: how many rows of entries the name has, as its own row says.
        counted: how many it has, if all were read.
        row_holder: ticket of the holder that is stored in the name's row; empty: none.
        passed_over: waiters without a listener. They are not in ``queue``.
        shortened: tickets whose stored entries expire later than those in ``queue``; see `snapshot_of`.
    """

    row: NameRow | None
    queue: Queue
    whole: bool = True
    last: int = 0
    window: frozenset[str] = frozenset()
    hints: dict[str, str] = field(default_factory=dict[str, str])
    own: dict[str, EntryRow] = field(default_factory=dict[str, EntryRow])
    passed_over: tuple[QueueEntry, ...] = field(default=(), kw_only=True)
    entries: int = field(default=0, kw_only=True)
    counted: int | None = field(default=None, kw_only=True)
    row_holder: str = field(default="", kw_only=True)
    shortened: frozenset[str] = field(default=frozenset(), kw_only=True)

    def without(self, unreachable: Collection[str], me: str) -> QueueSnapshot:
        """Return the snapshot without the waiters on these channels, except ``me``."""

        def away(entry: QueueEntry) -> bool:
            return entry.ticket.id != me and self.hints.get(entry.ticket.id, "") in unreachable

        some = tuple(filter(away, self.queue.waiters))
        if not some:
            return self
        queue = replace(self.queue, waiters=tuple(entry for entry in self.queue.waiters if entry not in some))
        window = self.window - {entry.ticket.id for entry in some}
        return replace(self, queue=queue, window=window, passed_over=(*self.passed_over, *some))

    def suffices(self, after: Queue) -> bool:
        """Return whether the step that led to ``after`` had read enough waiters."""
        return self.whole or any(entry.ticket.id in self.window for entry in after.waiters)

    def hints_of(self, entries: Sequence[QueueEntry]) -> dict[str, str]:
        """Return the channels of these entries, by ticket."""
        return {entry.ticket.id: self.hints.get(entry.ticket.id, "") for entry in entries}


@dataclass(frozen=True, slots=True)
class Added:
    """A new entry, with its place."""

    entry: QueueEntry
    place: int


@dataclass(frozen=True, slots=True)
class Changed:
    """An entry with another place, token, expiry or hint than before."""

    entry: QueueEntry
    place: int
    hint: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A ticket whose entry is removed."""

    ticket: str


def snapshot_of(
    name: str, row: NameRow, first: Sequence[EntryRow], more: Sequence[EntryRow] | None, now: float
) -> QueueSnapshot:
    """Build a snapshot from rows.

    The clock may have been set back since they were written, as by a failover to a server whose clock is behind. So an
    entry lasts at most its lease from ``now``, and a lock delay at most what was left of it at the name's last use.

    Args:
        name: the name.
        row: its row.
        first: all holders, and the first waiters.
        more: None if ``first`` has all waiters; else the ticket's own entry, the last one of the queue and all
            alongside another ticket, in any order and possibly twice.
        now: the store's clock in seconds.
    """
    seen = {one[0] for one in first if one[1]}
    found = {one[0]: one for one in (*first, *(more or ()))}
    stored = [entry_of(one) for one in found.values()]
    entries = [_at_most_its_lease(entry, now) for entry in stored]
    holders = tuple(sorted((entry for entry in entries if entry.token is not None), key=lambda entry: entry.token or 0))
    waiters = tuple(sorted((entry for entry in entries if entry.token is None), key=lambda entry: entry.order))
    return QueueSnapshot(
        row,
        Queue(name, row[1], _blocked_until(row, now), holders, waiters),
        more is None,
        max((one[1] for one in found.values()), default=0),
        frozenset(
            entry.ticket.id for entry in waiters if entry.ticket.id in seen and entry.expires > now and stops(entry)
        ),
        {one[0]: one[15] for one in found.values()},
        {one[0]: one[16:] for one in found.values()},
        shortened=frozenset(old.ticket.id for old, entry in zip(stored, entries, strict=True) if entry is not old),
    )


def _at_most_its_lease(entry: QueueEntry, now: float) -> QueueEntry:
    latest = now + entry.ticket.terms.lease
    return replace(entry, expires=latest) if entry.expires > latest + SET_BACK_AT_LEAST else entry


def _blocked_until(row: NameRow, now: float) -> float:
    # When `used` was now, `until - used` was left: nothing writes `used` alone unless the delay is over by then.
    until, used = row[2] / 1e9, row[3] / 1e9
    return until - (used - now) if until > now and used > now + SET_BACK_AT_LEAST else until


def differences(snapshot: QueueSnapshot, after: Queue, now: float, hint: str) -> Iterator[Dropped | Added | Changed]:
    """Yield what to write, removed entries first. New entries get ``hint``.

    A waiter that asked again while half of its lease is left is not written: that saves a disk write each time.
    """
    before = {entry.ticket.id: entry for entry in snapshot.queue.entries()}
    remaining = {entry.ticket.id: entry for entry in after.entries()}
    for ticket, old in before.items():
        if ticket not in remaining or old.expires <= now:  # an expired one that is back has a new place
            yield Dropped(ticket)
    for entry in snapshot.passed_over:
        if entry.expires > now + COME_BACK or entry.ticket.id in snapshot.shortened:
            expires = min(entry.expires, now + COME_BACK)
            yield Changed(replace(entry, expires=expires), entry.order, snapshot.hints[entry.ticket.id])
    for ticket, entry in remaining.items():
        old_entry = before.get(ticket)
        if old_entry is None or old_entry.expires <= now:
            # Not the number in `Queue`: it counts from the last unexpired entry, and others may be behind that one.
            yield Added(entry, snapshot.last + 1 if entry.token is None else 0)
        elif ticket in snapshot.shortened or (old_entry.token, old_entry.expires) != (entry.token, entry.expires):
            own, waits = snapshot.hints[ticket], entry.token is None
            asked = waits and entry is not old_entry  # else it was granted, or is only shortened
            enough = ticket not in snapshot.shortened and old_entry.expires - now > entry.ticket.terms.lease / 2
            if not (asked and own == hint and enough):
                yield Changed(entry, entry.order if waits else 0, hint if asked else own)


def name_differs(snapshot: QueueSnapshot, after: Queue, now: float) -> bool:
    """Return whether the name's row must be written: fence or lock delay changed, or its last use is long ago."""
    if snapshot.row is None:
        return True
    _, fence, blocked_until, used = snapshot.row
    return (fence, blocked_until) != (after.fence, ns(after.blocked_until)) or used + USED_TO_WITHIN < ns(now)


def entry_of(row: EntryRow) -> QueueEntry:
    """Read a row's columns of `COLUMNS`."""
    mode = LockMode(
        Kind(row[4]), exclusive=bool(row[5]), upgradeable=bool(row[6]), permits=row[7], limit=row[8], fair=bool(row[9])
    )
    terms = LeaseTerms(mode, Owner.parse(row[12]), lease=row[10] / 1e9, lock_delay=row[11] / 1e9, meta=row[13])
    return QueueEntry(Ticket(row[0], terms, row[14]), row[1], row[3] / 1e9, row[2])


def row_of(entry: QueueEntry, place: int, hint: str) -> tuple[int | str | None, ...]:
    """Return the columns of `COLUMNS`."""
    terms = entry.ticket.terms
    mode = terms.mode
    return (
        *(entry.ticket.id, place, entry.token, ns(entry.expires)),
        *(mode.kind.value, int(mode.exclusive), int(mode.upgradeable), mode.permits, mode.limit, int(mode.fair)),
        *(ns(terms.lease), ns(terms.lock_delay), str(terms.owner), terms.meta, entry.ticket.alongside, hint),
    )
