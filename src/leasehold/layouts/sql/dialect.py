"""What PostgreSQL and MySQL say differently in the statements of layouts. Times are in UTC, without a time zone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold.stores._sql.transport import Statement


@dataclass(frozen=True)
class Dialect:
    """Parts of statements; each takes and returns SQL.

    Attributes:
        now: the server's clock when the statement runs.
        plus: a time and microseconds to a time.
        micros: a time to microseconds since 1970.
        number: a placeholder to an integer.
        ignore: the key column to what ends an INSERT that does nothing where the row exists.
        missing: error codes of a missing table, and of one without a column.
        version: a query for the server's name and version.
        first: precedes the other statements of a transaction.
    """

    now: str
    plus: Callable[[str, str], str]
    micros: Callable[[str], str]
    number: Callable[[str], str]
    ignore: Callable[[str], str]
    missing: Sequence[str]
    version: str
    first: Sequence[Statement] = ()


POSTGRES = Dialect(
    now="(clock_timestamp() AT TIME ZONE 'utc')",
    plus=lambda time, micros: f"({time} + ({micros}) * interval '1 microsecond')",
    micros=lambda time: f"(extract(epoch FROM {time}) * 1000000)::bigint",
    number=lambda place: f"{place}::bigint",
    ignore=lambda key: "ON CONFLICT DO NOTHING",
    missing=("42P01", "42703"),
    version="SELECT 'PostgreSQL ' || current_setting('server_version')",
)

MYSQL = Dialect(
    now="UTC_TIMESTAMP(6)",
    plus=lambda time, micros: f"TIMESTAMPADD(MICROSECOND, {micros}, {time})",
    micros=lambda time: f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {time})",
    number=str,
    ignore=lambda key: f"ON DUPLICATE KEY UPDATE {key} = {key}",
    missing=("1146", "1054"),
    version="SELECT VERSION()",
    # Columns of the type TIMESTAMP depend on the session's time zone: it must be that of the other programs' sessions.
    first=(Statement("SET time_zone = @@GLOBAL.time_zone"),),
)
