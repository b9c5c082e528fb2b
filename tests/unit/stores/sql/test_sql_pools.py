"""The connections of PostgreSQL's and MySQL's transports, without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

pytest.importorskip("psycopg")

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.mysql.connection.pool import Pool
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.errors import cannot_connect
from leasehold.stores.postgres.connection.settings import Settings

SOON = 5.0
"""Seconds after which a call counts as one that never returns."""


class Connection:
    """One that is open until it is closed."""

    open = True

    def close(self) -> None:
        self.open = False

    abort = close


def new_transport() -> PostgresTransport:
    return BlockingTransport(BlockingRuntime(), Settings("h/d"), lambda message: None, lambda: None)


async def no_connect(within: float) -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize(
    "make", [new_transport, lambda: Pool(BlockingRuntime(), no_connect, "h/d")], ids=["postgresql", "mysql"]
)
def test_a_connection_that_the_collector_drops_in_the_middle_of_another_call_is_closed(
    make: Callable[[], Any],
) -> None:
    """A coroutine of a closed event loop drops its connection as it is collected."""
    connection, drops = Connection(), make()

    def work() -> None:
        with drops._mutex:
            drops.drop(connection)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive(), "its thread waits for itself"
    assert not connection.open


async def nothing(tx: object) -> None:
    """Use a connection for nothing."""


@pytest.mark.parametrize("closed", [False, True])
def test_a_connection_that_comes_back_as_its_client_is_closed_is_closed(
    closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, transport = Connection(), new_transport()
    pool = transport._pool
    give = pool.give

    async def fresh(*_: object) -> Connection:
        return connection

    def late(it: Any) -> Any:
        """Give it back a moment after the check whether the client is closed."""
        if closed:
            finish(transport.close())
        return give(it)

    monkeypatch.setattr(transport, "_fresh", fresh)
    monkeypatch.setattr(pool, "give", late)
    finish(transport._on_connection(nothing, transport._runtime.now() + SOON, pool))
    assert connection.open is not closed


def test_a_renewal_whose_own_connection_is_refused_borrows_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open one. It goes back to where it was: another caller would find the server full, too."""
    dead, there, transport = Connection(), Connection(), new_transport()
    dead.open = False
    transport._pool.give(there)  # type: ignore[arg-type]
    transport._pool.give(dead)  # type: ignore[arg-type]

    async def refuse(*_: object) -> NoReturn:
        raise cannot_connect("h/d", "FATAL:  sorry, too many clients already")

    monkeypatch.setattr(transport, "connect", refuse)
    monkeypatch.setattr(transport, "alive", lambda connection: True)
    for _ in range(2):
        finish(transport.transact(nothing, within=SOON, reserved=True))
    assert [transport._pool.take()] == [there]
    with pytest.raises(StoreUnavailable, match="max_connections"):
        finish(transport.transact(nothing, within=SOON, reserved=True))
    with pytest.raises(StoreUnavailable, match="max_connections"):
        finish(transport.transact(nothing, within=SOON))
