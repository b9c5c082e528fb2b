"""Cells: a value with a version and a fence, and the rule for its changes. Pure."""

from __future__ import annotations

from dataclasses import replace

from leasehold._model import CELL_LIMIT, Cell, Change

EMPTY = Cell(None, 0)


def apply_change(cell: Cell, change: Change) -> Cell:
    """Return the cell after ``change``; unchanged, with ``changed`` False, if a condition does not hold.

    A fenced change is made only if its token is not below the highest one that ever wrote here. So late writes of an
    older holder are refused, whatever the clocks did (Gray and Cheriton 1989; Kleppmann 2016 calls it a fencing token).
    """
    if change.value is None:
        return replace(cell, changed=False)
    check_size(change)
    stale = change.fence is not None and change.fence < cell.fence
    moved = change.if_version is not None and change.if_version != cell.version
    if stale or moved:
        return replace(cell, changed=False)
    return Cell(change.value, cell.version + 1, max(cell.fence, change.fence or 0), changed=True)


def check_size(change: Change) -> None:
    """Refuse a value that is too large, before anything is sent."""
    if change.value is not None and len(change.value) > CELL_LIMIT:
        raise ValueError(f"a cell holds at most {CELL_LIMIT} bytes, not {len(change.value)}; store a reference instead")


BIGINT = 2**63 - 1
"""The largest number that SQL's BIGINT and SQLite's INTEGER can keep."""


def check_fence(change: Change, most: int = BIGINT) -> None:
    """Refuse a fence that the store cannot keep, before anything is sent."""
    if change.value is not None and change.fence is not None and change.fence > most:
        raise ValueError(f"the fence {change.fence} is too large: this store keeps numbers up to {most}")
