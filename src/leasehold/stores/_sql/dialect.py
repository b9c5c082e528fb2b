"""The statements of lease rows: texts, and what each takes and returns. `Dialect` has those of one server.

Times are nanoseconds since 1970 by the server's clock. ``CLOCK`` below is that clock when the statement runs, not when
its transaction began: a transaction may have waited for a lock in between. ``ENTRY`` means `queue_snapshot.COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.row_holder import HOLDER
from leasehold.stores._sql.transport import Statement

LAYOUT = 2
"""Version of the tables, stored in ``leasehold_meta.version``."""

REFUSED_CHARACTERS = 64 * 23
"""Characters of the last 64 tickets of a name whose late claims are refused, each with a space."""

ID = "(SELECT id FROM leasehold_name WHERE space = $1 AND name = $2)"


def places(start: int, count: int) -> str:
    """Return the placeholders from number ``start`` on."""
    return ", ".join(f"${number}" for number in range(start, start + count))


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The fields differ from server to server. All else is the same but for the clock and clauses of the dialect.

    Arguments are listed in the order of their placeholders.

    Attributes:
        now: CLOCK.
        front: (space, name, count) → CLOCK, meta's version, meta's fence, ENTRY: the first ``count`` entries in order
            of place, so holders first. Without entries it returns one row with nulls for ENTRY, without meta none.
        entries: (space, name, window) → CLOCK, meta's version, meta's fence, ENTRY: all holders and the first
            ``window`` waiters in order of place. Without entries and without meta as ``front``.
        edges: (space, name, ticket) → ENTRY: the last waiter, the entry of the ticket, and all with an ``alongside``.
        add_name: (space, name); adds a name with meta's fence and the current time, unless it exists.
        add_cell: (space, name): adds an empty, expired cell, unless it exists.
        drop_cells: (limit): drops so many expired cells and skips locked ones.
        its_row: (space, name): what finds the row of a name in a statement that changes it. Where the server can, it
            also locks it, or finds nothing if it is locked.
        returning: a clause that lets a statement that changed a row return 1, where it must say so.
        names_index: a clause for the index by which names are found.
        names_order: a clause for the order in which names are locked.
        by_key: a clause for the primary key, by which rows are renewed.
        notify: (channel, message); None if the server sends no messages.
        listening: (channels) → those with a listener, as far as the server knows; None if it cannot know.
        acquire_free: (space, name, ticket, fair, lease, delay, owner, meta): acquires a free name, see `_sql.plain`.
            Its number (see `Transaction.alone`) is the token.
        refuse: (ticket, space, name): lets ``acquire_free`` refuse the ticket from now on.
        script: returns the SQL that creates the tables, as people may run it; or ``upgrade``, that adds what layout 1
            has not.
        already_there: codes of the error that a column is there which is to be added.
        creator_lock: lock out other processes that create the tables at the same time: all would find them missing.
        lock_name: (space, name) → id, fence, blocked_until, used, entries, HOLDER; waits for the lock of the row, and
            keeps it to the end of the transaction.
    """

    now: str
    front: str
    entries: str
    edges: str
    add_name: str
    add_cell: str
    drop_cells: str
    script: Callable[..., str]
    acquire_free: str
    refuse: str
    already_there: Sequence[str] = ()
    creator_lock: Sequence[Statement] = ()
    its_row: str = "space = $1 AND name = $2"
    returning: str = ""
    names_index: str = ""
    names_order: str = ""
    by_key: str = ""
    notify: str | None = None
    listening: Callable[[Sequence[str]], Statement] | None = None
    lock_name: str = f"""
        SELECT id, fence, blocked_until, used, entries, {HOLDER} FROM leasehold_name
        WHERE space = $1 AND name = $2 FOR UPDATE
    """

    # --- the queue ---------------------------------------------------------------------------------------------

    set_name: ClassVar = """
        UPDATE leasehold_name SET fence = $1, blocked_until = $2, used = $3, entries = $4, holder = $5,
        holder_token = $6, holder_expires = $7, holder_fair = $8, holder_lease = $9, holder_delay = $10,
        holder_owner = $11, holder_meta = $12 WHERE id = $13
    """
    add_entry: ClassVar = f"INSERT INTO leasehold_entry (name_id, {COLUMNS}) VALUES ({places(1, 17)})"
    set_entry: ClassVar = """
        UPDATE leasehold_entry SET place = $1, token = $2, expires = $3, hint = $4 WHERE ticket = $5 AND name_id = $6
    """
    drop_entry: ClassVar = "DELETE FROM leasehold_entry WHERE ticket = $1 AND name_id = $2"
    names: ClassVar = f"""
        SELECT id, name, fence, blocked_until, used, {COLUMNS}, {HOLDER} FROM leasehold_name
        LEFT JOIN leasehold_entry ON name_id = id
        WHERE space = $1 AND name >= $2 AND name < $3 AND (blocked_until > $4 OR holder <> '' OR ticket IS NOT NULL)
        ORDER BY name, place
    """
    """(space, from, below, now) → id, name, fence, blocked_until, used, ENTRY, HOLDER: all entries of names in use
    within bounds."""

    @cached_property
    def release_held(self) -> str:
        """(space, name, ticket): releases a name without waiters, see `_sql.plain`.

        Under a holder without others no lock delay runs. One that is over goes: it may end after ``used``, if the clock
        was set back, and would seem to run.
        """
        return f"""
            UPDATE leasehold_name SET holder = '', used = {self.now}, blocked_until = 0
            WHERE {self.its_row} AND holder = $3 AND entries = 0
            AND (SELECT meta.version FROM leasehold_meta meta) = {LAYOUT} {self.returning}
        """

    @cached_property
    def clock(self) -> str:
        """() → CLOCK, meta's version, meta's fence."""
        return f"SELECT {self.now}, version, fence FROM leasehold_meta"

    def lock_names(self, space: bytes, names: Sequence[bytes]) -> Statement:
        """→ id, name; locks the unlocked ones of these names and skips the others."""
        text = f"""
            SELECT id, name FROM leasehold_name {self.names_index}
            WHERE space = $1 AND name IN ({places(2, len(names))}) {self.names_order} FOR UPDATE SKIP LOCKED
        """
        return Statement(text, (space, *names))

    def renew(self, ids: Sequence[int], tickets: Sequence[str]) -> Sequence[Statement]:
        """Set the expiry of each of these tickets that has not expired at these names to CLOCK + its lease."""
        holders, entries = self._unexpired_of(ids, tickets)
        texts = (
            f"UPDATE leasehold_name {self.by_key} SET holder_expires = {self.now} + holder_lease WHERE {holders}",
            f"UPDATE leasehold_entry {self.by_key} SET expires = {self.now} + lease WHERE {entries}",
        )
        return [Statement(text, (*ids, *tickets)) for text in texts]

    def results(self, ids: Sequence[int], tickets: Sequence[str]) -> Statement:
        """→ ticket, token or null; of those that `renew` renews."""
        holders, entries = self._unexpired_of(ids, tickets)
        text = f"""
            SELECT holder, holder_token FROM leasehold_name {self.by_key} WHERE {holders}
            UNION ALL SELECT ticket, token FROM leasehold_entry {self.by_key} WHERE {entries}
        """
        return Statement(text, (*ids, *tickets))

    def _unexpired_of(self, ids: Sequence[int], tickets: Sequence[str]) -> tuple[str, str]:
        """Return the conditions for holders in rows of names, and for entries."""
        names, some = places(1, len(ids)), places(1 + len(ids), len(tickets))
        return (
            f"id IN ({names}) AND holder IN ({some}) AND holder_expires > {self.now}",
            f"name_id IN ({names}) AND ticket IN ({some}) AND expires > {self.now}",
        )

    def entry_states(self, tickets: Sequence[str]) -> Statement:
        """→ CLOCK, ticket, token or null, expiry, lease, waiters ahead, first expiry of the holders or null, fence.

        Of those of the tickets that have an entry. It locks nothing. Beside a holder in the name's row others may hold
        the name, alongside it; the expiry of these is left out.
        """
        text = f"""
            SELECT {self.now}, mine.ticket, mine.token, mine.expires, mine.lease,
            mine.place - (SELECT MIN(place) FROM leasehold_entry WHERE name_id = mine.name_id AND place > 0),
            CASE WHEN holder <> '' THEN holder_expires
            ELSE (SELECT MIN(expires) FROM leasehold_entry WHERE name_id = mine.name_id AND place = 0) END, fence
            FROM leasehold_entry mine JOIN leasehold_name ON id = mine.name_id
            WHERE mine.ticket IN ({places(1, len(tickets))})
        """
        return Statement(text, tuple(tickets))

    # --- cells -------------------------------------------------------------------------------------------------

    set_cell: ClassVar = """
        UPDATE leasehold_cell SET value = $1, version = $2, fence = $3, expires = $4, ttl = $5
        WHERE space = $6 AND name = $7
    """

    @cached_property
    def read_cell(self) -> str:
        """(space, name) → value or null, version, fence, expires, CLOCK."""
        return f"SELECT value, version, fence, expires, {self.now} FROM leasehold_cell WHERE space = $1 AND name = $2"

    @cached_property
    def lock_cell(self) -> str:
        """The same, and locks the row."""
        return f"{self.read_cell} FOR UPDATE"

    # --- the sweep ---------------------------------------------------------------------------------------------

    last_name: ClassVar = "SELECT COALESCE(MAX(id), 0) FROM leasehold_name"
    some_names: ClassVar = """
        SELECT id, CASE WHEN used < $1 AND blocked_until < $2 THEN 1 ELSE 0 END FROM leasehold_name
        WHERE id > $3 ORDER BY id LIMIT $4
    """
    """→ id, 1 if it is idle, in order of id."""
    lock_idle: ClassVar = """
        SELECT fence FROM leasehold_name WHERE id = $1 AND used < $2 AND blocked_until < $3 FOR UPDATE SKIP LOCKED
    """

    @cached_property
    def unexpired(self) -> str:
        """(id) → 1 if the name has an entry or a holder whose lease, or the lock delay after it, has not expired."""
        return f"""
            SELECT 1 FROM leasehold_name WHERE id = $1 AND holder <> '' AND holder_expires + holder_delay > {self.now}
            UNION ALL SELECT 1 FROM leasehold_entry WHERE name_id = $1 AND expires + delay > {self.now} LIMIT 1
        """

    def forget_name(self, name_id: int, fence: int) -> Sequence[Statement]:
        """Drop a name and its entries, and raise meta's fence to this one."""
        return (
            Statement("DELETE FROM leasehold_entry WHERE name_id = $1", (name_id,)),
            Statement("DELETE FROM leasehold_name WHERE id = $1", (name_id,)),
            Statement("UPDATE leasehold_meta SET fence = GREATEST(fence, $1)", (fence,)),
        )
