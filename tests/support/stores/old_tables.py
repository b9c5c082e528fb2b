"""A database with tables of layout 1, as an earlier version of leasehold made and used them."""

from __future__ import annotations

import time
from typing import Any

from leasehold import tables
from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold.stores._sql import tables as layout
from leasehold.stores.mysql import statements as mysql
from leasehold.stores.postgres import statements as postgres
from support.stores.own_database import OwnDatabase

TERMS = LeaseTerms(LockMode(), Owner("web-1", 7, "c"), 30.0, meta='{"job": "x"}')
BEFORE = Ticket(ticket_id(bytes(16)), TERMS)
"""The holder in the tables of layout 1."""

COLUMNS = (
    "name_id, ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, "
    "meta, alongside, hint"
)

NAME = {
    "postgresql": """
        CREATE TABLE leasehold_name (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space BYTEA NOT NULL, name BYTEA NOT NULL,
            fence BIGINT NOT NULL, blocked_until BIGINT NOT NULL, used BIGINT NOT NULL, UNIQUE (space, name)
        ) WITH (fillfactor = 70)
    """,
    "mariadb": """
        CREATE TABLE leasehold_name (
            id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, space VARBINARY(512) NOT NULL, name VARBINARY(512) NOT NULL,
            fence BIGINT NOT NULL, blocked_until BIGINT NOT NULL, used BIGINT NOT NULL,
            UNIQUE KEY leasehold_name_exact (space, name)
        ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    """,
}
"""The table of names in layout 1; the other tables are as they were."""

FUNCTIONS = {
    "postgresql": (
        "CREATE FUNCTION leasehold_acquire_1(bytea, bytea, text, smallint, bigint, bigint, text, text, text) "
        "RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
        "CREATE FUNCTION leasehold_release_1(bytea, bytea, text) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
    ),
    "mariadb": (
        "CREATE PROCEDURE leasehold_acquire_1() SELECT 0",
        "CREATE PROCEDURE leasehold_release_1() SELECT 0",
    ),
}

THERE = {
    "postgresql": "SELECT count(*) FROM pg_proc WHERE proname LIKE 'leasehold_%%'",
    "mariadb": "SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()",
}

WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mariadb": "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID() "
    "AND (INFO LIKE 'ALTER%%' OR INFO LIKE 'UPDATE%%')",
}
"""How many sessions wait for a lock."""

SPACE = b"default"
"""The namespace of its names."""


def downgraded(system: str) -> list[str]:
    """Return the statements that turn empty tables of today into those of layout 1, with their functions."""
    return ["DROP TABLE leasehold_name", NAME[system], *FUNCTIONS[system], "UPDATE leasehold_meta SET version = 1"]


def new_columns(system: str) -> str:
    """Return the first statement of the upgrade."""
    dialect = postgres.DIALECT if system == "postgresql" else mysql.DIALECT
    return layout.split(dialect.script("upgrade"))[0]


class OldTables(OwnDatabase):
    """A database of its own, with tables of layout 1: a free name, and one with a holder and a waiter."""

    def __init__(self, system: str, server: Any) -> None:
        super().__init__(system, server)
        tables.create(self.url)
        for one in downgraded(system):
            self.run(one)
        for name in (b"free", b"held"):
            columns = "space, name, fence, blocked_until, used"
            values = (SPACE, name, time.time_ns())
            self.run(f"INSERT INTO leasehold_name ({columns}) VALUES (%s, %s, 7, 0, %s)", *values)
        self.add_entry("held", BEFORE.id, token=7)
        self.add_entry("held", "waiter", token=None)

    def add_entry(self, name: str, ticket: str, *, token: int | None, on: Any = None) -> None:
        """Add what a client of layout 1 adds."""
        ((number,),) = self.run("SELECT id FROM leasehold_name WHERE name = %s", name.encode(), on=on)
        place, expires, lease = 0 if token else 1, time.time_ns() + 60 * 10**9, 30 * 10**9
        mode = ("mutex", 1, 0, 1, 1, 0)
        values = (number, ticket, place, token, expires, *mode, lease, 0, str(TERMS.owner))
        places = ", ".join(["%s"] * 17)
        self.run(f"INSERT INTO leasehold_entry ({COLUMNS}) VALUES ({places})", *values, TERMS.meta, "", "", on=on)

    def version(self) -> int:
        return int(self.run("SELECT version FROM leasehold_meta")[0][0])

    def entries(self) -> dict[str, int]:
        return {bytes(name).decode(): count for name, count in self.run("SELECT name, entries FROM leasehold_name")}

    def add_columns(self) -> None:
        """What an upgrade has done first that was interrupted then."""
        self.run(new_columns(self.system))
