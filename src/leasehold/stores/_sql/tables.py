"""The tables of lease rows: the check of their layout, and on request their creation, or their upgrade from layout 1.

Both are safe when several processes do them at the same time, and may be repeated after an interruption.

The upgrade is done beside clients that use the tables. First it makes their layout 0, which every version refuses: a
step reads the layout under the lock of its name, so a step that begins later than that changes nothing. Then it adds
columns. Last, in one transaction, it locks all names, so it waits for the steps that began earlier; counts the entries;
and sets the new layout. Holders of before keep their locks, and renew them once their program is upgraded, too.
"""

from __future__ import annotations

from functools import partial

from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.dialect import LAYOUT, Dialect
from leasehold.stores._sql.transport import Outcome, Refused, SQLTransport, Statement, Transaction

VERSION = Statement("SELECT version FROM leasehold_meta")

BEFORE, UPGRADING = 1, 0
"""The layout that can be upgraded, and the one that the tables have meanwhile."""

STOP_CLIENTS = f"UPDATE leasehold_meta SET version = {UPGRADING} WHERE version = {BEFORE}"

FINISH_UPGRADE = (
    "UPDATE leasehold_name SET used = used",
    "UPDATE leasehold_name SET entries = (SELECT COUNT(*) FROM leasehold_entry WHERE name_id = id)",
    f"UPDATE leasehold_meta SET version = {LAYOUT} WHERE version = {UPGRADING}",
)
"""Statements of one transaction, each a round trip of its own: the second sees what the first has waited for."""

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
    """Create or upgrade the tables; return whether they were missing or of layout 1."""
    version: int | None = None
    try:
        version = await transport.transact(_version, within=CHECK_WITHIN)
    except StoreUnavailable as error:
        if not error.lasting:
            raise
    if version in (BEFORE, UPGRADING):
        await _upgrade(transport, dialect)
    elif version is None:
        await transport.transact(partial(_create, dialect=dialect), within=CREATE_WITHIN)
    await transport.transact(_check, within=CHECK_WITHIN)
    return version != LAYOUT


async def _create(tx: Transaction, dialect: Dialect) -> None:
    if dialect.alone:
        await tx.ask(*dialect.alone)
    await tx.commit(*map(Statement, split(dialect.script("schema"))))


async def _upgrade(transport: SQLTransport, dialect: Dialect) -> None:
    for text in (STOP_CLIENTS, *split(dialect.script("upgrade"))):
        try:
            await transport.transact(partial(_run, statement=Statement(text)), within=CREATE_WITHIN)
        except Refused as error:
            if error.code not in dialect.already_there:
                raise
    await transport.transact(_finish_upgrade, within=CREATE_WITHIN)


async def _run(tx: Transaction, statement: Statement) -> None:
    await tx.commit(statement)


async def _finish_upgrade(tx: Transaction) -> None:
    (found,) = await tx.ask(Statement("SELECT version FROM leasehold_meta FOR UPDATE"))
    if found[0][0] == UPGRADING:  # else another process has done it
        for text in FINISH_UPGRADE[:-1]:
            await tx.ask(Statement(text))
        await tx.commit(Statement(FINISH_UPGRADE[-1]))


async def _version(tx: Transaction) -> int | None:
    (found,) = await tx.ask(VERSION)
    return found[0][0] if found else None


async def _check(tx: Transaction) -> None:
    check(await _version(tx))
