"""The statements of lease rows in PostgreSQL's words (see `stores.sql.dialect`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.resources import files

from leasehold.stores._sql import statements
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.statements import ID, places
from leasehold.stores._sql.transport import Statement
from leasehold.stores.postgres.connection.notifications import SUBSCRIBERS, ear_number

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

FRONT = f"""
    SELECT clock.now, meta.version, meta.fence, entries.* FROM leasehold_meta meta
    CROSS JOIN (SELECT {CLOCK} AS now) clock LEFT JOIN (
        SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} ORDER BY place LIMIT $3::bigint
    ) entries ON true
"""

ENTRIES = f"""
    SELECT clock.now, meta.version, meta.fence, entries.* FROM leasehold_meta meta
    CROSS JOIN (SELECT {CLOCK} AS now) clock LEFT JOIN (
        (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND place = 0)
        UNION ALL
        (SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND place > 0 ORDER BY place LIMIT $3::bigint)
    ) entries ON true
"""

EDGES = f"""
    SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = {ID} AND (
        ticket = $3 OR (place > 0 AND alongside <> '')
        OR place = (SELECT max(place) FROM leasehold_entry WHERE name_id = {ID} AND place > 0)
    )
"""

ADD_NAME = f"""
    INSERT INTO leasehold_name (space, name, fence, blocked_until, used)
    SELECT $1::bytea, $2::bytea, fence, 0, {CLOCK} FROM leasehold_meta ON CONFLICT DO NOTHING
"""

DROP_CELLS = f"""
    DELETE FROM leasehold_cell WHERE (space, name) IN (
        SELECT space, name FROM leasehold_cell WHERE expires < {CLOCK} ORDER BY expires LIMIT $1
        FOR UPDATE SKIP LOCKED
    )
"""


def _lock_names(space: bytes, names: Sequence[bytes]) -> Statement:
    text = f"""
        SELECT id, name FROM leasehold_name WHERE space = $1 AND name IN ({places(2, len(names))})
        ORDER BY id FOR UPDATE SKIP LOCKED
    """
    return Statement(text, (space, *names))


def _of(ids: Sequence[int], tickets: Sequence[str]) -> str:
    entries = f"name_id IN ({places(1, len(ids))}) AND ticket IN ({places(1 + len(ids), len(tickets))})"
    return f"{entries} AND expires > {CLOCK}"


def _renew(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    text = f"UPDATE leasehold_entry SET expires = {CLOCK} + lease WHERE {_of(ids, tickets)}"
    return Statement(text, (*ids, *tickets))


def _results(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    return Statement(f"SELECT ticket, token FROM leasehold_entry WHERE {_of(ids, tickets)}", (*ids, *tickets))


def _listening(channels: Sequence[str]) -> Statement:
    pairs = ", ".join(f"(${number}::bigint, ${number + 1}::text)" for number in range(1, 2 * len(channels), 2))
    text = f"""
        SELECT channel FROM (VALUES {pairs}) AS ears (number, channel) WHERE number IN (
            SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = {SUBSCRIBERS} AND objsubid = 2
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
    """
    return Statement(text, tuple(value for channel in channels for value in (ear_number(channel), channel)))


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
        ON CONFLICT DO NOTHING
    """,
    set_cell=statements.SET_CELL,
    notify="SELECT pg_notify($1, $2)",
    listening=_listening,
    last_name=statements.LAST_NAME,
    some_names="""
        SELECT id, CASE WHEN used < $1 AND blocked_until < $2 THEN 1 ELSE 0 END FROM leasehold_name
        WHERE id > $3 ORDER BY id LIMIT $4::bigint
    """,
    lock_idle=statements.LOCK_IDLE,
    unexpired=statements.unexpired(CLOCK),
    forget_name=statements.forget_name,
    drop_cells=DROP_CELLS,
)


def script() -> str:
    """Return the SQL that makes the tables."""
    return files("leasehold.stores.postgres").joinpath("schema.sql").read_text(encoding="utf-8")
