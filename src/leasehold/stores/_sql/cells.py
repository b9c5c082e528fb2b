"""Cells on a database server: values with a version, each read or changed in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from leasehold._model import Cell, Change
from leasehold.stores._common.cells import EMPTY, apply_change
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import Key, ns
from leasehold.stores._sql.transport import Row, Statement, Transaction

T = TypeVar("T")

Work = Callable[[Transaction], Coroutine[Any, Any, T]]
"""What runs in a transaction."""


def reading(dialect: Dialect, key: Key) -> Work[Cell]:
    """Return what reads a cell."""

    async def work(tx: Transaction) -> Cell:
        (found,) = await tx.ask(Statement(dialect.read_cell, key))
        return _cell_of(found[0]) if found else EMPTY

    return work


def changing(dialect: Dialect, key: Key, change: Change) -> Work[Cell | None]:
    """Return what changes a cell; it returns None if the cell has no row yet."""

    async def work(tx: Transaction) -> Cell | None:
        (found,) = await tx.ask(Statement(dialect.lock_cell, key))
        if not found:
            return None
        after = apply_change(_cell_of(found[0]), change)
        if after.changed:
            ttl = ns(change.ttl)
            args = (after.value, after.version, after.fence, found[0][4] + ttl, ttl, *key)
            await tx.commit(Statement(dialect.set_cell, args))
        return after

    return work


def adding(dialect: Dialect, key: Key) -> Work[None]:
    """Return what adds the row of a cell, unless there is one."""

    async def work(tx: Transaction) -> None:
        await tx.commit(Statement(dialect.add_cell, key))

    return work


def _cell_of(row: Row) -> Cell:
    """Read a row of `Dialect.lock_cell`; an expired cell is empty."""
    value, version, fence, expires, now = row
    return EMPTY if value is None or expires <= now else Cell(bytes(value), version, fence)
