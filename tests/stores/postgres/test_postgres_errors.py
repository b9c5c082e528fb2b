"""Every error with which PostgreSQL answers a statement or a COMMIT, provoked on a real server, and what it means.

Those that it gives to who connects are in `test_postgres_hints`. One code is nobody's but a trigger's that was told to
raise it: 40003, which the server itself never gives; the standard says that it means "unknown".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from leasehold import Client, StoreUnavailable, tables
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores._sql.transport import Outcome, Refused, Statement
from leasehold.stores.postgres.connection import settings, transaction
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.errors import (
    AGAIN,
    HINTS,
    LASTING,
    REMEDIES,
    UNKNOWN_IN_COMMIT,
    UNLISTED,
    ServerError,
    refused,
)
from leasehold.stores.postgres.statements import script
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PgBouncerServer, PostgresServer
from support.flavors import both
from support.patience import until
from support.stores.refusals import MARK, Case, after, check_nothing_is_done, refusals, rolled_back

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

Provoked = Callable[[PostgresServer], Sequence[StoreUnavailable]]


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[PostgresServer]:
    with PostgresServer(config=SETTINGS) as running:
        outlive.add(running.pid)
        running.execute(script() + TABLES)
        running.query("CHECKPOINT")
        with (running.data / running.query("SELECT pg_relation_filepath('broken')")[0][0]).open("ab") as file:
            file.write(b"x" * 8192)
        yield running


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
    """In a database of its own the file of the entries leads to a device that is always full."""
    server.query("CREATE DATABASE crammed")
    url = server.url.removesuffix("postgres") + "crammed"
    with server.connect(dbname="crammed") as there:
        there.execute(script())
        ((name,),) = there.execute("SELECT pg_relation_filepath('leasehold_entry')").fetchall()
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
    """Somebody has taken so many locks that there is no room for another."""
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
    with PostgresServer() as other, PgBouncerServer(other) as pooler:
        other.execute(script())
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


def stalled(server: PostgresServer) -> Sequence[StoreUnavailable]:
    """The process stands still in the middle of a transaction."""
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
    """A session of ``mode=session`` of which nothing was heard for the length of its lease."""
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
        after("ALTER TABLE leasehold_entry RENAME TO aside", "ALTER TABLE aside RENAME TO leasehold_entry"),
        Outcome.LASTING,
    ),
    "42703": Case(
        after(
            "ALTER TABLE leasehold_entry RENAME COLUMN meta TO aside",
            "ALTER TABLE leasehold_entry RENAME COLUMN aside TO meta",
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
def test_nothing_is_done_and_it_says_what_to_do(code: str, server: PostgresServer) -> None:
    check_nothing_is_done(server, PROVOKED[code], code, UNLISTED if code in AGAIN else REMEDIES[code])


# --- in answer to a COMMIT -----------------------------------------------------------------------------------------


IN_COMMIT = {
    "40003": "RAISE EXCEPTION 'as told' USING ERRCODE = '40003'",
    "53200": "PERFORM pg_advisory_xact_lock(g) FROM generate_series(1, 1000000) g",
    "57014": "PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(5)",
    "57P01": "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5)",
    "58P01": "PERFORM pg_read_file('nowhere')",
    "XX001": "PERFORM count(*) FROM broken",
}
"""What a trigger does that runs in the COMMIT, and the error with which that ends."""


def at_rest(server: PostgresServer) -> bool:
    """Tell whether nobody's statement is under way: one that has taken every lock keeps even newcomers out."""
    try:
        return not server.query(
            "SELECT 1 FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
        )
    except psycopg.OperationalError:
        return False


@contextlib.contextmanager
def in_commit(server: PostgresServer, table: str, does: str, times: int = 10**9) -> Iterator[None]:
    """Let the commit of a transaction that wrote into the table run this, so often."""
    server.execute(
        f"""
        SET synchronous_commit = local;
        ALTER SEQUENCE failures RESTART;
        CREATE OR REPLACE FUNCTION in_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN {does}; END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER in_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION in_commit();
        """
    )
    try:
        yield
    finally:
        until(lambda: at_rest(server))  # a client that has given up does not wait for its statement's end
        server.execute(f"SET synchronous_commit = local; DROP TRIGGER in_commit ON {table}")


def test_every_prefix_of_the_table_is_provoked() -> None:
    codes = {*IN_COMMIT, "08P01"}  # of a pooler, see below
    assert {start for start in UNKNOWN_IN_COMMIT if any(code.startswith(start) for code in codes)} == set(
        UNKNOWN_IN_COMMIT
    )


KEEPS_EVERY_LOCK = """
    FOR g IN 1..1000000 LOOP
        BEGIN PERFORM pg_advisory_xact_lock(g); EXCEPTION WHEN out_of_memory THEN EXIT; END;
    END LOOP;
    PERFORM pg_sleep(1.5)
"""
"""What the 53200 of the table does in passing, for longer."""


def test_the_trigger_is_removed_even_if_its_client_gave_up_before_the_server(server: PostgresServer) -> None:
    with Client.from_url(server.url, response_timeout=0.5) as client:
        with in_commit(server, "leasehold_entry", KEEPS_EVERY_LOCK), pytest.raises(StoreUnavailable):
            client.lock("x").acquire(timeout=0.5)
        assert server.query("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal") == []


@pytest.mark.parametrize("code", IN_COMMIT)
def test_an_error_of_the_commit_itself_is_unknown(code: str, server: PostgresServer) -> None:
    with in_commit(server, "mark", IN_COMMIT[code]):
        (error,) = in_a_transaction(server)
    assert isinstance(error, Refused)
    assert error.code == code, error
    assert error.outcome is Outcome.UNKNOWN
    assert error.unknown
    assert server.query("SELECT count(*) FROM mark") == [(0,)]


@both
@pytest.mark.parametrize("code", IN_COMMIT)
def test_an_acquire_whose_commit_fails_is_repeated(code: str, server: PostgresServer, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url)
        with in_commit(server, "leasehold_entry", IN_COMMIT[code], times=1):
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            assert server.query("SELECT token FROM leasehold_entry") == [(hold.token,)]
            assert await hold.release()

    harness.run(body)


@pytest.mark.parametrize("code", IN_COMMIT)
def test_an_acquire_whose_commit_fails_repeatedly_is_unknown(code: str, server: PostgresServer) -> None:
    with Client.from_url(server.url, response_timeout=0.5) as client:
        with in_commit(server, "leasehold_entry", IN_COMMIT[code]):
            with pytest.raises(StoreUnavailable) as caught:
                client.lock("x").acquire(timeout=0.5)
            assert caught.value.unknown
        assert client.inspect("x") is None


def test_an_error_of_the_commit_that_is_not_listed_is_not_applied(server: PostgresServer) -> None:
    """What a constraint refuses in the commit is rolled back, and a deadlock there is tried again."""
    for code, outcome in (("23514", Outcome.NOT_APPLIED), ("40P01", Outcome.AGAIN), ("42501", Outcome.LASTING)):
        with in_commit(server, "mark", f"RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'"):
            (error,) = in_a_transaction(server)
        assert isinstance(error, Refused)
        assert error.code == code
        assert error.outcome is outcome
        assert not error.unknown


def killed(server: PostgresServer, where: str) -> None:
    """Kill the process that waits there, as a crash does."""
    waits = f"SELECT pid FROM pg_stat_activity WHERE wait_event = '{where}'"
    until(lambda: server.query(waits))
    os.kill(server.query(waits)[0][0], signal.SIGKILL)


def test_a_crash_in_a_commit_is_unknown_with_and_without_a_pooler() -> None:
    """Without a pooler the connection closes, and the server's last words are a warning, not an answer.

    A pooler says so, and loses what was answered before: here the commit was carried out, and waits for a standby.
    """
    with PostgresServer() as server, PgBouncerServer(server) as pooler:
        server.execute(script() + "CREATE SEQUENCE failures; CREATE TABLE mark (x int)")
        for url, event, written in ((server.url, "PgSleep", 0), (pooler.url, "SyncRep", 1)):
            if written:
                server.configure(synchronous_standby_names="nobody")
            broken = in_commit(server, "mark", "PERFORM pg_sleep(10)", times=0 if written else 1)
            with broken, transport_to(url) as transport:
                thread = threading.Thread(target=killed, args=(server, event))
                thread.start()
                with pytest.raises(StoreUnavailable) as caught:
                    finish(transport.transact(lambda tx: tx.commit(MARK), within=8.0))
                thread.join()
                until(lambda before=written: server.log().count("reinitializing") > before)
                until(server._ready)
                assert server.query("SELECT count(*) FROM mark") == [(written,)]
            assert caught.value.unknown
            assert isinstance(caught.value, Refused) is (url == pooler.url)
        assert isinstance(caught.value, Refused)
        assert caught.value.code == "08P01"
        assert caught.value.outcome is Outcome.UNKNOWN


@both
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooler"])
def test_an_unconfirmed_commit_is_found_by_the_repetition(
    server: PostgresServer, harness: Harness, pooled: bool
) -> None:
    """It waits for a standby, which nobody sees, when its session is ended."""
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    async def body(harness: Harness, url: str) -> None:
        client = harness.client(url)
        assert await (await client.lock("x").acquire(timeout=5)).release()
        server.configure(synchronous_standby_names="nobody")
        try:
            job = harness.spawn(lambda: client.lock("x").acquire(timeout=10))
            end = harness.now() + 5
            while not server.query(waits):
                assert harness.now() < end
                await harness.sleep(0.01)
            ((pid,),) = server.query(waits)
            server.query(f"SELECT pg_terminate_backend({pid}, 5000)")
            ((token,),) = server.query("SELECT token FROM leasehold_entry")
        finally:
            server.configure(synchronous_standby_names="")
        hold = await job.result()
        assert hold is not None
        assert hold.token == token  # its own grant was found
        assert await hold.release()

    with PgBouncerServer(server) if pooled else contextlib.nullcontext() as pooler:
        harness.run(lambda harness: body(harness, pooler.url if pooler else server.url))
