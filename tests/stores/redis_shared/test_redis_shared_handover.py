"""Hand-overs among many readers, writers and permits on Redis: together, in order, at a constant cost."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from leasehold import AsyncClient
from leasehold_lab.servers import RedisServer
from support.flavors import both
from support.stores.crowds import CLIENTS, clients_of, commands, queued


@pytest.fixture(scope="module")
def server():
    """A server whose command statistics no other test changes."""
    with RedisServer() as running:
        yield running


async def crowd(server, namespace, readers, writers=5):
    """Let readers and writers queue behind a writer, a writer after each share of the readers; then open the door.

    Returns:
        The largest number of readers inside at once, calls of scripts and commands inside them per hold, and seconds.

    """
    inside = {"read": 0, "write": 0}
    most = 0

    async def work(side, what):
        nonlocal most
        async with side:
            inside[what] += 1
            assert inside["write"] == 0 or inside == {"read": 0, "write": 1}
            most = max(most, inside["read"])
            await asyncio.sleep(0.02 if what == "read" else 0)
            inside[what] -= 1

    async with AsyncExitStack() as stack:
        clients = await clients_of(stack, server, namespace)
        locks = [client.rw_lock("x") for client in clients]
        first = await locks[0].writer().acquire()
        tasks = []
        for i in range(readers):
            tasks.append(asyncio.ensure_future(work(locks[i % CLIENTS].reader(), "read")))
            if i % (readers // writers) == readers // writers - 1:
                await queued(clients[0], "x", len(tasks))
                tasks.append(asyncio.ensure_future(work(locks[i % CLIENTS].writer(), "write")))
                await queued(clients[0], "x", len(tasks))
        await asyncio.sleep(0.1)  # all have subscribed and asked once more
        server.reset_stats()
        start = time.monotonic()
        await first.release()
        await asyncio.gather(*tasks)
        took = time.monotonic() - start
        counts = commands(server)
    calls = counts["evalsha"]
    return most, calls / len(tasks), (sum(counts.values()) - calls) / len(tasks), took


def test_readers_enter_together_at_a_cost_that_does_not_grow(server, namespace, record_property):
    """Calls by clients, and commands inside scripts, per hold: with 20 readers, with 200, with 600."""
    costs = {n: asyncio.run(crowd(server, f"{namespace}-{n}", n)) for n in (20, 200, 600)}
    print(costs)
    for readers, (most, calls, inside, _) in costs.items():
        record_property(f"{readers} readers: calls, commands inside", (calls, inside))
        assert most == readers // 5  # all up to the next writer, together
        assert calls <= 1.1  # one release each; no waiter asked again
        assert inside <= costs[20][2] * 1.1 + 1


@pytest.mark.parametrize("holders", [10, 1_000])
def test_the_cost_of_an_acquire_does_not_depend_on_the_number_of_holders(server, namespace, holders):
    async def cost():
        async with AsyncClient.from_url(server.url, namespace=f"{namespace}-{holders}") as client:
            partner = client.semaphore("x", 2_000)
            held = [await partner.acquire() for _ in range(holders)]
            server.reset_stats()
            one = await partner.acquire()
            await one.release()
            counts = commands(server)
            for hold in held:
                await hold.release()
        return counts["evalsha"], sum(counts.values()) - counts["evalsha"]

    calls, inside = asyncio.run(cost())
    print(holders, "holders:", inside, "commands for a claim and a leave")
    assert calls == 2
    assert inside <= 50


def test_all_permits_are_granted_in_order(server, namespace):
    async def run():
        async with AsyncExitStack() as stack:
            clients = await clients_of(stack, server, namespace)
            first = await clients[0].semaphore("x", 100).acquire(100)
            order = []

            async def work(i):
                async with clients[i % CLIENTS].semaphore("x", 100).permits(1 + i % 7) as hold:
                    order.append((hold.token, i))

            tasks = []
            for i in range(200):
                tasks.append(asyncio.ensure_future(work(i)))
                await queued(clients[0], "x", i + 1)
            await asyncio.sleep(0.1)
            server.reset_stats()
            await first.release()
            await asyncio.gather(*tasks)
            counts = commands(server)
            assert [i for _, i in sorted(order)] == list(range(200))
            assert await clients[0].semaphore("x", 100).available() == 100
            return counts

    counts = asyncio.run(run())
    print(counts["evalsha"], counts["publish"])
    assert counts["publish"] == 400  # one message each, and before it a word by which those who listen are counted
    assert counts["evalsha"] <= 203


@both
def test_waiters_cost_no_commands_while_they_wait(server, namespace, harness):
    """Readers behind a writer, for three seconds of a lease of thirty: not one command."""

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            hold = await others.rw_lock("x").writer().acquire()
            jobs = [harness.spawn(lambda: locks.rw_lock("x").reader().acquire(timeout=10)) for _ in range(20)]
            await harness.sleep(1.0)
            server.reset_stats()
            await harness.sleep(3.0)
            assert sum(commands(server).values()) == 0
            await hold.release()
            held = [await job.result() for job in jobs]
            assert len((await others.inspect("x")).holders) == 20
            for got in held:
                await got.release()

    harness.run(body)
