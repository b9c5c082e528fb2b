"""Helpers of the tests with faults on MySQL: a server with odd settings, and what is read from it."""

from __future__ import annotations

import time
from typing import Any

from leasehold import tables
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer

NOISE = 1.0
"""Seconds that a busy machine may be late."""

ROUND_TRIPS = 0.1
"""Seconds for a look and what follows it, and for what the waiter waited before it was seen to."""

ODD = {
    "sql-mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH",
    "transaction-isolation": "SERIALIZABLE",
    "autocommit": "0",
    "completion-type": "RELEASE",
    "default-time-zone": "-05:00",
    "character-set-server": "latin1",
    "collation-server": "latin1_swedish_ci",
    "default-storage-engine": "MyISAM",
    "wait-timeout": "2",
    "lock-wait-timeout": "1",
    "log-bin": "log",
    "server-id": "1",
    "binlog-format": "MIXED",
    "innodb-flush-log-at-trx-commit": "0",
}
"""Settings that people have, and that must not matter."""


def make_tables(server: MariaDBServer) -> None:
    assert tables.create(server.url)
    assert not tables.create(server.url)


def through(server: MariaDBServer, proxy: FaultProxy, options: str = "") -> str:
    return server.url.replace(f":{server.port}/", f":{proxy.port}/") + options


def entries(server: MariaDBServer) -> int:
    """Return how many entries that have not run out there are."""
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
    return int(server.query(f"SELECT COUNT(*) FROM leasehold_entry WHERE expires > {now}")[0][0])


def waits_for_rows(server: MariaDBServer) -> int:
    return int(server.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1])


def transactions(server: MariaDBServer) -> int:
    return int(server.query("SELECT COUNT(*) FROM information_schema.INNODB_TRX")[0][0])


async def comes_true(harness: Harness, what: Any, limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not what():
        assert time.monotonic() < end
        await harness.sleep(0.01)
