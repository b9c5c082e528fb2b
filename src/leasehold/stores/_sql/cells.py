"""Cells on a database server: values with a version, each read or changed in one transaction."""

from __future__ import annotations

from leasehold._model import Cell, Change
from leasehold.stores._common.cells import EMPTY, apply_change
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import Key, ns
from leasehold.stores._sql.transport import Row, Statement, Transaction


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
