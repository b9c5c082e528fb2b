"""A database server with the tables of Spring and ShedLock, and programs that use these as recorded from the real ones.

The statements, and the clock that their times come from (that of the program's host, in UTC), are those of Spring
Integration 7.1.2 and ShedLock 7.10.1. ``tests/foreign`` has the real programs.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from leasehold import tables
from leasehold.layouts.sql.spring import key_of

KINDS = ("postgres", "mariadb")

COMMIT = {"postgres": b"COMMIT\0", "mariadb": b"COMMIT"}
"""What only the request with the commit has in it."""


@dataclass(frozen=True)
class Database:
    """A server with the tables."""

    kind: str
    server: Any

    @property
    def port(self) -> int:
        return int(self.server.port)

    def url(self, layout: str, port: int | None = None, **options: str) -> str:
        """Return the URL with a layout, perhaps through a proxy at another port."""
        base = self.server.url.replace(f":{self.port}", f":{port or self.port}")
        query = "&".join(f"{key}={value}" for key, value in {"layout": layout, **options}.items())
        return f"{base}{'&' if '?' in base else '?'}{query}"

    def query(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own; return its rows."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(text, args or None)
            return list(cursor.fetchall()) if cursor.description else []

    def changed(self, text: str, *args: object) -> int:
        """Run one statement; return the number of rows that it changed."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(text, args or None)
            return int(cursor.rowcount)


@pytest.fixture(params=KINDS)
def sql_server(request: pytest.FixtureRequest) -> Database:
    """A server of each kind, with the tables made by `leasehold.tables`."""
    request.node.user_properties.append((f"store:{request.param}", True))
    database = Database(request.param, request.getfixturevalue(f"{request.param}_server"))
    for layout in ("spring", "shedlock"):
        tables.create(database.url(layout))
    return database


class Program:
    """A program, whose clock is ahead by ``skew`` seconds."""

    def __init__(self, database: Database, skew: float = 0.0) -> None:
        self.database = database
        self.skew = skew

    def now(self, later: float = 0.0) -> datetime:
        return datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=self.skew + later)

    def changed(self, text: str, *args: object) -> int:
        return self.database.changed(text, *args)


class Spring(Program):
    """One `JdbcLockRegistry`."""

    def __init__(self, database: Database, ttl: float = 10.0, skew: float = 0.0, region: str = "DEFAULT") -> None:
        super().__init__(database, skew)
        self.ttl = ttl
        self.region = region
        self.id = str(uuid4())

    def lock(self, name: str) -> bool:
        key, ends = key_of(name), self.now(self.ttl)
        update = (
            "UPDATE INT_LOCK SET CLIENT_ID=%s, EXPIRED_AFTER=%s WHERE REGION=%s AND LOCK_KEY=%s AND (CLIENT_ID=%s OR "
            "EXPIRED_AFTER<%s)"
        )
        if self.changed(update, self.id, ends, self.region, key, self.id, self.now()):
            return True
        columns = "REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE, EXPIRED_AFTER"
        insert = f"INSERT INTO INT_LOCK ({columns}) VALUES (%s,%s,%s,%s,%s)"
        with suppress(Exception):  # a duplicate key
            return self.changed(insert, self.region, key, self.id, self.now(), ends) > 0
        return False

    def renew(self, name: str) -> bool:
        text = "UPDATE INT_LOCK SET EXPIRED_AFTER=%s WHERE REGION=%s AND LOCK_KEY=%s AND CLIENT_ID=%s"
        return self.changed(text, self.now(self.ttl), self.region, key_of(name), self.id) > 0

    def unlock(self, name: str) -> bool:
        text = "DELETE FROM INT_LOCK WHERE REGION=%s AND LOCK_KEY=%s AND CLIENT_ID=%s"
        return self.changed(text, self.region, key_of(name), self.id) > 0


class ShedLock(Program):
    """One lock provider, without ``usingDbTime``; its holder is the host's name, as for all processes of that host."""

    host = "app-1"

    def lock(self, name: str, at_most: float, at_least: float = 0.0) -> bool:
        now = self.now()
        args = now + timedelta(seconds=at_most), now, self.host
        update = "UPDATE shedlock SET lock_until=%s, locked_at=%s, locked_by=%s WHERE name=%s AND lock_until<=%s"
        if self.changed(update, *args, name, now):
            return True
        insert = "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES (%s,%s,%s,%s)"
        with suppress(Exception):  # a duplicate key
            return self.changed(insert, name, *args) > 0
        return False

    def unlock(self, name: str) -> bool:
        text = "UPDATE shedlock SET lock_until=%s WHERE name=%s AND locked_by=%s"
        return self.changed(text, self.now(), name, self.host) > 0
