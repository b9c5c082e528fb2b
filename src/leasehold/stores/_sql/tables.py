"""The tables of lease rows: the check of their layout, and their creation on request.

Creation is safe when several processes do it at the same time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.dialect import LAYOUT, Dialect
from leasehold.stores._sql.transport import Outcome, Refused, SQLTransport, Statement, Transaction

VERSION = Statement("SELECT version FROM leasehold_meta")

CHECK_WITHIN = 5.0
"""Seconds that reading the layout of the tables may take."""

CREATE_WITHIN = 30.0
"""Seconds that creating the tables may take."""

CREATE = "create them once for each database with: leasehold init URL (or let your migrations run what --print prints)"


def check(version: int | None) -> None:
    """Check the version in ``leasehold_meta``; None if that has no row.

    Raises:
        Unsupported: the tables have another layout.
        Refused: the table of versions is empty.
    """
    if version is None:
        raise Refused(f"the table leasehold_meta has no row; {CREATE}", outcome=Outcome.LASTING)
    if version > LAYOUT:
        raise Unsupported(
            f"the tables have layout {version}, made by a newer leasehold; this one knows {LAYOUT}: upgrade it"
        )
    if version < LAYOUT:
        raise Unsupported(
            f"the tables have layout {version}, and this leasehold needs {LAYOUT}; run: leasehold init URL"
        )


def split(script: str) -> list[str]:
    """Split one of our scripts into statements: an empty line follows each, and none has dashes inside a text."""
    lines = [line.partition("--")[0].rstrip() for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [one.strip().removesuffix(";") for one in "\n".join(lines).split(";\n\n") if one.strip()]


async def prepare(transport: SQLTransport, dialect: Dialect) -> bool:
    """Create the tables, and the functions where that is allowed; return whether any of them was missing."""
    created = await _prepare_tables(transport, dialect)
    with suppress(Refused):  # without the right to create them, or by another client at the same time
        created |= await transport.transact(partial(_add_functions, dialect=dialect), within=CREATE_WITHIN)
    return created


async def _add_functions(tx: Transaction, dialect: Dialect) -> bool:
    *_, found = await tx.ask(*dialect.alone, Statement(dialect.functions_there))
    if found[0][0]:
        return False
    await tx.commit(*dialect.functions_where, *map(Statement, split(dialect.script("functions"))))
    return True


async def _prepare_tables(transport: SQLTransport, dialect: Dialect) -> bool:

    async def create(tx: Transaction) -> None:
        if dialect.alone:
            await tx.ask(*dialect.alone)
        await tx.commit(*(Statement(text) for text in split(dialect.script("schema"))))

    try:
        await transport.transact(_check, within=CHECK_WITHIN)
    except StoreUnavailable as error:
        if not error.lasting:
            raise
    else:
        return False
    await transport.transact(create, within=CREATE_WITHIN)
    await transport.transact(_check, within=CHECK_WITHIN)
    return True


async def _check(tx: Transaction) -> None:
    (found,) = await tx.ask(VERSION)
    check(found[0][0] if found else None)
