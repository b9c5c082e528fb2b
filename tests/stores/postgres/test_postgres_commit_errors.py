"""Every error with which PostgreSQL answers a COMMIT, provoked on a real server, and what it means.

One code is nobody's but a trigger's that was told to raise it: 40003, which the server itself never gives; the standard
says that it means "unknown".
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from leasehold import Client, StoreUnavailable
from leasehold._runtimes.base import finish
from leasehold.stores._sql.transport import Outcome, Refused, Statement
from leasehold.stores.postgres.connection.errors import UNKNOWN_IN_COMMIT
from leasehold.stores.postgres.statements import script
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PgBouncerServer, PostgresServer
from support.flavors import both
from support.patience import until
from support.stores.erring_postgres import in_a_transaction, server, transport_to
from support.stores.refusals import MARK

__all__ = ["server"]  # pytest finds the fixture here

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
    """Return whether no statement is under way: one that has taken every lock keeps even new sessions out."""
    try:
        return not server.query(
            "SELECT 1 FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
        )
    except psycopg.OperationalError:
        return False


HELD = "NEW.holder <> ''"
"""Of a name: it has a holder."""


@contextlib.contextmanager
def in_commit(server: PostgresServer, table: str, does: str, times: int = 10**9, when: str = "true") -> Iterator[None]:
    """Let the commit of a transaction that wrote such a row into the table run this, so often."""
    server.execute(
        f"""
        SET synchronous_commit = local;
        ALTER SEQUENCE failures RESTART;
        CREATE OR REPLACE FUNCTION in_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN {does}; END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER in_commit AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION in_commit();
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
        with in_commit(server, "leasehold_name", KEEPS_EVERY_LOCK, when=HELD), pytest.raises(StoreUnavailable):
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
        assert await (await client.lock("x").acquire(timeout=5)).release()  # now there is a row
        with in_commit(server, "leasehold_name", IN_COMMIT[code], times=1, when=HELD):
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            assert server.query("SELECT holder_token FROM leasehold_name WHERE holder <> ''") == [(hold.token,)]
            assert await hold.release()

    harness.run(body)


@pytest.mark.parametrize("code", IN_COMMIT)
def test_an_acquire_whose_commit_fails_repeatedly_is_unknown(code: str, server: PostgresServer) -> None:
    with Client.from_url(server.url, response_timeout=0.5) as client:
        assert client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]  # now there is a row
        with in_commit(server, "leasehold_name", IN_COMMIT[code], when=HELD):
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


@pytest.mark.parametrize(
    ("code", "number"), {"40001": 0, "40P01": 0, "23514": 0, "42501": None, "25006": None, "57014": "unknown"}.items()
)
def test_what_an_error_of_a_statement_alone_means(code: str, number: int | str | None, server: PostgresServer) -> None:
    """In its commit. Nothing is changed; None: the reason lasts."""
    with (
        in_commit(server, "mark", f"RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'"),
        transport_to(server.url) as transport,
    ):
        try:
            found: int | str | None = finish(transport.transact(lambda tx: tx.alone(MARK), within=8.0))
        except StoreUnavailable as error:
            found = "unknown" if error.unknown else "not applied"
    assert found == number
    assert server.query("SELECT count(*) FROM mark") == [(0,)]


def test_an_answer_of_a_pooler_that_has_lost_its_server_is_unknown(server: PostgresServer) -> None:
    """It is not fatal, and comes before anything that the server answered."""
    server.execute(
        "CREATE OR REPLACE FUNCTION told() RETURNS int LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '08P01'; END $$"
    )
    with transport_to(server.url) as transport, pytest.raises(StoreUnavailable) as caught:
        finish(transport.transact(lambda tx: tx.alone(Statement("SELECT told()")), within=8.0))
    assert caught.value.unknown


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
    """It waits for a standby that does not exist, when its session is ended."""
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
            ((token,),) = server.query("SELECT holder_token FROM leasehold_name WHERE holder <> ''")
        finally:
            server.configure(synchronous_standby_names="")
        hold = await job.result()
        assert hold is not None
        assert hold.token == token  # its own grant was found
        assert await hold.release()

    with PgBouncerServer(server) if pooled else contextlib.nullcontext() as pooler:
        harness.run(lambda harness: body(harness, pooler.url if pooler else server.url))
