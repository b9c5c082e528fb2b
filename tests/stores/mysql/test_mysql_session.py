"""MySQL with mode=session: replies of GET_LOCK that are lost or empty, holders that are cut off, refusals."""

from __future__ import annotations

from contextlib import suppress

import pytest
from mysql_faults import NOISE, comes_true, make_tables, through

from leasehold import LeaseLost, Unsupported
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer
from support.flavors import both


@both
@pytest.mark.parametrize("nth", [1, 2], ids=["without waiting", "after a wait"])
def test_a_lost_reply_of_get_lock(
    server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness, nth: int
) -> None:
    async def body(harness: Harness) -> None:
        other = harness.client(f"{server.url}?mode=session", namespace=namespace)
        client = harness.client(through(server, proxy, "?mode=session"), namespace=namespace)
        hold = await other.lock("x").acquire(timeout=5) if nth == 2 else None
        fault = proxy.drop_reply(nth, where=b"GET_LOCK")
        job = harness.spawn(lambda: client.lock("x").acquire(timeout=10))
        if hold is not None:
            await comes_true(harness, lambda: fault.hits)
            await hold.release()
        got = await job.result()
        assert got is not None
        assert fault.hits == 1
        assert await got.release()
        assert await (await other.lock("x").acquire(timeout=5)).release()

    harness.run(body)


@both
def test_an_interrupted_wait_is_no_grant(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    """KILL QUERY makes GET_LOCK answer NULL, or fail."""

    async def body(harness: Harness) -> None:
        holder = harness.client(f"{server.url}?mode=session", namespace=namespace)
        waiter = harness.client(f"{server.url}?mode=session", namespace=namespace)
        hold = await holder.lock("x").acquire(timeout=5)
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        find = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE '%GET_LOCK%' AND STATE LIKE 'User%'"
        for _ in range(3):
            await comes_true(harness, lambda: server.query(find))
            server.query(f"KILL QUERY {server.query(find)[0][0]:d}")
            await harness.sleep(0.1)
        assert not job.done()
        hold.raise_if_lost()
        await hold.release()
        got = await job.result()
        assert got.token > hold.token
        await got.release()

    harness.run(body)


@both
def test_a_holder_that_is_cut_off_blocks_others_for_its_lease(
    server: MariaDBServer, proxy: FaultProxy, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        holder = harness.client(through(server, proxy, "?mode=session"), namespace=namespace, response_timeout=0.5)
        other = harness.client(f"{server.url}?mode=session", namespace=namespace)
        hold = await holder.lock("x", lease=2).acquire(timeout=5)
        proxy.blackhole()
        start = harness.now()
        got = await other.lock("x").acquire(timeout=20)
        assert got is not None
        assert harness.now() - start < 2 + 1 + NOISE
        assert hold.lost
        await got.release()
        proxy.heal()

    harness.run(body)


@both
def test_both_modes_for_one_name_are_refused(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        leases = harness.client(server.url, namespace=namespace)
        sessions = harness.client(f"{server.url}?mode=session", namespace=namespace)
        hold = await leases.lock("x").acquire(timeout=5)
        with pytest.raises(Exception, match="mode=session"):
            await sessions.lock("x").acquire(timeout=5)
        await hold.release()
        got = await sessions.lock("x").acquire(timeout=5)
        assert got.token > hold.token - 10**9  # each mode has its own tokens, by the same clock
        await got.release()

    harness.run(body)


@both
def test_what_a_session_cannot_promise_is_refused(server: MariaDBServer, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"{server.url}?mode=session", namespace=namespace)
        for make in (
            lambda: client.lock("x", fair=True),
            lambda: client.lock("x", lock_delay=1.0),
            lambda: client.rw_lock("x"),
            lambda: client.semaphore("x", 3),
        ):
            with pytest.raises(Unsupported):
                make()

    harness.run(body)


@both
def test_after_a_restart_the_session_of_another_that_has_its_number_is_left_alone(
    namespace: str, harness: Harness
) -> None:
    """The server begins again to count its connections. The release of a lost hold ended whichever had the number."""
    with MariaDBServer() as mine, FaultProxy(mine.port) as between:
        make_tables(mine)

        async def body(harness: Harness) -> None:
            client = harness.client(through(mine, between, "?mode=session"), namespace=namespace)
            hold = await client.lock("x", lease=60).acquire(timeout=5)
            number = max(mine.sessions())
            between.stop()
            mine.restart()
            others = [mine.connect(user="app")]
            while others[-1].thread_id() < number:
                others.append(mine.connect(user="app"))
            assert number in mine.sessions()
            between.forget()
            between.start()
            with suppress(LeaseLost):  # or the outcome is unknown
                await hold.release()
            asks = (b"leasehold_session", b"KILL")
            await comes_true(harness, lambda: any(one in between.seen() for one in asks), 20.0)
            await harness.sleep(0.3)
            assert number in mine.sessions()
            for other in others:
                other.close()

        harness.run(body)


@both
def test_the_longest_namespace(server: MariaDBServer, harness: Harness) -> None:
    """Rows of this mode have one byte more in that column; an error in place of a failure of each acquire."""

    async def body(harness: Harness) -> None:
        for mode, longest in (("", 512), ("?mode=session", 511)):
            client = harness.client(server.url + mode, namespace="n" * longest)
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            assert [info.name for info in await client.holds()] == ["x"]
            await hold.release()
        with pytest.raises(ValueError, match="with mode=session a namespace has at most 511 bytes, this one has 512"):
            harness.client(f"{server.url}?mode=session", namespace="ä" * 256)

    harness.run(body)
