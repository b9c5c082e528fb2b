"""The tables: whether they are there and of the layout that this version knows, and what makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.stores._sql.dialect import LAYOUT
from leasehold.stores._sql.transport import Outcome, Refused

MAKE = "make them, once for each database, with: leasehold init URL (or let your migrations run what --print prints)"


class Prepared(Protocol):
    """An opener whose store needs tables."""

    def script(self) -> str:
        """Return the SQL that makes the tables, as a person may run it. Running it twice does no harm."""
        ...

    async def prepare(self, runtime: Runtime) -> bool:
        """Make the tables; return whether any was missing.

        Raises:
            StoreUnavailable: it could not be done.
            Unsupported: they are there, of a layout that this version does not know.

        """
        ...


def missing(where: str) -> Refused:
    """Make the error for a database without the tables."""
    return Refused(f"the database at {where} has no tables of leasehold; {MAKE}", outcome=Outcome.LASTING)


def check(rows: Sequence[Sequence[Any]]) -> None:
    """Check the version in the second column of the first row.

    Raises:
        Unsupported: the tables are of another layout.
        Refused: there is no row: the table of versions is empty.

    """
    if not rows:
        raise Refused(f"the table leasehold_meta has no row; {MAKE}", outcome=Outcome.LASTING)
    check_version(rows[0][1])


def check_version(version: int) -> None:
    """Check the version of the tables."""
    if version > LAYOUT:
        raise Unsupported(
            f"the tables have layout {version}, made by a newer leasehold; this one knows {LAYOUT}: upgrade it"
        )
    if version < LAYOUT:
        raise Unsupported(
            f"the tables have layout {version}, and this leasehold needs {LAYOUT}; run: leasehold init URL"
        )


def split(script: str) -> list[str]:
    """Return the statements of a script of ours, in which no text has a semicolon at a line's end."""
    lines = [line.partition("--")[0] for line in script.splitlines()]
    return [one.strip() for one in "\n".join(lines).split(";") if one.strip()]
