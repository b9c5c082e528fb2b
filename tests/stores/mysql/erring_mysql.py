"""A server of MariaDB for tests of its errors, and transactions on it that end with one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pymysql
import pytest

from leasehold import StoreUnavailable, tables
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores.mysql.connection import settings
from leasehold.stores.mysql.connection.transport import MySQLTransport
from leasehold_lab.servers import MariaDBServer
from support.stores.refusals import rolled_back

RUNTIME = BlockingRuntime()

SETTINGS = {
    "max-connections": "12",
    "max-connect-errors": "2",
    "max-user-connections": "50",
    "skip-name-resolve": "OFF",
    "log-bin": "log",
    "server-id": "1",
    "binlog-format": "ROW",
}

USERS = """
CREATE USER poor@localhost; GRANT SELECT ON locks.leasehold_meta TO poor@localhost
CREATE USER narrow@localhost; GRANT SELECT (one) ON locks.leasehold_meta TO narrow@localhost
CREATE USER nowhere@localhost
CREATE USER frugal@localhost; GRANT ALL ON locks.* TO frugal@localhost WITH MAX_QUERIES_PER_HOUR 10
CREATE USER local@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON locks.* TO local@localhost
CREATE USER shut@localhost ACCOUNT LOCK; GRANT ALL ON locks.* TO shut@localhost
CREATE USER late@localhost; GRANT ALL ON locks.* TO late@localhost; ALTER USER late@localhost PASSWORD EXPIRE
CREATE USER other@localhost; GRANT ALL ON locks.* TO other@localhost
CREATE USER loud@'127.0.0.2'
INSTALL SONAME 'auth_ed25519'
CREATE USER modern@localhost IDENTIFIED VIA ed25519 USING PASSWORD('x'); GRANT ALL ON locks.* TO modern@localhost
UNINSTALL SONAME 'auth_ed25519'
CREATE TABLE mark (x INT) ENGINE = InnoDB
CREATE TABLE pair (x INT PRIMARY KEY) ENGINE = InnoDB; INSERT INTO pair VALUES (1), (2)
"""


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[MariaDBServer]:
    with MariaDBServer(config=SETTINGS) as running:
        outlive.add(running.pid)
        tables.create(running.url)
        with running.connect() as connection, connection.cursor() as cursor:
            for statement in USERS.replace("\n", ";").split(";"):
                if statement.strip():
                    cursor.execute(statement)
        yield running


def ended(server: MariaDBServer, words: str, what: str) -> bool:
    """Kill each session whose state or statement has these words, as an operator does; return whether there was any."""
    found = False
    for number, user, *_, state, text, _ in server.query("SHOW FULL PROCESSLIST"):
        said = f"{state} {text}".upper().replace("READ COMMITTED", "").replace("AUTOCOMMIT", "")  # of a new session
        if user == "app" and words in said:
            with contextlib.suppress(pymysql.MySQLError):  # it has ended
                server.query(f"KILL {what} {number}")
                found = True
    return found


@contextlib.contextmanager
def transport_to(url: str) -> Iterator[MySQLTransport]:
    transport = MySQLTransport(RUNTIME, settings.from_url(parse(url)))
    try:
        yield transport
    finally:
        finish(transport.close())


def in_a_transaction(server: MariaDBServer, *steps: str | Callable[[], object]) -> Sequence[StoreUnavailable]:
    with transport_to(server.url) as transport:
        return rolled_back(transport, steps)
