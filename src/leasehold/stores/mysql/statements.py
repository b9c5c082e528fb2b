"""The statements of lease rows in the words of MySQL and MariaDB (see `stores.sql.dialect`).

The clock is `UTC_TIMESTAMP`: it is fixed when a statement begins, and statements are short; it knows no time zone and
no daylight saving. Rows are found by their keys alone, so no statement locks, or waits for, a row of another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.resources import files

from leasehold.stores._sql import statements
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.statements import ID, places
from leasehold.stores._sql.transport import Statement

CLOCK = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) * 1000)"

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

DROP_CELLS = f"""
    DELETE FROM leasehold_cell WHERE (space, name) IN (
        SELECT space, name FROM (
            SELECT space, name FROM leasehold_cell WHERE expires < {CLOCK} ORDER BY expires LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) void
    )
"""


def _lock_names(space: bytes, names: Sequence[bytes]) -> Statement:
    text = f"""
        SELECT id, name FROM leasehold_name FORCE INDEX (leasehold_name_exact)
        WHERE space = $1 AND name IN ({places(2, len(names))}) FOR UPDATE SKIP LOCKED
    """
    return Statement(text, (space, *names))


def _of(ids: Sequence[int], tickets: Sequence[str]) -> str:
    entries = f"ticket IN ({places(1 + len(ids), len(tickets))}) AND name_id IN ({places(1, len(ids))})"
    return f"{entries} AND expires > {CLOCK}"


def _renew(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    text = f"UPDATE leasehold_entry FORCE INDEX (PRIMARY) SET expires = {CLOCK} + lease WHERE {_of(ids, tickets)}"
    return Statement(text, (*ids, *tickets))


def _results(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    text = f"SELECT ticket, token FROM leasehold_entry FORCE INDEX (PRIMARY) WHERE {_of(ids, tickets)}"
    return Statement(text, (*ids, *tickets))


DIALECT = Dialect(
    lock_name=statements.LOCK_NAME,
    front=FRONT,
    entries=ENTRIES,
    edges=EDGES,
    add_name=ADD_NAME,
    set_name=statements.SET_NAME,
    add_entry=statements.ADD_ENTRY,
    set_entry=statements.SET_ENTRY,
    drop_entry=statements.DROP_ENTRY,
    lock_names=_lock_names,
    renew=_renew,
    results=_results,
    sights=partial(statements.sights, CLOCK),
    names=statements.NAMES,
    clock=statements.clock(CLOCK),
    lock_cell=statements.lock_cell(CLOCK),
    read_cell=statements.read_cell(CLOCK),
    add_cell="""
        INSERT INTO leasehold_cell (space, name, version, fence, expires, ttl) VALUES ($1, $2, 0, 0, 0, 0)
        ON DUPLICATE KEY UPDATE leasehold_cell.version = leasehold_cell.version
    """,
    set_cell=statements.SET_CELL,
    notify=None,
    last_name=statements.LAST_NAME,
    some_names="""
        SELECT id, CASE WHEN used < $1 AND blocked_until < $2 THEN 1 ELSE 0 END FROM leasehold_name
        WHERE id > $3 ORDER BY id LIMIT $4
    """,
    lock_idle=statements.LOCK_IDLE,
    unexpired=statements.unexpired(CLOCK),
    forget_name=statements.forget_name,
    drop_cells=DROP_CELLS,
)


def script() -> str:
    """Return the SQL that makes the tables."""
    return files("leasehold.stores.mysql").joinpath("schema.sql").read_text(encoding="utf-8")
