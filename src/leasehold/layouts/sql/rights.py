"""Which rights to another library's table the user lacks: asked before the first claim, so that no release fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasehold.layouts.sql.format import Format
from leasehold.stores._sql.transport import Outcome, Refused, SQLTransport, Statement

DENIED = frozenset({"42501", "1142", "1143", "1044"})
"""The error codes of PostgreSQL and MySQL for a missing right to a schema or a table, or a column of it."""


def tried(layout: Format) -> Mapping[str, Statement]:
    """Return for each right a statement that needs it alone, and changes nothing."""
    table, columns = layout.table, [layout.key, *layout.fixed, layout.holder, layout.since, layout.until]
    listed, nothing = ", ".join(columns), ", ".join("NULL" for _ in columns)
    unset = ", ".join(f"{one} = NULL" for one in columns[-3:])
    statements = {
        "SELECT": f"SELECT {listed} FROM {table} WHERE 1 = 0",
        "INSERT": f"INSERT INTO {table} ({listed}) SELECT {nothing} FROM (SELECT 1) AS nothing WHERE 1 = 0",
        "UPDATE": f"UPDATE {table} SET {unset} WHERE 1 = 0",
        "DELETE": f"DELETE FROM {table} WHERE 1 = 0",
    }
    return {right: Statement(text) for right, text in statements.items() if right != "DELETE" or not layout.keeps_rows}


async def check(transport: SQLTransport, layout: Format, left: Callable[[], float]) -> bool:
    """Raise an error that names the missing rights, if there are any; return whether that is known.

    Other errors are left to the claim. ``left`` returns how many seconds are left.

    Raises:
        Refused: the user lacks rights.
        StoreUnavailable: no answer.
    """
    trials = tried(layout)
    try:
        await transport.transact(lambda tx: tx.ask(*layout.dialect.first, *trials.values()), within=left())
    except Refused as error:
        if error.code not in DENIED:
            return False
    else:
        return True
    missing = [right for right, statement in trials.items() if await _denied(transport, statement, left())]
    if not missing:
        return False  # they were granted just now
    text = f"its user lacks the right to {', '.join(missing)} on {layout.table}; grant what docs/interop.md lists"
    raise Refused(f"the database at {transport.where}: {text}", outcome=Outcome.LASTING)


async def _denied(transport: SQLTransport, statement: Statement, within: float) -> bool:
    try:
        await transport.transact(lambda tx: tx.ask(statement), within=within)
    except Refused as error:
        return error.code in DENIED
    return False
