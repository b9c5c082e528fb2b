"""PostgreSQL: servers that restart, stop, stand by, are full, or end a deadlock."""

from __future__ import annotations

import pytest
from postgres_faults import NOISE

from leasehold.stores.postgres.connection.errors import (
    AGAIN,
)
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.stores.database_faults import queued, unavailable


@both
@pytest.mark.parametrize("crash", [False, True], ids=["in order", "crash"])
def test_a_waiter_tolerates_a_restart(server: PostgresServer, harness: Harness, crash: bool) -> None:
    async def body(harness: Harness) -> None:
        holder, waiter = harness.client(server.url), harness.client(server.url)
        hold = await holder.lock("x", lease=20.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x", lease=20.0).acquire(timeout=40))
        await queued(harness, holder, "x", 1)
        server.restart(crash=crash)
        await hold.renew()
        await hold.release()
        got = await job.result()
        assert got is not None
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_a_stopped_server_costs_only_the_hold(server: PostgresServer, harness: Harness, way: str) -> None:
    takes = 1.0 if way == "steps" else 2.0  # a call may have been carried out, so it is released

    async def body(harness: Harness) -> None:
        client = harness.client(server.url, response_timeout=1.0)
        hold = await client.lock("x", lease=1.0).acquire(timeout=5)
        assert hold is not None
        server.pause()
        start = harness.now()
        error = await unavailable(client.lock("y").acquire(timeout=0.2))
        assert harness.now() - start < takes + NOISE
        assert "did not answer" in str(error) or "timed out" in str(error)
        await harness.sleep(max(0.0, start + 1.1 - harness.now()))
        assert hold.lost
        server.resume()
        again = await client.lock("x").acquire(timeout=10)
        assert again is not None
        assert again.token > hold.token
        await again.release()

    harness.run(body)


@both
def test_a_standby_is_refused_and_a_read_only_default_is_not(server: PostgresServer, harness: Harness) -> None:
    server.configure(default_transaction_read_only="on")

    async def read_only(harness: Harness) -> None:
        hold = await harness.client(server.url).lock("x").acquire(timeout=5)
        assert hold is not None
        await hold.release()

    async def standby(harness: Harness) -> None:
        error = await unavailable(harness.client(server.url).lock("x").acquire(timeout=1))
        assert "standby" in str(error)
        assert "target_session_attrs" in str(error)

    harness.run(read_only)
    server.terminate()
    (server.data / "standby.signal").touch()
    server.start()
    harness.run(standby)


@both
@pytest.mark.parametrize(
    ("code", "words"), [("53100", "disk is full"), ("53200", "out of memory"), ("25006", "read-only")]
)
def test_a_server_that_cannot_write_is_a_clear_error_that_applies_nothing(
    server: PostgresServer, harness: Harness, code: str, words: str
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url)
        failing(server, code)
        error = await unavailable(client.lock("x").acquire(timeout=1))
        assert words in str(error)
        assert not error.unknown
        server.execute("DROP TRIGGER failing ON leasehold_name")
        assert await client.inspect("x") is None

    harness.run(body)


@both
@pytest.mark.parametrize("code", sorted(AGAIN))
def test_a_deadlock_is_tried_again(server: PostgresServer, harness: Harness, code: str) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(server.url)
        failing(server, code, times=2)
        hold = await client.lock("x").acquire(timeout=5)
        assert hold is not None
        await hold.release()

    harness.run(body)


def failing(server: PostgresServer, code: str, times: int = 10**9) -> None:
    """Let the writing of a holder fail with this SQLSTATE, so often."""
    server.execute(
        f"""
        CREATE SEQUENCE IF NOT EXISTS failures;
        CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER failing BEFORE UPDATE ON leasehold_name FOR EACH ROW EXECUTE FUNCTION fail();
        """
    )
