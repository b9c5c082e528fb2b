"""PostgreSQL: replies and messages that are lost or late, and connections that are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from postgres_faults import NOISE

from leasehold import AsyncClient, LeaseLost
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both
from support.plugins.leaks import sockets
from support.stores.database_faults import queued, unavailable


@both
def test_the_next_attempt_finds_a_commit_whose_reply_was_lost(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str, way: str, postgres_server: PostgresServer
) -> None:
    proxy, url = proxied
    where = b"COMMIT\0" if way == "steps" else namespace.encode()

    async def body(harness: Harness) -> None:
        client, other = (harness.client(url, namespace=namespace) for _ in range(2))
        for name in "xyz":
            fault = proxy.drop_reply(where=where)
            hold = await client.lock(name).acquire(timeout=5)
            assert hold is not None
            info = await other.inspect(name)
            assert info is not None
            assert [holder.token for holder in info.holders] == [hold.token]
            assert fault.hits == 1
            fault.remove()
            if way == "steps":
                fault = proxy.drop_reply(where=where)
            else:  # this ticket is released by the steps, since its call may still be on its way
                await hold.release()
                refused = "SELECT count(*) FROM leasehold_name WHERE space = %s AND refused <> ''"
                assert postgres_server.query(refused, (namespace.encode(),)) == [("xyz".index(name) + 1,)]
                hold = await client.lock(name).acquire(timeout=5)
                fault = proxy.drop_reply(where=where)
            await hold.release()  # a lost reply to a leave: the repetition finds nothing, and that is no loss
            assert fault.hits == 1
            fault.remove()
            assert await other.inspect(name) is None

    harness.run(body)


@both
def test_a_lost_reply_before_the_commit_means_that_nothing_was_done(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str, by_steps: None
) -> None:
    proxy, url = proxied

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        assert await client.inspect("x") is None  # it is connected; a claim is sent as text the first time
        lost = proxy.drop_reply(0, where=b"FOR UPDATE")
        error = await unavailable(client.lock("x").acquire(timeout=5))
        assert not error.unknown
        assert lost.hits == 2, "on the idle connection, and on a new one"
        assert await client.inspect("x") is None

    harness.run(body)


@both
def test_a_lost_message_costs_no_more_than_the_next_renewal(
    postgres_server: PostgresServer, proxied: tuple[FaultProxy, str], harness: Harness, namespace: str
) -> None:
    proxy, url = proxied
    lease = 1.5

    async def body(harness: Harness) -> None:
        holder, waiter = (harness.client(where, namespace=namespace) for where in (postgres_server.url, url))
        hold = await holder.lock("x").acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: waiter.lock("x", lease=lease).acquire(timeout=20))
        await queued(harness, holder, "x", 1)
        await harness.sleep(0.2)
        lost = proxy.drop(Side.REPLIES, where=b"leasehold_", nth=1)
        start = harness.now()
        await hold.release()
        got = await job.result()
        assert got is not None
        assert harness.now() - start < lease / 3 + NOISE
        assert lost.hits > 0
        lost.remove()
        await got.release()

    harness.run(body)


@both
def test_a_silent_server_is_an_error_within_the_timeout(
    proxied: tuple[FaultProxy, str], harness: Harness, namespace: str, way: str
) -> None:
    """A call may have been carried out. So it is released, which takes as long again."""
    proxy, url = proxied
    takes = 1.0 if way == "steps" else 2.0

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace, response_timeout=1.0)
        hold = await client.lock("x", lease=1.2).acquire(timeout=5)
        assert hold is not None
        silence = proxy.blackhole()
        start = harness.now()
        await unavailable(client.lock("y").acquire(timeout=0.5))
        assert harness.now() - start < takes + NOISE
        await harness.sleep(max(0.0, start + 1.3 - harness.now()))
        assert hold.lost
        silence.remove()
        proxy.cut()
        again = await client.lock("x", lease=1.2).acquire(timeout=5)
        assert again is not None
        assert again.token > hold.token
        await again.release()
        try:
            await hold.release()
        except LeaseLost:
            return
        raise AssertionError("a lost hold was released")

    harness.run(body)


def test_a_cancelled_acquire_does_not_wait_for_a_silent_server(proxied: tuple[FaultProxy, str], namespace: str) -> None:
    proxy, url = proxied

    async def body() -> None:
        from leasehold import AsyncClient

        async with AsyncClient.from_url(url, namespace=namespace) as client:
            async with client.lock("warm"):
                pass
            silence = proxy.blackhole()
            start = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.lock("x").acquire()
            # the transaction's grace, and the leave that may be due
            assert asyncio.get_running_loop().time() - start < 0.2 + 0.5 + 1.0 + NOISE
            silence.remove()
            proxy.cut()

    asyncio.run(body())


def test_a_connection_that_is_being_made_ends_with_the_tasks_of_its_loop(server: PostgresServer) -> None:
    """As `asyncio.run` ends them: all at once. What still refers to them does not keep it open."""

    async def main() -> None:
        before = sockets()
        client = AsyncClient.from_url(server.url, response_timeout=30)
        server.pause()
        try:
            ends, tasks = list[Any](), {asyncio.ensure_future(client.lock("x").acquire())}
            while not sockets() - before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # also those that were to undo it
                for task in tasks:
                    task.cancel()
                ends += await asyncio.gather(*tasks, return_exceptions=True)
            assert any(isinstance(end, asyncio.CancelledError) for end in ends)
            assert not sockets() - before
        finally:
            server.resume()
        await client.close()

    asyncio.run(main())
