"""What MySQL refuses: read-only servers, wrong URLs and tables, settings that do not keep what was committed."""

from __future__ import annotations

import pytest
from mysql_faults import NOISE, make_tables

from leasehold import Client, StoreUnavailable, Unsupported
from leasehold._model import Severity
from leasehold.stores._sql.dialect import LAYOUT
from leasehold.stores._sql.transport import Outcome, Refused
from leasehold.stores.mysql.connection.base import (
    AGAIN,
    CLOSING_ERRORS,
    LASTING,
    REMEDIES,
    is_connection_error,
    outcome_of,
)
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both
from support.stores.database_faults import unavailable


@both
def test_a_read_only_server_is_refused(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url, namespace=namespace)
        hold = await client.lock("held").acquire(timeout=5)
        server.query("SET GLOBAL read_only = 1")
        try:
            for one in (client, harness.client(server.url, namespace=namespace)):
                error = await unavailable(one.lock("x").acquire(timeout=5))
                assert "read-only" in str(error)
                assert not error.unknown
        finally:
            server.query("SET GLOBAL read_only = 0")
        assert await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("//app@", "//app:wrong@"), "user name or password"),
        (("/locks", "/elsewhere"), "rights|no such database"),
        (("/locks", "/mysql"), "rights"),
        (("//app@", "//nobody@"), "put the password into the URL|user name or password|rights"),
    ],
)
def test_a_wrong_url_is_an_error_at_once(
    server: MariaDBServer, namespace: str, harness: Harness, change: tuple[str, str], words: str
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url.replace(*change), namespace=namespace)
        start = harness.now()
        error = await unavailable(client.lock("x").acquire(timeout=30))
        assert harness.now() - start < 5 + NOISE
        assert any(word in str(error) for word in words.split("|")), error
        assert error.__context__ is None or "pymysql" not in type(error.__context__).__module__

    harness.run(body)


@both
def test_a_table_without_transactions_is_refused(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        server.query("ALTER TABLE leasehold_entry ENGINE = MyISAM")
        try:
            client = harness.client(server.url, namespace=namespace)
            with pytest.raises(Unsupported, match=r"leasehold_entry .* MyISAM, .* ENGINE = InnoDB"):
                await client.lock("x").acquire(timeout=5)
        finally:
            server.query("ALTER TABLE leasehold_entry ENGINE = InnoDB")

    harness.run(body)


def test_missing_tables_and_tables_of_another_layout_are_errors(server: MariaDBServer, namespace: str) -> None:
    with Client.from_url(server.url, namespace=namespace) as client:
        server.query("UPDATE leasehold_meta SET version = 99")
        try:
            with pytest.raises(Unsupported, match="newer leasehold"):
                client.inspect("x")
        finally:
            server.query(f"UPDATE leasehold_meta SET version = {LAYOUT}")
        server.query("RENAME TABLE leasehold_entry TO aside")
        try:
            with pytest.raises(StoreUnavailable, match="leasehold init") as caught:
                client.inspect("x")
            assert caught.value.lasting
            errors = [one for one in client.diagnose() if one.severity is Severity.ERROR]
            assert [one.subject for one in errors] == ["mysql tables"]
        finally:
            server.query("RENAME TABLE aside TO leasehold_entry")
        assert all(one.severity < Severity.ERROR for one in client.diagnose())


def test_statement_logging_is_reported() -> None:
    with MariaDBServer(config={"log-bin": "log", "server-id": "1", "binlog-format": "STATEMENT"}) as odd:
        with pytest.raises(Refused, match="MIXED or ROW"):
            make_tables(odd)
        odd.query("SET GLOBAL binlog_format = 'ROW'")
        make_tables(odd)
        odd.query("SET GLOBAL binlog_format = 'STATEMENT'")
        with Client.from_url(odd.url) as client:
            with pytest.raises(StoreUnavailable, match="MIXED or ROW"):
                client.lock("x").acquire(timeout=5)
            assert "mysql binlog" in [one.subject for one in client.diagnose() if one.severity is Severity.ERROR]


def test_the_table_of_errors() -> None:
    """Each number has one meaning, and what is not listed is unknown in a commit only."""
    for code in REMEDIES:
        assert outcome_of(code, committing=True) is not Outcome.UNKNOWN
        assert not is_connection_error(code)
    assert not AGAIN & LASTING
    assert not CLOSING_ERRORS & (AGAIN | LASTING)
    assert outcome_of(1213, committing=False) is Outcome.AGAIN
    assert outcome_of(1142, committing=False) is Outcome.LASTING
    assert outcome_of(9999, committing=True) is Outcome.UNKNOWN
    assert outcome_of(9999, committing=False) is Outcome.NOT_APPLIED
    assert all(is_connection_error(code) for code in (0, 2006, 2013, *CLOSING_ERRORS))
