"""What a connection to PostgreSQL makes of answers that end early, or behind the last one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg")
pq = psycopg.pq

from leasehold.stores.postgres.connection.base import PostgresTransport  # noqa: E402
from leasehold.stores.postgres.connection.errors import ServerError  # noqa: E402
from leasehold.stores.postgres.connection.exchange import COMMIT, Connection, Statement  # noqa: E402

FATAL = {
    pq.DiagnosticField.SQLSTATE: b"57P01",
    pq.DiagnosticField.SEVERITY_NONLOCALIZED: b"FATAL",
    pq.DiagnosticField.MESSAGE_PRIMARY: b"terminating connection due to administrator command",
}


class Said:
    """A libpq connection that returns these results."""

    status = pq.ConnStatus.OK

    def __init__(self, *results: Any) -> None:
        self._results = iter(results)
        self.socket = os.devnull

    def get_result(self) -> Any:
        return next(self._results)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: 0


def done() -> Iterator[Any]:
    yield SimpleNamespace(status=pq.ExecStatus.COMMAND_OK, nfields=0, ntuples=0)
    yield None


def error() -> Any:
    told = FATAL | {pq.DiagnosticField.SEVERITY_NONLOCALIZED: b"ERROR", pq.DiagnosticField.SQLSTATE: b"57014"}
    return SimpleNamespace(status=pq.ExecStatus.FATAL_ERROR, error_field=told.get)


def ended() -> Any:
    return SimpleNamespace(status=pq.ExecStatus.FATAL_ERROR, error_field=FATAL.get)


@pytest.mark.parametrize(
    ("last", "in_commit"), [(COMMIT, True), (Statement("SELECT 1"), False)], ids=["a commit", "another statement"]
)
def test_a_session_that_is_ended_behind_the_last_answer(last: Statement, in_commit: bool) -> None:
    sync = SimpleNamespace(status=pq.ExecStatus.PIPELINE_SYNC)
    link = Connection(Said(*done(), *done(), ended(), None, sync))  # type: ignore[arg-type]
    with pytest.raises(ServerError) as caught:
        next(link.exchange([Statement("SELECT 1"), last]))
    assert caught.value.fatal
    assert caught.value.in_commit is in_commit, "whether the commit was carried out is told by the next attempt"


def test_an_error_before_the_end_of_the_connection_has_ended_it() -> None:
    said = Said(error(), None)
    said.status = pq.ConnStatus.BAD
    link = Connection(said)  # type: ignore[arg-type]
    with pytest.raises(ServerError) as caught:
        next(link.exchange([Statement("SELECT 1")]))
    assert caught.value.fatal


def test_a_connection_whose_socket_libpq_has_closed_is_not_alive() -> None:
    class Gone(Said):
        @property
        def socket(self) -> int:
            raise psycopg.OperationalError("the connection is lost")

        @socket.setter
        def socket(self, value: object) -> None: ...

    assert not PostgresTransport.alive(None, Connection(Gone()))  # type: ignore[arg-type]
