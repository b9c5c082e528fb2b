"""A server of PostgreSQL for tests of its errors, and transactions on it that end with one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from leasehold import StoreUnavailable
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores.postgres.connection import settings
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.statements import script
from leasehold_lab.servers import PostgresServer
from support.stores.refusals import MARK, rolled_back

RUNTIME = BlockingRuntime()

SETTINGS = {"max_connections": "20", "max_locks_per_transaction": "10", "deadlock_timeout": "100ms"}

TABLES = """
    CREATE ROLE poor LOGIN;
    CREATE ROLE lost LOGIN;
    ALTER ROLE lost SET search_path = 'nowhere';
    CREATE TABLE mark (x int);
    CREATE TABLE pair (x int PRIMARY KEY);
    INSERT INTO pair VALUES (1), (2);
    CREATE TABLE parts (x int) PARTITION BY LIST (x);
    CREATE TABLE one PARTITION OF parts FOR VALUES IN (1);
    CREATE TABLE two PARTITION OF parts FOR VALUES IN (2);
    CREATE TABLE broken AS SELECT 1 AS x;
    CREATE SEQUENCE failures;
"""


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[PostgresServer]:
    with PostgresServer(config=SETTINGS) as running:
        outlive.add(running.pid)
        running.execute(script() + TABLES)
        running.query("CHECKPOINT")
        with (running.data / running.query("SELECT pg_relation_filepath('broken')")[0][0]).open("ab") as file:
            file.write(b"x" * 8192)
        yield running


@contextlib.contextmanager
def transport_to(url: str) -> Iterator[BlockingTransport]:
    transport = BlockingTransport(RUNTIME, settings.from_url(parse(url)), lambda _: None, lambda: None)
    try:
        yield transport
    finally:
        finish(transport.close())


def in_a_transaction(server: PostgresServer, *steps: str | Callable[[], object]) -> Sequence[StoreUnavailable]:
    with transport_to(server.url) as transport:
        return rolled_back(transport, steps, MARK)
