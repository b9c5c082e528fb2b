"""Spring Integration's ``JdbcLockRegistry``: the table ``INT_LOCK`` (of 7.0 and later, with ``EXPIRED_AFTER``).

Spring writes a row with its registry's UUID and the end of the time to live, by the clock of its host, and takes a row
over when it ends. It deletes the row to release. It polls ten times a second, and renews only when the program asks.
"""

from __future__ import annotations

import re
from hashlib import md5
from uuid import UUID

from leasehold._model import Capabilities
from leasehold.layouts.sql.dialect import MYSQL, Dialect
from leasehold.layouts.sql.format import IDENTIFIER, Format

OPTIONS = ("prefix", "region", "margin")

REGION_LENGTH = 100

TEXTUAL_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

SCHEMA = """\
CREATE TABLE {table}  (
    LOCK_KEY CHAR(36) NOT NULL,
    REGION VARCHAR(100) NOT NULL,
    CLIENT_ID CHAR(36),
    CREATED_DATE {time} NOT NULL,
    EXPIRED_AFTER {time} NOT NULL,
    constraint {name}_PK primary key (LOCK_KEY, REGION)
){engine};
"""
"""As in ``schema-postgresql.sql`` and ``schema-mysql.sql`` of spring-integration-jdbc 7.1.2."""


def capabilities(margin: float) -> Capabilities:
    """Return what its locks promise."""
    return Capabilities(
        fencing=False,
        fair=False,
        lock_delay=False,
        cells=False,
        notifies=False,
        hands_over=False,
        crash_bound=f"within the lease + {margin + 0.15:g} s",
        why_not="the rows of Spring's JdbcLockRegistry (layout=spring) have a client and an end, and nothing else: "
        "leave it out, or leave out layout= where no Spring program shares the name",
    )


def key_of(name: str) -> str:
    """Return Spring's LOCK_KEY: a UUID as it is, of another text the UUID of version 3 without a namespace."""
    if TEXTUAL_UUID.fullmatch(name):
        return name.lower()
    return str(UUID(bytes=md5(name.encode(), usedforsecurity=False).digest(), version=3))


def layout(dialect: Dialect, margin: float, prefix: str = "INT_", region: str = "DEFAULT") -> Format:
    """Return the layout for one table and region.

    Raises:
        ValueError: an option cannot be used.
    """
    if not IDENTIFIER.fullmatch(prefix):
        raise ValueError("option 'prefix' of layout=spring begins the name of a table, as INT_ or app.INT_")
    if not 0 < len(region) <= REGION_LENGTH:
        raise ValueError(f"option 'region' of layout=spring has 1 to {REGION_LENGTH} characters")
    table, mysql = f"{prefix}LOCK", dialect is MYSQL
    time, engine = ("DATETIME(6)", " ENGINE=InnoDB") if mysql else ("TIMESTAMP", "")
    return Format(
        name="spring",
        of="Spring Integration's JdbcLockRegistry (7 or later)",
        capabilities=capabilities(margin),
        dialect=dialect,
        table=table,
        key="LOCK_KEY",
        holder="CLIENT_ID",
        since="CREATED_DATE",
        until="EXPIRED_AFTER",
        fixed={"REGION": region},
        key_of=key_of,
        named=False,
        with_host=False,
        keeps_rows=False,
        margin=margin,
        schema=SCHEMA.format(table=table, name=table.rpartition(".")[2], time=time, engine=engine),
    )
