"""Errors of a commit on MySQL and MariaDB, provoked on real servers, also on a node of Galera."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from erring_mysql import ended, in_a_transaction, server, transport_to

from leasehold import Client, StoreUnavailable, tables
from leasehold._runtimes.base import finish
from leasehold.stores._sql.transport import Outcome, Refused, Statement
from leasehold.stores.mysql.connection.base import REMEDIES
from leasehold_lab.servers import GaleraServer, MariaDBServer
from support.patience import until
from support.stores.refusals import refusals

__all__ = ["server"]  # pytest finds the fixture here

HELD_UP = {
    1205: ("SET SESSION lock_wait_timeout = 0", "", Outcome.AGAIN),
    1969: ("SET SESSION max_statement_time = 0.2", "", Outcome.NOT_APPLIED),
    1317: ("DO 0", "QUERY", Outcome.NOT_APPLIED),
    0: ("DO 0", "CONNECTION", Outcome.UNKNOWN),
}
"""By error code (0: no answer): the statement before a commit that must wait, what an operator kills meanwhile, and the
outcome."""


@pytest.mark.parametrize("code", HELD_UP)
def test_an_error_of_the_commit_that_is_listed_is_not_applied(code: int, server: MariaDBServer) -> None:
    """Another session blocks all commits: the commit waits, and is aborted."""
    first, killed, outcome = HELD_UP[code]
    operator = threading.Thread(target=until, args=(lambda: ended(server, "COMMIT", killed),))
    with contextlib.closing(server.connect()) as other:
        if killed:
            operator.start()
        try:
            (error,) = in_a_transaction(server, first, lambda: other.cursor().execute("FLUSH TABLES WITH READ LOCK"))
        finally:
            if killed:
                operator.join()
    assert error.unknown is (outcome is Outcome.UNKNOWN)
    if code:
        assert isinstance(error, Refused)
        assert error.code == str(code)
        assert error.outcome is outcome
    assert server.query("SELECT COUNT(*) FROM mark") == [(0,)]


def test_an_error_of_the_commit_that_is_not_listed_is_unknown(server: MariaDBServer) -> None:
    (error,) = in_a_transaction(server, "ROLLBACK", "XA START 'odd'")  # which COMMIT does not end
    assert isinstance(error, Refused)
    assert error.code == "1399"
    assert error.outcome is Outcome.UNKNOWN
    assert error.unknown
    assert server.query("SELECT COUNT(*) FROM mark") == [(0,)]


# --- a node of Galera ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def galera(outlive: set[int]) -> Iterator[GaleraServer]:
    with GaleraServer() as running:
        outlive.add(running.pid)
        tables.create(running.url)
        running.query("CREATE TABLE mark (x INT PRIMARY KEY AUTO_INCREMENT, y TEXT) ENGINE = InnoDB")
        yield running


def test_a_node_of_galera_that_takes_no_queries(galera: GaleraServer) -> None:
    with (
        contextlib.closing(galera.connect()) as operator,
        operator.cursor() as cursor,
        Client.from_url(galera.url) as client,
    ):
        client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
        cursor.execute("SET GLOBAL wsrep_reject_queries = 'ALL'")
        try:
            errors = refusals(galera.url)
            with pytest.raises(StoreUnavailable) as caught:
                client.lock("x").acquire(timeout=1)
        finally:
            cursor.execute("SET GLOBAL wsrep_reject_queries = 'NONE'")
        for error in (caught.value, *errors):
            assert isinstance(error, Refused)
            assert error.code == "1047"
            assert error.outcome is Outcome.NOT_APPLIED
            assert REMEDIES[1047] in str(error)
        assert client.inspect("x") is None
        assert client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]


def test_a_commit_that_galera_confirms_and_then_fails_is_unknown(galera: GaleraServer) -> None:
    """For several statements in one request, Galera first confirms the commit, and then reports that it failed."""
    large = "x" * 1000
    write = Statement(f"INSERT INTO mark (y) VALUES ('{large}')")
    galera.query("SET GLOBAL wsrep_max_ws_size = 1024")
    try:
        with transport_to(galera.url) as transport, pytest.raises(Refused) as caught:
            finish(transport.transact(lambda tx: tx.commit(write), within=5.0))
        with Client.from_url(galera.url, response_timeout=0.5) as client:
            with pytest.raises(StoreUnavailable) as claimed:
                client.lock("y", meta={"text": large}).acquire(timeout=0.5)
            assert claimed.value.unknown
            assert client.inspect("y") is None
    finally:
        galera.query("SET GLOBAL wsrep_max_ws_size = 2147483647")
    assert galera.query("SELECT COUNT(*) FROM mark") == [(0,)]
    assert "writeset size" in str(caught.value)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.unknown
