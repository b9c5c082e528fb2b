"""What models of SQL servers share of the functions of the plain case (see `leasehold.stores._sql.plain`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from leasehold.stores._sql.plain import ACQUIRE, refusal
from leasehold.stores._sql.transport import Value
from models.sql.rows import Locks, Tables

S = TypeVar("S")

USED_WITHIN = 600 * 10**9

NAME = "SELECT id, fence, blocked_until, used FROM leasehold_name WHERE space = ? AND name = ?"
ENTRIES = "SELECT ticket, place FROM leasehold_entry WHERE name_id = ?"
ENTRY = "INSERT INTO leasehold_entry VALUES (?, 0, ?, ?, ?, 'mutex', 1, 0, 1, 1, ?, ?, ?, ?, ?, '', ?)"


def call(tables: Tables, locks: Locks[S], session: S, function: str, args: Sequence[Value]) -> tuple[int, list[S]]:
    """Carry out a function; return its answer, and who waited for the row and has it now."""
    found = tables.db.execute(NAME, args[:2]).fetchone()
    if found is None or not locks.take(found[0], session):
        return 0, []
    answer = (_acquire if function == ACQUIRE else _release)(tables, found, args)
    return answer, locks.let_go_of(found[0], session)


def _acquire(tables: Tables, found: tuple[int, int, int, int], args: Sequence[Value]) -> int:
    (space, name, ticket, fair, lease, delay, owner, meta, hint), now, db = args, tables.clock, tables.db
    here, fence, blocked_until, _ = found
    assert isinstance(space, bytes)
    assert isinstance(name, bytes)
    assert isinstance(ticket, str)
    assert isinstance(lease, int)
    refused = db.execute("SELECT 1 FROM leasehold_cell WHERE space = ? AND name = ?", refusal((space, name), ticket))
    if blocked_until > now or db.execute(ENTRIES, (here,)).fetchone() or refused.fetchone():
        return 0
    (forgotten,) = db.execute("SELECT fence FROM leasehold_meta").fetchone()
    token: int = max(fence, forgotten, now // 1000 - 1) + 1
    db.execute("UPDATE leasehold_name SET fence = ?, used = ? WHERE id = ?", (token, now, here))
    db.execute(ENTRY, (here, ticket, token, now + lease, fair, lease, delay, owner, meta, hint))
    return token


def _release(tables: Tables, found: tuple[int, int, int, int], args: Sequence[Value]) -> int:
    here, _, _, used = found
    if used + USED_WITHIN < tables.clock or tables.db.execute(ENTRIES, (here,)).fetchall() != [(args[2], 0)]:
        return 0
    tables.db.execute("DELETE FROM leasehold_entry WHERE name_id = ?", (here,))
    return 1
