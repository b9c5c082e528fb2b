"""The tables of lease rows: the check of their layout, and on request their creation, or their upgrade from layout 1.

Both are safe when several processes do them at the same time, and may be repeated after an interruption.

The upgrade runs while clients of the old version are at work:

1. It adds columns, which they do not notice. A user without the right to do that is refused here; nothing has changed.
2. It drops the functions that they may call, if there are any and the user has the right to.
3. It sets the layout to 0, which every version refuses. A step reads the layout under the lock of its name, so a step
   that takes its lock later changes nothing.
4. In one transaction it locks all names, and so waits for earlier steps; then it counts entries, and sets the new
   layout. It counts only at layout 0: with the new one, the count of a name that was just added could be too old.

Present holders keep their locks. Their clients can still renew them, since renewals do not read the layout.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from leasehold._model import Finding, Severity
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.dialect import LAYOUT, Dialect
from leasehold.stores._sql.transport import Outcome, Refused, SQLTransport, Statement, Transaction

VERSION = Statement("SELECT version FROM leasehold_meta")

OLD, UPGRADING = 1, 0
"""The layout that can be upgraded, and the one that the tables have meanwhile."""

LET_CLIENTS_GO_ON = f"UPDATE leasehold_meta SET version = {OLD} WHERE version = {UPGRADING}"
STOP_CLIENTS = f"UPDATE leasehold_meta SET version = {UPGRADING} WHERE version = {OLD}"

LOCK_NAMES = "UPDATE leasehold_name SET used = used"
LOCK_VERSION = "SELECT version FROM leasehold_meta FOR UPDATE"
COUNT_ENTRIES = (
    "UPDATE leasehold_name SET entries = (SELECT COUNT(*) FROM leasehold_entry WHERE name_id = id) "
    "WHERE id IN (SELECT name_id FROM leasehold_entry)"
)
SET_LAYOUT = f"UPDATE leasehold_meta SET version = {LAYOUT}"
"""The last transaction of an upgrade. Names are locked first, as the sweep does: else the two would deadlock."""

CHECK_WITHIN = 5.0
"""Seconds that reading the layout of the tables may take."""

CREATE_WITHIN = 30.0
"""Seconds that creating the tables may take."""

UPGRADE_WITHIN = 300.0
"""Seconds that the last step of an upgrade may take: it locks all names."""

CONFLICTS = 20
"""Conflicts with other transactions after which that step is given up."""

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


def finding(subject: str, version: int | None) -> Finding:
    """Return what `leasehold doctor` reports of the version."""
    if version == LAYOUT:
        return Finding(Severity.OK, subject, f"layout {version}")
    remedy = "upgrade leasehold" if version is not None and version > LAYOUT else "run: leasehold init URL"
    meaning = f"this leasehold needs {LAYOUT}; no lock can be acquired"
    return Finding(Severity.ERROR, subject, f"layout {version}", meaning, remedy)


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
    if version in (OLD, UPGRADING):
        await _upgrade(transport, dialect)
    elif version is None:
        await transport.transact(partial(_create, dialect=dialect), within=CREATE_WITHIN)
    await transport.transact(_check, within=CHECK_WITHIN)
    return version != LAYOUT


async def _create(tx: Transaction, dialect: Dialect) -> None:
    if dialect.creator_lock:
        await tx.ask(*dialect.creator_lock)
    await tx.commit(*map(Statement, split(dialect.script("schema"))))


async def _upgrade(transport: SQLTransport, dialect: Dialect) -> None:
    add_columns, *drop_functions = split(dialect.script("upgrade"))
    try:
        await _run(transport, add_columns)
    except Refused as error:
        if error.code not in dialect.already_there:
            raise
    for text in drop_functions:
        with suppress(Refused):  # without the right to drop them they stay; a wrong number of entries is corrected
            await _run(transport, text)
    await _run(transport, STOP_CLIENTS)
    try:
        await _finish(transport)
    except BaseException:
        with suppress(StoreUnavailable):
            await _run(transport, LET_CLIENTS_GO_ON)
        raise


async def _finish(transport: SQLTransport) -> None:
    """Take the last step until no conflict with another transaction rolls it back."""
    for left in reversed(range(CONFLICTS)):
        try:
            return await transport.transact(_count_entries, within=UPGRADE_WITHIN)
        except Refused as error:
            if error.outcome is not Outcome.AGAIN or not left:
                raise


async def _run(transport: SQLTransport, text: str) -> None:
    await transport.transact(lambda tx: tx.commit(Statement(text)), within=CREATE_WITHIN)


async def _count_entries(tx: Transaction) -> None:
    await tx.ask(Statement(LOCK_NAMES))
    (found,) = await tx.ask(Statement(LOCK_VERSION))
    if found[0][0] == UPGRADING:  # else another process has done it
        await tx.ask(Statement(COUNT_ENTRIES))
        await tx.commit(Statement(SET_LAYOUT))


async def _version(tx: Transaction) -> int | None:
    (found,) = await tx.ask(VERSION)
    return found[0][0] if found else None


async def _check(tx: Transaction) -> None:
    check(await _version(tx))
