"""The statements of lease rows in PostgreSQL's dialect (see `_sql.dialect`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from leasehold.stores._sql.dialect import ID, LAYOUT, REFUSED_CHARACTERS, Dialect
from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.transport import Statement
from leasehold.stores.postgres.connection.notifications import SUBSCRIBERS, channel_number

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

ITS_ROW = "id = (SELECT id FROM leasehold_name WHERE space = $1 AND name = $2 FOR UPDATE SKIP LOCKED)"
"""The conditions beside it are checked anew on the row as it is when it is locked, if it changed since the statement
began (see "Read Committed Isolation Level" in PostgreSQL's manual)."""

TOKEN = "greatest(named.fence, meta.fence, clock.now / 1000 - 1) + 1"

ACQUIRE_FREE = f"""
    UPDATE leasehold_name AS named SET fence = {TOKEN}, used = clock.now, holder = $3, holder_token = {TOKEN},
    holder_expires = clock.now + $5, holder_fair = $4, holder_lease = $5, holder_delay = $6, holder_owner = $7,
    holder_meta = $8
    FROM leasehold_meta meta CROSS JOIN (SELECT {CLOCK} AS now) clock
    WHERE {ITS_ROW} AND holder = '' AND entries = 0 AND blocked_until <= clock.now
    AND strpos(refused, $3) = 0 AND meta.version = {LAYOUT} RETURNING holder_token
"""

REFUSE = f"""
    UPDATE leasehold_name SET refused = substr($1::text || ' ' || refused, 1, {REFUSED_CHARACTERS})
    WHERE space = $2 AND name = $3
"""

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

ADD_CELL = """
    INSERT INTO leasehold_cell (space, name, version, fence, expires, ttl) VALUES ($1, $2, 0, 0, 0, 0)
    ON CONFLICT DO NOTHING
"""

DROP_CELLS = f"""
    DELETE FROM leasehold_cell WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM leasehold_cell WHERE expires < (SELECT {CLOCK}) ORDER BY expires LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
"""
"""The subquery for the clock, which is volatile, lets the index be used. A locked row keeps its ``ctid``."""


def _listening(channels: Sequence[str]) -> Statement:
    pairs = ", ".join(f"(${number}::bigint, ${number + 1}::text)" for number in range(1, 2 * len(channels), 2))
    text = f"""
        SELECT channel FROM (VALUES {pairs}) AS channels (number, channel) WHERE number IN (
            SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = {SUBSCRIBERS} AND objsubid = 2
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
    """
    return Statement(text, tuple(value for channel in channels for value in (channel_number(channel), channel)))


def script(part: str = "schema") -> str:
    """Return the SQL that creates the tables, or upgrades them."""
    return files("leasehold.stores.postgres").joinpath(f"{part}.sql").read_text("utf-8")


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
    creator_lock=(Statement("SELECT pg_advisory_xact_lock(7235419080266545006)"),),
    its_row=ITS_ROW,
    returning="RETURNING 1",
    names_order="ORDER BY id",
    notify="SELECT pg_notify($1, $2)",
    listening=_listening,
)
