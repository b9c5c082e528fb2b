"""The statements of lease rows in the dialect of MySQL and MariaDB (see `_sql.dialect`).

The clock is `UTC_TIMESTAMP`: it is fixed when a statement begins, and statements are short; it has no time zone and
no daylight saving. Rows are found by their keys alone, so no statement locks, or waits for, a row of another name.
"""

from __future__ import annotations

from importlib.resources import files

from leasehold.stores._sql.dialect import ID, LAYOUT, REFUSED_CHARACTERS, Dialect
from leasehold.stores._sql.queue_snapshot import COLUMNS

CLOCK = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) * 1000)"

WRITABLE = "CONCAT(@@GLOBAL.read_only) IN ('0', 'OFF')"
"""Whether the server takes writes of everyone. On a replica, which a switch-over may have made of it, an administrator
could still write. Some versions show this variable as a number, some as a word."""

TOKEN = f"GREATEST(fence, (SELECT meta.fence FROM leasehold_meta meta), {CLOCK} DIV 1000 - 1) + 1"

ACQUIRE_FREE = f"""
    UPDATE leasehold_name SET holder_token = {TOKEN}, fence = LAST_INSERT_ID({TOKEN}), used = {CLOCK}, holder = $3,
    holder_expires = {CLOCK} + $5, holder_fair = $4, holder_lease = $5, holder_delay = $6, holder_owner = $7,
    holder_meta = $8
    WHERE space = $1 AND name = $2 AND holder = '' AND entries = 0 AND blocked_until <= {CLOCK}
    AND LOCATE($3, refused) = 0 AND (SELECT meta.version FROM leasehold_meta meta) = {LAYOUT} AND {WRITABLE}
"""
"""Assignments are carried out from left to right: ``fence`` changes after its last use. At READ COMMITTED the values of
``leasehold_meta`` are read without a lock."""

REFUSE = f"""
    UPDATE leasehold_name SET refused = SUBSTR(CONCAT($1, ' ', refused), 1, {REFUSED_CHARACTERS})
    WHERE space = $2 AND name = $3
"""

FRONT = f"""
    SELECT {CLOCK}, meta.version, meta.fence, {COLUMNS} FROM leasehold_meta meta
    LEFT JOIN leasehold_entry ON name_id = {ID} ORDER BY place LIMIT $3
"""

ENTRIES = f"""
    SELECT {CLOCK}, meta.version, meta.fence, entries.* FROM leasehold_meta meta LEFT JOIN (
        (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND place = 0)
        UNION ALL
        (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND place > 0 ORDER BY place LIMIT $3)
    ) entries ON TRUE
"""

EDGES = f"""
    (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND place > 0 ORDER BY place DESC LIMIT 1)
    UNION ALL
    (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND ticket = $3)
    UNION ALL
    (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND alongside > '' AND place > 0)
"""

ADD_NAME = f"""
    INSERT INTO leasehold_name (space, name, fence, blocked_until, used)
    SELECT $1, $2, meta.fence, 0, {CLOCK} FROM leasehold_meta meta
    ON DUPLICATE KEY UPDATE leasehold_name.used = leasehold_name.used
"""

ADD_CELL = """
    INSERT INTO leasehold_cell (space, name, version, fence, expires, ttl) VALUES ($1, $2, 0, 0, 0, 0)
    ON DUPLICATE KEY UPDATE leasehold_cell.version = leasehold_cell.version
"""

DROP_CELLS = f"""
    DELETE leasehold_cell FROM (
        SELECT space, name FROM leasehold_cell WHERE expires < {CLOCK} ORDER BY expires LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) expired STRAIGHT_JOIN leasehold_cell
    ON (expired.space, expired.name) = (leasehold_cell.space, leasehold_cell.name)
"""
"""Joined in this order: for ``IN``, MariaDB reads the whole table, and waits for locked rows."""


def script(part: str = "schema") -> str:
    """Return the SQL that creates the tables, or upgrades them."""
    return files("leasehold.stores.mysql").joinpath(f"{part}.sql").read_text("utf-8")


DIALECT = Dialect(
    now=CLOCK,
    front=FRONT,
    entries=ENTRIES,
    edges=EDGES,
    add_name=ADD_NAME,
    add_cell=ADD_CELL,
    drop_cells=DROP_CELLS,
    script=script,
    acquire_free=ACQUIRE_FREE,
    refuse=REFUSE,
    already_there=("1060",),
    its_row=f"space = $1 AND name = $2 AND {WRITABLE}",
    names_index="FORCE INDEX (leasehold_name_exact)",
    by_key="FORCE INDEX (PRIMARY)",
)
