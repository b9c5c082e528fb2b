"""Guards for rows of a database: a fenced update, and a table of fences for resources without such a column.

Both work in your own transaction, on your own connection, with PostgreSQL, MySQL, MariaDB and SQLite, at whatever
isolation level, and whatever that transaction has read before; the functions whose names begin with ``a`` are for
asyncio drivers. At PostgreSQL's REPEATABLE READ and SERIALIZABLE, and at MariaDB's with ``innodb_snapshot_isolation``,
which is on by default from 11.6.2, the server itself may refuse a write after a newer one, by its error 40001 or 1020
in place of `Stale`.

Nothing is committed here. **Read, write and commit inside the block of the lock.** A commit after the release lets the
next holder read the old value, and no token detects that: the next holder's token is the higher one. Where a framework
commits after the view, put the lock around the transaction, or use a lock that lasts until the commit
(`leasehold.postgres.transaction_lock`; in Django ``atomic_lock``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from leasehold.guards import check_fence, check_token
from leasehold.guards.connection import Statement, Statements, arun, dialect_of, run

TABLE = """
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARCHAR(255) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL
)
"""
"""Creates the table of fences on PostgreSQL and SQLite: one row for each resource, until you delete it."""

MYSQL_TABLE = TABLE.replace("VARCHAR(255)", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
"""The same on MySQL and MariaDB, which else pass over case and accents: two resources would share a fence."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
LONGEST = 255


def update(
    connection: Any,
    table: str,
    changes: Mapping[str, Any],
    *,
    where: Mapping[str, Any],
    token: int,
    fence: str = "fence",
) -> int:
    """Change the rows that no newer holder has written to, and mark them with the token.

    Runs ``UPDATE table SET …, fence = token WHERE … AND fence <= token``.

    Args:
        connection: yours, or a cursor or session; in a transaction or not.
        table: its name, as in SQL; a name and not an expression.
        changes: the new values by column.
        where: the values by column that the rows have; None stands for NULL.
        token: of your hold.
        fence: the column that keeps the highest token, a 64-bit integer that is never null, 0 at first.

    Returns:
        How many rows were changed.

    Raises:
        Stale: a row was written with a higher token. Of several rows the others may have been changed: roll back.
        LookupError: there is no such row.
        TypeError: the connection does not show which database it leads to.
    """
    return run(connection, _update(table, changes, where, token, fence, _dialect(connection)))


async def aupdate(
    connection: Any,
    table: str,
    changes: Mapping[str, Any],
    *,
    where: Mapping[str, Any],
    token: int,
    fence: str = "fence",
) -> int:
    """Do what `update` does, on an asyncio connection."""
    return await arun(connection, _update(table, changes, where, token, fence, _dialect(connection)))


def advance(connection: Any, resource: str, token: int) -> None:
    """Let the holder of ``token`` write to ``resource``, of which the table ``leasehold_fence`` keeps the fence.

    Call it in the transaction that writes, before the write: it locks the resource's row of that table to the end of
    the transaction, so that no other holder's write comes in between.

    Raises:
        Stale: a holder with a higher token has advanced the fence.
        ValueError: the name is not of 1 to 255 characters, or ends with a space.
    """
    run(connection, _advance(resource, token, _dialect(connection)))


async def aadvance(connection: Any, resource: str, token: int) -> None:
    """Do what `advance` does, on an asyncio connection."""
    await arun(connection, _advance(resource, token, _dialect(connection)))


def create(connection: Any) -> None:
    """Make the table that `advance` needs; your migrations may run `TABLE` or, on MySQL, `MYSQL_TABLE` instead."""
    run(connection, _create(_dialect(connection)))


async def acreate(connection: Any) -> None:
    """Do what `create` does, on an asyncio connection."""
    await arun(connection, _create(_dialect(connection)))


def _dialect(connection: Any) -> str:
    if not (found := dialect_of(connection)):  # by the statements of PostgreSQL, MySQL would pass over a stale write
        kind = type(connection).__name__
        known = "guards know PostgreSQL, MySQL, MariaDB and SQLite"
        raise TypeError(f"cannot tell which database a {kind} leads to; pass the connection of its driver; {known}")
    return found


def _create(dialect: str) -> Statements[None]:
    yield Statement(MYSQL_TABLE if dialect == "mysql" else TABLE)


def _update(
    table: str, changes: Mapping[str, Any], where: Mapping[str, Any], token: int, fence: str, dialect: str
) -> Statements[int]:
    check_token(token)
    for name in (table, fence, *changes, *where):
        if not IDENTIFIER.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain name of a table or column")
    if not where:
        raise ValueError("where is empty: name the rows that the lock is for")
    if fence in changes:
        raise ValueError(f"the column {fence!r} is set to the token; leave it out of the changes")
    sets = ", ".join(f"{column} = {{}}" for column in (*changes, fence))
    those = " AND ".join(
        f"{column} IS NULL" if value is None else f"{column} = {{}}" for column, value in where.items()
    )
    found_by = tuple(value for value in where.values() if value is not None)
    text = f"UPDATE {table} SET {sets} WHERE {those} AND {fence} <= {{}}"
    done = yield Statement(text, (*changes.values(), token, *found_by, token))
    look = (
        f"SELECT max({fence}) AS highest, count(*) AS found FROM {table} WHERE {those}{CURRENT_ROWS.get(dialect, '')}"
    )
    found = yield Statement(look, found_by)
    highest, rows = found.rows[0]
    if rows:
        check_fence(table, int(highest), token)
    elif done.changed < 1:  # else the changes are to the columns of the condition: those that it finds now are newer
        raise LookupError(f"no row of {table} has {', '.join(where)} as given")
    return max(done.changed, 0)


def _advance(resource: str, token: int, dialect: str) -> Statements[None]:
    check_token(token)
    if not resource or len(resource) > LONGEST:
        raise ValueError(f"a resource has a name of 1 to {LONGEST} characters")
    if resource.endswith(" "):
        raise ValueError(f"the resource {resource!r} ends with a space, which MySQL and MariaDB ignore; leave it out")
    yield Statement(MYSQL_RAISE if dialect == "mysql" else RAISE, (resource, token))
    look = f"SELECT fence FROM leasehold_fence WHERE resource = {{}}{CURRENT_ROWS.get(dialect, '')}"
    found = yield Statement(look, (resource,))
    check_fence(repr(resource), int(found.rows[0][0]), token)


CURRENT_ROWS = {"mysql": " FOR UPDATE"}
"""The clause that makes a SELECT read the current rows, not the snapshot of the transaction.

MySQL's REPEATABLE READ, its default, needs that: its writes use the current rows, its reads the snapshot of the first
read. The other databases refuse to write to a row that has changed since.
"""

RAISE = """
    INSERT INTO leasehold_fence (resource, fence) VALUES ({}, {}) ON CONFLICT (resource) DO UPDATE
    SET fence = CASE WHEN excluded.fence > leasehold_fence.fence THEN excluded.fence ELSE leasehold_fence.fence END
"""
MYSQL_RAISE = """
    INSERT INTO leasehold_fence (resource, fence) VALUES ({}, {})
    ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))
"""
