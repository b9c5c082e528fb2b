"""Statements of lease rows that are the same in all dialects (see `Dialect` for what each does).

``now`` is the server's clock in its dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.transport import Statement

ID = "(SELECT id FROM leasehold_name WHERE space = $1 AND name = $2)"

LOCK_NAME = "SELECT id, fence, blocked_until, used FROM leasehold_name WHERE space = $1 AND name = $2 FOR UPDATE"

SET_NAME = "UPDATE leasehold_name SET fence = $1, blocked_until = $2, used = $3 WHERE id = $4"

SET_ENTRY = """
    UPDATE leasehold_entry SET place = $1, token = $2, expires = $3, hint = $4 WHERE ticket = $5 AND name_id = $6
"""

DROP_ENTRY = "DELETE FROM leasehold_entry WHERE ticket = $1 AND name_id = $2"

NAMES = f"""
    SELECT id, name, fence, blocked_until, {COLUMNS} FROM leasehold_name LEFT JOIN leasehold_entry ON name_id = id
    WHERE space = $1 AND name >= $2 AND name < $3 AND (blocked_until > $4 OR ticket IS NOT NULL) ORDER BY name, place
"""

SET_CELL = """
    UPDATE leasehold_cell SET value = $1, version = $2, fence = $3, expires = $4, ttl = $5
    WHERE space = $6 AND name = $7
"""

LAST_NAME = "SELECT COALESCE(MAX(id), 0) FROM leasehold_name"

SOME_NAMES = """
    SELECT id, CASE WHEN used < $1 AND blocked_until < $2 THEN 1 ELSE 0 END FROM leasehold_name
    WHERE id > $3 ORDER BY id LIMIT $4
"""

LOCK_IDLE = """
    SELECT fence FROM leasehold_name WHERE id = $1 AND used < $2 AND blocked_until < $3 FOR UPDATE SKIP LOCKED
"""


def places(start: int, count: int) -> str:
    """Return the placeholders from number ``start`` on."""
    return ", ".join(f"${number}" for number in range(start, start + count))


ADD_ENTRY = f"INSERT INTO leasehold_entry (name_id, {COLUMNS}) VALUES ({places(1, 17)})"


def clock(now: str) -> str:
    """Return what reads the clock and ``leasehold_meta``."""
    return f"SELECT {now}, version, fence FROM leasehold_meta"


def read_cell(now: str) -> str:
    """Return what reads a cell without a lock."""
    return f"SELECT value, version, fence, expires, {now} FROM leasehold_cell WHERE space = $1 AND name = $2"


def lock_cell(now: str) -> str:
    """Return what reads and locks a cell."""
    return f"{read_cell(now)} FOR UPDATE"


def unexpired(now: str) -> str:
    """Return what finds out whether a name has an unexpired entry."""
    return f"SELECT 1 FROM leasehold_entry WHERE name_id = $1 AND expires > {now} LIMIT 1"


def entry_states(now: str, tickets: Sequence[str]) -> Statement:
    """Return what reads the state of waiting tickets."""
    text = f"""
        SELECT {now}, mine.ticket, mine.token, mine.expires, mine.lease,
        mine.place - (SELECT MIN(place) FROM leasehold_entry WHERE name_id = mine.name_id AND place > 0),
        (SELECT MIN(expires) FROM leasehold_entry WHERE name_id = mine.name_id AND place = 0), fence
        FROM leasehold_entry mine JOIN leasehold_name ON id = mine.name_id
        WHERE mine.ticket IN ({places(1, len(tickets))})
    """
    return Statement(text, tuple(tickets))


def forget_name(name_id: int, fence: int) -> Sequence[Statement]:
    """Return what drops a name and its entries."""
    return (
        Statement("DELETE FROM leasehold_entry WHERE name_id = $1", (name_id,)),
        Statement("DELETE FROM leasehold_name WHERE id = $1", (name_id,)),
        Statement("UPDATE leasehold_meta SET fence = GREATEST(fence, $1)", (fence,)),
    )


def lock_names(space: bytes, names: Sequence[bytes], *, index: str = "", order: str = "") -> Statement:
    """Return what locks these names and passes over locked ones; ``index`` and ``order`` are clauses of a dialect."""
    text = f"""
        SELECT id, name FROM leasehold_name {index} WHERE space = $1 AND name IN ({places(2, len(names))})
        {order} FOR UPDATE SKIP LOCKED
    """
    return Statement(text, (space, *names))


def renew(now: str, ids: Sequence[int], tickets: Sequence[str], *, index: str = "") -> Statement:
    """Return what renews the unexpired entries of these tickets at these names."""
    text = f"UPDATE leasehold_entry {index} SET expires = {now} + lease WHERE {_unexpired_of(now, ids, tickets)}"
    return Statement(text, (*ids, *tickets))


def results(now: str, ids: Sequence[int], tickets: Sequence[str], *, index: str = "") -> Statement:
    """Return what reads the tokens of the unexpired entries of these tickets at these names."""
    text = f"SELECT ticket, token FROM leasehold_entry {index} WHERE {_unexpired_of(now, ids, tickets)}"
    return Statement(text, (*ids, *tickets))


def _unexpired_of(now: str, ids: Sequence[int], tickets: Sequence[str]) -> str:
    entries = f"name_id IN ({places(1, len(ids))}) AND ticket IN ({places(1 + len(ids), len(tickets))})"
    return f"{entries} AND expires > {now}"


def dialect(
    now: str,
    *,
    front: str,
    entries: str,
    edges: str,
    add_name: str,
    add_cell: str,
    drop_cells: str,
    names_index: str = "",
    names_order: str = "",
    entries_index: str = "",
    notify: str | None = None,
    listening: Callable[[Sequence[str]], Statement] | None = None,
) -> Dialect:
    """Return the dialect of a server: its own statements, and those that differ by clock and index hints alone."""
    return Dialect(
        lock_name=LOCK_NAME,
        front=front,
        entries=entries,
        edges=edges,
        add_name=add_name,
        set_name=SET_NAME,
        add_entry=ADD_ENTRY,
        set_entry=SET_ENTRY,
        drop_entry=DROP_ENTRY,
        lock_names=partial(lock_names, index=names_index, order=names_order),
        renew=partial(renew, now, index=entries_index),
        results=partial(results, now, index=entries_index),
        entry_states=partial(entry_states, now),
        names=NAMES,
        clock=clock(now),
        lock_cell=lock_cell(now),
        read_cell=read_cell(now),
        add_cell=add_cell,
        set_cell=SET_CELL,
        notify=notify,
        listening=listening,
        last_name=LAST_NAME,
        some_names=SOME_NAMES,
        lock_idle=LOCK_IDLE,
        unexpired=unexpired(now),
        forget_name=forget_name,
        drop_cells=drop_cells,
    )
