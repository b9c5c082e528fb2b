"""The statements of lease rows in PostgreSQL's words (see `stores.sql.dialect`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from leasehold.stores.sql.dialect import Dialect
from leasehold.stores.sql.pages import COLUMNS
from leasehold.wires.postgres.base import EARS, ear_number
from leasehold.wires.sql import Statement

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

ID = "(SELECT id FROM leasehold_name WHERE space = $1 AND name = $2)"

FRONT = f"""
    SELECT clock.now, meta.version, meta.fence, seats.* FROM leasehold_meta meta
    CROSS JOIN (SELECT {CLOCK} AS now) clock LEFT JOIN (
        SELECT {COLUMNS} FROM leasehold_seat WHERE name_id = {ID} ORDER BY place LIMIT $3::bigint
    ) seats ON true
"""

SEATS = f"""
    SELECT clock.now, meta.version, meta.fence, seats.* FROM leasehold_meta meta
    CROSS JOIN (SELECT {CLOCK} AS now) clock LEFT JOIN (
        (SELECT {COLUMNS} FROM leasehold_seat WHERE name_id = {ID} AND place = 0)
        UNION ALL
        (SELECT {COLUMNS} FROM leasehold_seat WHERE name_id = {ID} AND place > 0 ORDER BY place LIMIT $3::bigint)
    ) seats ON true
"""

EDGES = f"""
    SELECT {COLUMNS} FROM leasehold_seat WHERE name_id = {ID} AND (
        ticket = $3 OR (place > 0 AND beside <> '')
        OR place = (SELECT max(place) FROM leasehold_seat WHERE name_id = {ID} AND place > 0)
    )
"""

ADD_NAME = f"""
    INSERT INTO leasehold_name (space, name, fence, barred, used)
    SELECT $1::bytea, $2::bytea, fence, 0, {CLOCK} FROM leasehold_meta ON CONFLICT DO NOTHING
"""

NAMES = f"""
    SELECT id, name, fence, barred, {COLUMNS} FROM leasehold_name LEFT JOIN leasehold_seat ON name_id = id
    WHERE space = $1 AND name >= $2 AND name < $3 AND (barred > $4 OR ticket IS NOT NULL) ORDER BY name, place
"""

READ_CELL = f"SELECT value, version, fence, expires, {CLOCK} FROM leasehold_cell WHERE space = $1 AND name = $2"

SET_CELL = """
    UPDATE leasehold_cell SET value = $1, version = $2, fence = $3, expires = $4, life = $5
    WHERE space = $6 AND name = $7
"""

DROP_CELLS = f"""
    DELETE FROM leasehold_cell WHERE (space, name) IN (
        SELECT space, name FROM leasehold_cell WHERE expires < {CLOCK} ORDER BY expires LIMIT $1
        FOR UPDATE SKIP LOCKED
    )
"""


def places(start: int, count: int) -> str:
    """Return the placeholders from number ``start`` on."""
    return ", ".join(f"${number}" for number in range(start, start + count))


def _lock_names(space: bytes, names: Sequence[bytes]) -> Statement:
    text = f"""
        SELECT id, name FROM leasehold_name WHERE space = $1 AND name IN ({places(2, len(names))})
        ORDER BY id FOR UPDATE SKIP LOCKED
    """
    return Statement(text, (space, *names))


def _of(ids: Sequence[int], tickets: Sequence[str]) -> str:
    seats = f"name_id IN ({places(1, len(ids))}) AND ticket IN ({places(1 + len(ids), len(tickets))})"
    return f"{seats} AND expires > {CLOCK}"


def _renew(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    text = f"UPDATE leasehold_seat SET expires = {CLOCK} + lease WHERE {_of(ids, tickets)}"
    return Statement(text, (*ids, *tickets))


def _standings(ids: Sequence[int], tickets: Sequence[str]) -> Statement:
    return Statement(f"SELECT ticket, token FROM leasehold_seat WHERE {_of(ids, tickets)}", (*ids, *tickets))


def _listening(channels: Sequence[str]) -> Statement:
    pairs = ", ".join(f"(${number}::bigint, ${number + 1}::text)" for number in range(1, 2 * len(channels), 2))
    text = f"""
        SELECT channel FROM (VALUES {pairs}) AS ears (number, channel) WHERE number IN (
            SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = {EARS} AND objsubid = 2
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
    """
    return Statement(text, tuple(value for channel in channels for value in (ear_number(channel), channel)))


def _sights(tickets: Sequence[str]) -> Statement:
    text = f"""
        SELECT {CLOCK}, mine.ticket, mine.token, mine.expires, mine.lease,
        mine.place - (SELECT MIN(place) FROM leasehold_seat WHERE name_id = mine.name_id AND place > 0),
        (SELECT MIN(expires) FROM leasehold_seat WHERE name_id = mine.name_id AND place = 0), fence
        FROM leasehold_seat mine JOIN leasehold_name ON id = mine.name_id
        WHERE mine.ticket IN ({places(1, len(tickets))})
    """
    return Statement(text, tuple(tickets))


def _forget_name(name_id: int, fence: int) -> Sequence[Statement]:
    return (
        Statement("DELETE FROM leasehold_seat WHERE name_id = $1", (name_id,)),
        Statement("DELETE FROM leasehold_name WHERE id = $1", (name_id,)),
        Statement("UPDATE leasehold_meta SET fence = greatest(fence, $1)", (fence,)),
    )


DIALECT = Dialect(
    lock_name="SELECT id, fence, barred, used FROM leasehold_name WHERE space = $1 AND name = $2 FOR UPDATE",
    front=FRONT,
    seats=SEATS,
    edges=EDGES,
    add_name=ADD_NAME,
    set_name="UPDATE leasehold_name SET fence = $1, barred = $2, used = $3 WHERE id = $4",
    add_seat=f"INSERT INTO leasehold_seat (name_id, {COLUMNS}) VALUES ({places(1, 17)})",
    set_seat="""
        UPDATE leasehold_seat SET place = $1, token = $2, expires = $3, hint = $4 WHERE ticket = $5 AND name_id = $6
    """,
    drop_seat="DELETE FROM leasehold_seat WHERE ticket = $1 AND name_id = $2",
    lock_names=_lock_names,
    renew=_renew,
    standings=_standings,
    sights=_sights,
    names=NAMES,
    clock=f"SELECT {CLOCK}, version, fence FROM leasehold_meta",
    lock_cell=f"{READ_CELL} FOR UPDATE",
    read_cell=READ_CELL,
    add_cell="""
        INSERT INTO leasehold_cell (space, name, version, fence, expires, life) VALUES ($1, $2, 0, 0, 0, 0)
        ON CONFLICT DO NOTHING
    """,
    set_cell=SET_CELL,
    notify="SELECT pg_notify($1, $2)",
    listening=_listening,
    last_name="SELECT coalesce(max(id), 0) FROM leasehold_name",
    some_names="""
        SELECT id, CASE WHEN used < $1 AND barred < $2 THEN 1 ELSE 0 END FROM leasehold_name
        WHERE id > $3 ORDER BY id LIMIT $4::bigint
    """,
    lock_idle="""
        SELECT fence FROM leasehold_name WHERE id = $1 AND used < $2 AND barred < $3 FOR UPDATE SKIP LOCKED
    """,
    unexpired=f"SELECT 1 FROM leasehold_seat WHERE name_id = $1 AND expires > {CLOCK} LIMIT 1",
    forget_name=_forget_name,
    drop_cells=DROP_CELLS,
)


def script() -> str:
    """Return the SQL that makes the tables."""
    return files("leasehold.stores.postgres").joinpath("schema.sql").read_text(encoding="utf-8")
