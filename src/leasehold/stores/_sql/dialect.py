"""The statements of lease rows in one server's dialect: texts only. The arguments of each are documented here.

Times are nanoseconds since 1970 by the server's clock. ``CLOCK`` below is that clock when the statement runs, not when
its transaction began: a transaction may have waited for a lock in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold.stores._sql.transport import Statement

LAYOUT = 1
"""Version of the tables, stored in ``leasehold_meta.version``."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Placeholders are in the order in which the arguments are listed. ``ENTRY`` means `queue_snapshot.COLUMNS`.

    Attributes:
        lock_name: (space, name) → id, fence, blocked_until, used; waits for the lock of the row, and keeps it to the
            end of the transaction.
        front: (space, name, count) → CLOCK, meta's version, meta's fence, ENTRY: the first ``count`` entries in order
            of place, so holders first. Without entries it returns one row with nulls for ENTRY, without meta none.
        entries: (space, name, window) → CLOCK, meta's version, meta's fence, ENTRY: all holders and the first
            ``window`` waiters in order of place. Without entries and without meta as ``front``.
        edges: (space, name, ticket) → ENTRY: the last waiter, the entry of the ticket, and all with an ``alongside``.
        add_name: (space, name); adds a name with meta's fence and the current time, unless it exists.
        set_name: (fence, blocked_until, used, id).
        add_entry: (id of the name, ENTRY).
        set_entry: (place, token, expires, hint, ticket, id of the name).
        drop_entry: (ticket, id of the name).
        lock_names: (space, names) → id, name; locks the unlocked ones and skips the others.
        renew: (ids of names, tickets): sets the expiry of each unexpired entry to CLOCK + its lease.
        results: (ids of names, tickets) → ticket, token or null; of unexpired entries.
        entry_states: (tickets) → CLOCK, ticket, token or null, expiry, lease, number of waiters ahead, earliest expiry
            of the holders or null, fence of the name; of tickets with an entry. Locks nothing.
        names: (space, from, below, now) → id, name, fence, blocked_until, ENTRY: all entries of the names in use within
            bounds.
        clock: () → CLOCK, meta's version, meta's fence.
        lock_cell: (space, name) → value or null, version, fence, expires, CLOCK; locks the row.
        read_cell: the same without a lock.
        add_cell: (space, name): adds an empty, expired cell, unless it exists.
        set_cell: (value, version, fence, expires, ttl, space, name).
        notify: (channel, message); None if the server sends no messages.
        listening: (channels) → those with a listener, as far as the server knows; None if it cannot know.
        last_name: () → the highest id of a name, 0 without names.
        some_names: (used before, blocked_until before, ids above, limit) → id, 1 if it is idle, in order of id.
        lock_idle: (id, used before, blocked_until before) → fence; locks the row, or returns none if it is locked.
        unexpired: (id) → 1 if the name has an unexpired entry.
        forget_name: statements that drop the name with this id and its entries, and raise meta's fence to this one.
        drop_cells: (limit): drops so many expired cells and skips locked ones.

    """

    lock_name: str
    front: str
    entries: str
    edges: str
    add_name: str
    set_name: str
    add_entry: str
    set_entry: str
    drop_entry: str
    lock_names: Callable[[bytes, Sequence[bytes]], Statement]
    renew: Callable[[Sequence[int], Sequence[str]], Statement]
    results: Callable[[Sequence[int], Sequence[str]], Statement]
    entry_states: Callable[[Sequence[str]], Statement]
    names: str
    clock: str
    lock_cell: str
    read_cell: str
    add_cell: str
    set_cell: str
    notify: str | None
    last_name: str
    some_names: str
    lock_idle: str
    unexpired: str
    forget_name: Callable[[int, int], Sequence[Statement]]
    drop_cells: str
    listening: Callable[[Sequence[str]], Statement] | None = None
