"""Checks that the tables exist in the layout of this version, and splits the script that creates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.stores._sql.dialect import LAYOUT
from leasehold.stores._sql.transport import Outcome, Refused

CREATE = "create them once for each database with: leasehold init URL (or let your migrations run what --print prints)"


class Prepared(Protocol):
    """The opener of a store that needs tables."""

    def script(self) -> str:
        """Return the SQL that creates the tables. Running it twice is harmless."""
        ...

    async def prepare(self, runtime: Runtime) -> bool:
        """Create the tables; return whether any was missing.

        Raises:
            StoreUnavailable: they could not be created.
            Unsupported: they exist in a layout that this version does not know.

        """
        ...


def missing(where: str) -> Refused:
    """Make the error for a database without the tables."""
    return Refused(f"the database at {where} has no tables of leasehold; {CREATE}", outcome=Outcome.LASTING)


def check(rows: Sequence[Sequence[Any]]) -> None:
    """Check the version in the second column of the first row.

    Raises:
        Unsupported: the tables have another layout.
        Refused: the table of versions is empty.

    """
    if not rows:
        raise Refused(f"the table leasehold_meta has no row; {CREATE}", outcome=Outcome.LASTING)
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
    """Split one of our scripts into statements; none has a semicolon or dashes inside a text."""
    lines = [line.partition("--")[0] for line in script.splitlines()]
    return [one.strip() for one in "\n".join(lines).split(";") if one.strip()]
