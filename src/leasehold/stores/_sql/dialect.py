"""The statements of lease rows, as one kind of server spells them. Texts only; what goes into each is said here.

Times are nanoseconds since 1970 by the server's clock. ``CLOCK`` below is that clock at the moment at which a statement
runs, never at which its transaction began: a transaction may have waited for a lock in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold.stores._sql.transport import Statement

LAYOUT = 1
"""Of the tables; it stands in ``leasehold_meta.version``."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Placeholders stand in the order in which the arguments are listed. ``ENTRY`` is `snapshots.COLUMNS`.

    Attributes:
        lock_name: (space, name) → id, fence, blocked_until, used; locks the row to the end of the transaction, waiting
            for it.
        front: (space, name, count) → CLOCK, meta's version, meta's fence, SEAT: the first ``count`` entries in order of
            place, so holders first; where there is no entry one row with nulls for SEAT, where there is no meta none.
        entries: (space, name, window) → CLOCK, meta's version, meta's fence, SEAT: all holders and the first ``window``
            waiters in order of place; where there is no entry one row with nulls for SEAT, where there is no meta none.
        edges: (space, name, ticket) → SEAT: the last waiter, the entry of the ticket, and all that have a
            ``alongside``.
        add_name: (space, name); with meta's fence and now; does nothing if it is there.
        set_name: (fence, blocked_until, used, id).
        add_entry: (id of the name, SEAT).
        set_entry: (place, token, expires, hint, ticket, id of the name).
        drop_entry: (ticket, id of the name).
        lock_names: (space, names) → id, name, in order of id; locks those that nobody has locked, and passes the
            others over.
        renew: (ids of names, tickets): sets the expiry of each entry that has not expired to CLOCK + its lease.
        standings: (ids of names, tickets) → ticket, token or null; only of entries that have not expired.
        entry_states: (tickets) → CLOCK, ticket, token or null, expiry, lease, how many wait in front, the least expiry of the
            holders or null, fence of the name; of those that have an entry. Locks nothing.
        names: (space, from, below, now) → id, name, fence, blocked_until, SEAT: all entries of the names in use within
            bounds.
        clock: () → CLOCK, meta's version, meta's fence.
        lock_cell: (space, name) → value or null, version, fence, expires, CLOCK; locks the row.
        read_cell: the same, and locks nothing.
        add_cell: (space, name): an empty one that has expired; does nothing if it is there.
        set_cell: (value, version, fence, expires, ttl, space, name).
        notify: (channel, message); None where there are no messages.
        listening: (channels) → those that somebody listens on, as far as the server can tell; None where it cannot.
        last_name: () → the highest id of a name, 0 if there is none.
        some_names: (before when used, before when blocked_until, id above which, limit) → id, 1 if it is idle, in order
            of id.
        lock_idle: (id, before when used and blocked_until) → fence; locks the row, or none if somebody has it.
        unexpired: (id) → 1 if the name has an entry that has not expired.
        forget_name: statements that drop the name with this id, its entries, and raise meta's fence to this one.
        drop_cells: (limit): drops so many cells whose life is over, and passes over those that somebody has locked.

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
