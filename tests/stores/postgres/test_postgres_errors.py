"""Every error with which PostgreSQL answers a statement, provoked on a real server, and what it means.

Those that it gives to who connects are in `test_postgres_hints`, those of a commit in `test_postgres_commit_errors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from leasehold import Client, StoreUnavailable, tables
from leasehold._runtimes.base import finish
from leasehold.stores._sql import plain
from leasehold.stores._sql.transport import Outcome, Statement
from leasehold.stores.postgres.connection import transaction
from leasehold.stores.postgres.connection.errors import (
    AGAIN,
    HINTS,
    LASTING,
    REMEDIES,
    UNLISTED,
    ServerError,
    refused,
)
from leasehold.stores.postgres.statements import script
from leasehold_lab.servers import PgBouncerServer, PostgresServer
from support.patience import until
from support.stores.erring_postgres import RUNTIME, in_a_transaction, server, transport_to
from support.stores.refusals import Case, after, check_nothing_is_done, refusals

__all__ = ["server"]  # pytest finds the fixture here

Provoked = Callable[[PostgresServer], Sequence[StoreUnavailable]]


# --- by a client: it claims a name ---------------------------------------------------------------------------------


def no_rights(server: PostgresServer) -> Sequence[StoreUnavailable]:
    return refusals(server.url.replace("postgres@", "poor@"))


def no_schema(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """Make the tables where there is nowhere to make them."""
    url = server.url.replace("postgres@", "lost@")
    with pytest.raises(StoreUnavailable) as blocking:
        tables.create(url)
    with pytest.raises(StoreUnavailable) as of_asyncio:
        asyncio.run(tables.create_async(url))
    return blocking.value, of_asyncio.value


def no_space(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """In a database of its own the file of the names leads to a device that is always full."""
    server.query("CREATE DATABASE crammed")
    url = server.url.removesuffix("postgres") + "crammed"
    with server.connect(dbname="crammed") as there:
        there.execute(script())
        ((name,),) = there.execute("SELECT pg_relation_filepath('leasehold_name')").fetchall()
    path: Path = server.data / name
    path.rename(path.with_name("aside"))
    path.symlink_to("/dev/full")
    try:
        said = refusals(url)
    finally:
        path.unlink()
        path.with_name("aside").rename(path)
    with Client.from_url(url) as client:
        assert client.inspect("x") is None
        assert client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
    server.query("DROP DATABASE crammed")
    return said


def no_room_for_locks(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """Another session has taken so many locks that there is no room for one more."""
    with Client.from_url(server.url) as client, server.connect() as greedy:
        client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
        with pytest.raises(psycopg.errors.OutOfMemory):
            greedy.execute("SELECT pg_advisory_lock(g) FROM generate_series(1, 1000000) g")
        with pytest.raises(StoreUnavailable) as caught:
            client.lock("x").acquire(timeout=5)
        greedy.execute("SELECT pg_advisory_unlock_all()")  # now, and not when the server sees that we hung up
        return [caught.value]


@contextlib.contextmanager
def row_locked(server: PostgresServer) -> Iterator[None]:
    with server.connect(autocommit=False) as other:
        other.execute("SELECT 1 FROM leasehold_name WHERE name = 'x' FOR UPDATE")
        yield
        other.rollback()


def too_slow(server: PostgresServer) -> Sequence[StoreUnavailable]:
    with row_locked(server):
        return refusals(server.url, within=0.5)


def terminated(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """An operator ends a session in the middle of its transaction."""
    waits = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    over = threading.Event()

    def operator() -> None:
        while not over.is_set():
            server.query(waits)
            time.sleep(0.05)

    thread = threading.Thread(target=operator)
    thread.start()
    try:
        with row_locked(server):
            return refusals(server.url)
    finally:
        over.set()
        thread.join()


def read_only_session(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """Behind a pooler that is said to keep sessions no session is set up as ours are: it writes if it may."""
    server.configure(default_transaction_read_only="on")
    try:
        with PgBouncerServer(server, mode="session") as pooler:
            return refusals(f"{pooler.url}?mode=session&pooler=session")
    finally:
        server.configure(default_transaction_read_only="off")


def standby_behind_a_pooler(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """The connection to the pooler stays, and what stands behind it has become a standby."""
    with PostgresServer() as other, PgBouncerServer(other) as pooler, Client.from_url(pooler.url) as client:
        other.execute(script())
        client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
        other.terminate()
        (other.data / "standby.signal").touch()
        other.start()
        with pytest.raises(StoreUnavailable) as caught:
            client.lock("x").acquire(timeout=5)
        return [caught.value]


def dead_behind_a_pooler(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """The first who asks waits in vain; then the pooler says it at once."""
    with PostgresServer() as other, PgBouncerServer(other) as pooler, pytest.MonkeyPatch.context() as patch:
        other.execute(script())
        patch.setattr(plain, "is_plain", lambda ticket: False)  # a statement alone would be unknown
        with Client.from_url(pooler.url, response_timeout=0.5) as client:
            client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
            other.terminate()
            said = list[StoreUnavailable]()
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as caught:
                    client.lock("x").acquire(timeout=0.5)
                said.append(caught.value)
        assert not said[0].unknown
        return said[1:]


# --- by the transport: what a claim has no cause for, or not at will
# ----------------------------------------------------


def stalled(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """The process is paused in the middle of a transaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "STALL", 0.2)
        return in_a_transaction(server, lambda: time.sleep(0.5))


def moved_row(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """The row that it waits for is moved to another partition meanwhile."""
    server.execute("TRUNCATE parts; INSERT INTO parts VALUES (1)")
    with server.connect(autocommit=False) as other:
        other.execute("UPDATE parts SET x = 2")

        def commit() -> None:
            until(lambda: server.query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
            other.commit()

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            return in_a_transaction(server, "SELECT x FROM parts WHERE x = 1 FOR UPDATE")
        finally:
            thread.join()


def deadlocked(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """Two lock two rows, each in another order; the one who looks for a deadlock first is its victim."""
    lock = "SELECT x FROM pair WHERE x = {} FOR UPDATE"
    with server.connect(autocommit=False) as other:
        other.execute("SET deadlock_timeout = '1min'")
        other.execute(lock.format(2))
        thread = threading.Thread(target=lambda: other.execute(lock.format(1)))

        def cross() -> None:
            thread.start()
            until(lambda: server.query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

        try:
            return in_a_transaction(server, lock.format(1), cross, lock.format(2))
        finally:
            thread.join()
            other.rollback()


def row_kept_locked(server: PostgresServer) -> Sequence[StoreUnavailable]:
    with server.connect(autocommit=False) as other:
        other.execute("SELECT x FROM pair FOR UPDATE")
        shorter = "SELECT set_config('lock_timeout', '50ms', true)"
        return in_a_transaction(server, shorter, "SELECT x FROM pair WHERE x = 1 FOR UPDATE")


def beyond_a_limit(server: PostgresServer) -> Sequence[StoreUnavailable]:
    small = "SELECT set_config('temp_file_limit', '64kB', true), set_config('work_mem', '64kB', true)"
    return in_a_transaction(server, small, "SELECT count(*) FROM generate_series(1, 50000)")


def idle_for_too_long(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """A session of ``mode=session`` that was silent for the length of its lease."""
    with transport_to(server.url) as transport:
        link = finish(transport.session(RUNTIME.now() + 5))
        ends = Statement("SELECT set_config('idle_session_timeout', '50ms', false)")
        finish(transport.run(link.exchange([ends]), RUNTIME.now() + 5))
        until(lambda: not transport.alive(link))
        with pytest.raises(ServerError) as caught:
            finish(transport.run(link.exchange([Statement("SELECT 1")]), RUNTIME.now() + 5))
        assert caught.value.fatal
        transport.drop(link)
        return [refused(transport.where, caught.value)]


PROVOKED = {
    "08P01": Case(dead_behind_a_pooler),
    "0A000": Case(standby_behind_a_pooler),
    "25006": Case(read_only_session),
    "25P03": Case(stalled),
    "3F000": Case(no_schema, Outcome.LASTING),
    "40001": Case(moved_row, Outcome.AGAIN),
    "40P01": Case(deadlocked, Outcome.AGAIN),
    "42501": Case(no_rights, Outcome.LASTING),
    "42P01": Case(
        after("ALTER TABLE leasehold_name RENAME TO aside", "ALTER TABLE aside RENAME TO leasehold_name"),
        Outcome.LASTING,
    ),
    "42703": Case(
        after(
            "ALTER TABLE leasehold_name RENAME COLUMN holder_meta TO aside",
            "ALTER TABLE leasehold_name RENAME COLUMN aside TO holder_meta",
        ),
        Outcome.LASTING,
    ),
    "53100": Case(no_space),
    "53200": Case(no_room_for_locks),
    "53400": Case(beyond_a_limit),
    "55P03": Case(row_kept_locked),
    "57014": Case(too_slow),
    "57P01": Case(terminated),
    "57P05": Case(idle_for_too_long),
}


def test_every_error_of_the_table_is_provoked() -> None:
    at_connect = {hint.code for hint in HINTS.values()} - {""}  # see test_postgres_hints
    assert PROVOKED.keys() | at_connect == REMEDIES.keys() | AGAIN
    assert {code for code, case in PROVOKED.items() if case.outcome is Outcome.AGAIN} == AGAIN
    lasting = {code for code, case in PROVOKED.items() if case.outcome is Outcome.LASTING} | at_connect
    assert {start for start in LASTING if any(code.startswith(start) for code in lasting)} == set(LASTING)


@pytest.mark.parametrize("code", PROVOKED)
def test_the_refused_request_changes_nothing_and_its_error_names_the_remedy(code: str, server: PostgresServer) -> None:
    check_nothing_is_done(server, PROVOKED[code], code, UNLISTED if code in AGAIN else REMEDIES[code])
