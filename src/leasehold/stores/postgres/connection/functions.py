"""Where the functions of the plain case are (see `_sql.plain`), and the text that calls one.

They are called by the schema of the tables and with the types of all arguments. So a function that somebody else adds
to another schema of the search path, or with types that fit better, is never called. Inside, they name the tables as
all statements do: both ways use the same ones.
"""

from __future__ import annotations

from functools import cache

from leasehold.stores._sql.plain import ACQUIRE, RELEASE

TYPES = ["bytea", "bytea", "text", "smallint", "bigint", "bigint", "text", "text", "text"]
"""Types of the arguments of ``leasehold_acquire``; the first three are those of ``leasehold_release``."""

SIGNATURES = tuple(f"{name}({', '.join(TYPES[:count])})" for name, count in ((ACQUIRE, 9), (RELEASE, 3)))

SCHEMA = """
    SELECT {what} FROM (
        SELECT relnamespace::regnamespace::text AS here FROM pg_class WHERE oid = to_regclass('leasehold_name') OFFSET 0
    ) tables
"""
"""Of the tables. OFFSET keeps the server from looking into other schemas."""

_FOUND = [f"to_regprocedure(here || '.{one}')" for one in SIGNATURES]

THERE = SCHEMA.format(what=f"({' IS NOT NULL AND '.join(_FOUND)} IS NOT NULL)::int")
"""() → 1 if all functions are there."""

WHERE = SCHEMA.format(what="set_config('search_path', here, true)")
"""Lets them be created there."""

CALLED_IN = SCHEMA.format(what="here") + " AND ".join(
    [" WHERE true", *(f"has_function_privilege({one}, 'EXECUTE')" for one in _FOUND)]
)
"""() → the schema; null if one is missing or may not be called."""


@cache
def call_of(schema: str, function: str, count: int) -> str:
    """Return the text of a call."""
    args = ", ".join(f"${number}::{kind}" for number, kind in enumerate(TYPES[:count], 1))
    return f"SELECT {schema}.{function}({args})"
