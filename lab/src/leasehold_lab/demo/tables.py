"""The table of a demo in a database: created for one run, and dropped after it.

If the machine of a demo dies, the next demo in the same database drops its table. The name of a table contains its
creation time, and no run takes longer than a day.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from typing import Any

from leasehold.guards.connection import Statement, Statements, dialect_of, run
from leasehold_lab.demo.counter_stores import Rows
from leasehold_lab.demo.rows import LEFT_FOR

STEM = "leasehold_demo_"
NAME = re.compile(STEM + r"(\d{10,})_[0-9a-f]{12}")
"""How tables of demos are called, with the second since 1970 in which they were made, by the database's clock."""

NOW = {
    "postgresql": "SELECT floor(extract(epoch FROM now()))::bigint, current_schema()",
    "mysql": "SELECT unix_timestamp(), database()",
}
"""What time it is, and in which schema a table is made."""

PATIENCE = {"postgresql": "SET lock_timeout = '2s'", "mysql": "SET SESSION lock_wait_timeout = 2"}
"""Settings so that a drop does not wait for users of the table."""


@contextmanager
def table_of_a_run(connect: Callable[[], Any]) -> Generator[str]:
    """Drop what dead demos left, and make a table for a while; yield its name, or nothing if the user may make none."""
    with closing(connect()) as connection:
        name = f"{STEM}{sweep(connection)}_{secrets.token_hex(6)}"
    with closing(Rows(connect(), name)) as table:
        try:
            table.create()
        except Exception:  # whatever the driver raises: the user may make no table
            name = ""
        try:
            yield name
        finally:
            if name:
                table.discard()


def sweep(connection: Any) -> int:
    """Drop the tables of demos that are long over, as far as the user may; return the database's time, in seconds."""
    dialect = dialect_of(connection)
    now, old = run(connection, _old_ones(dialect))
    run(connection, _said(PATIENCE[dialect]))
    for name in old:
        with suppress(Exception):  # whatever the driver raises: the table is another user's, or is being read
            run(connection, _said(f"DROP TABLE IF EXISTS {name}"))
    return now


def _old_ones(dialect: str) -> Statements[tuple[int, list[str]]]:
    now, schema = (yield Statement(NOW[dialect])).rows[0]
    text = "SELECT table_name FROM information_schema.tables WHERE table_schema = {} AND left(table_name, {}) = {}"
    rows = (yield Statement(text, (schema, len(STEM), STEM))).rows
    named = [found for (name,) in rows if (found := NAME.fullmatch(name))]
    return int(now), [found[0] for found in named if int(now) - int(found[1]) > LEFT_FOR]


def _said(text: str) -> Statements[None]:
    yield Statement(text)
