"""A thousand waiters, ten thousand hand-overs: none lost, in order, at a constant cost; and waits without commands."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from leasehold_lab.servers import RedisServer
from support.flavors import both
from support.stores.crowds import CLIENTS, clients_of, commands, queued

WAITERS = 1_000
HANDOVERS = 10_000


@pytest.fixture(scope="module")
def server():
    """A server whose command statistics no other test changes."""
    with RedisServer() as running:
        yield running


# --- many ------------------------------------------------------------------------------------------------------


async def crowd(server, namespace, *, fair, waiters, rounds):
    """Let each of many tasks acquire the lock so many times; return the holds in order, and the commands."""
    holds, inside = [], 0

    async def work(locks, i):
        nonlocal inside
        for turn in range(rounds):
            async with locks.lock("x", fair=fair, meta=str(i)) as hold:
                inside += 1
                assert inside == 1
                holds.append((i, turn, hold.token))
                inside -= 1

    async with AsyncExitStack() as stack:
        clients = await clients_of(stack, server, namespace)
        first = await clients[0].lock("x").acquire()
        tasks = [asyncio.ensure_future(work(clients[i % CLIENTS], i)) for i in range(waiters)]
        await queued(clients[0], "x", waiters)
        order = [contender.meta for contender in (await clients[0].inspect("x")).waiters]
        server.reset_stats()
        start = time.monotonic()
        await first.release()
        await asyncio.gather(*tasks)
        took = time.monotonic() - start
        stats = commands(server)
    return holds, took, stats, order


def check(holds, waiters, rounds):
    tokens = [token for _, _, token in holds]
    assert len(holds) == waiters * rounds
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("fair", [False, True], ids=["any order", "fair"])
def test_a_thousand_waiters_and_ten_thousand_hand_overs(server, namespace, fair, record_property):
    holds, took, stats, order = asyncio.run(
        crowd(server, namespace, fair=fair, waiters=WAITERS, rounds=HANDOVERS // WAITERS)
    )
    check(holds, WAITERS, HANDOVERS // WAITERS)
    rate = len(holds) / took
    record_property("hand-overs per second", rate)
    record_property("calls per hand-over", stats["evalsha"] / len(holds))
    print(f"{rate:.0f} hand-overs/s, {stats['evalsha'] / len(holds):.2f} calls each")
    if fair:
        assert [str(i) for i, turn, _ in holds if turn == 0] == order  # as people saw the queue
        for turn in range(1, HANDOVERS // WAITERS):  # no waiter has a second turn before all had the first
            assert {i for i, _, _ in holds[turn * WAITERS : (turn + 1) * WAITERS]} == set(range(WAITERS))


def test_the_commands_of_a_hand_over_do_not_grow_with_the_waiters(server, namespace):
    """Calls by clients and commands inside scripts, per hand-over, with 10, 100 and 1,000 waiters; a turn is both."""

    async def cost(waiters):
        async def work(locks, turns):
            for _ in range(turns):
                async with locks.lock("x"):
                    pass

        async with AsyncExitStack() as stack:
            clients = await clients_of(stack, server, f"{namespace}-{waiters}")
            first = await clients[0].lock("x").acquire()
            turns = max(2, 300 // waiters)
            tasks = [asyncio.ensure_future(work(clients[i % CLIENTS], turns)) for i in range(waiters)]
            await queued(clients[0], "x", waiters)
            await asyncio.sleep(0.1)  # all have subscribed and asked once more
            server.reset_stats()
            await first.release()
            await asyncio.gather(*tasks)
            counts = commands(server)
        calls = counts["evalsha"] / (waiters * turns)
        return calls, (sum(counts.values()) - counts["evalsha"]) / (waiters * turns)

    costs = {waiters: asyncio.run(cost(waiters)) for waiters in (10, 100, 1_000)}
    print(costs)
    for calls, inside in costs.values():
        assert calls <= 2.1  # a claim and a leave each
        assert inside <= costs[10][1] * 1.2 + 1


async def drain(jobs):
    """Let each waiter acquire the lock and release it."""
    while jobs:
        for job in [job for job in jobs if await job.join(0.002)]:
            jobs.remove(job)
            got = await job.result()
            if got is not None:
                await got.release()


# --- idle ------------------------------------------------------------------------------------------------------


@both
def test_waiters_cost_no_commands_while_they_wait(server, namespace, harness):
    """Fifty waiters of one client, for three seconds of a lease of thirty: not one command."""

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            hold = await others.lock("x").acquire()
            jobs = [harness.spawn(lambda: locks.lock("x").acquire(timeout=5)) for _ in range(50)]
            await harness.sleep(1.5)
            server.reset_stats()
            await harness.sleep(3.0)
            assert sum(commands(server).values()) == 0
            await hold.release()
            await drain(jobs)

    harness.run(body)


@both
def test_waiters_retry_only_once_per_lease(server, namespace, harness):
    """In each lease a client renews its waiters three times, and one retries when the holder's lease seems over."""
    lease, leases, waiters = 1.8, 2, 20

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            hold = await others.lock("x", lease=lease).acquire()
            jobs = [harness.spawn(lambda: locks.lock("x", lease=lease).acquire(timeout=6)) for _ in range(waiters)]
            await harness.sleep(0.5)
            server.reset_stats()
            await harness.sleep(leases * lease)
            calls = commands(server).get("evalsha", 0)
            holders, watchers = 3 * leases + 1, 1.5 * leases + 1
            print(calls, "calls")
            assert calls <= holders + 3 * (3 * leases + 1) + watchers  # places are renewed in up to three batches
            await hold.release()
            await drain(jobs)

    harness.run(body)


# --- a hold that ends by itself --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("terms", [{"renew": False}, {"max_hold": 0.1}], ids=["fixed", "capped"])
def test_an_unrenewed_hold_delays_waiters_of_its_client_for_its_lease_at_most(server, namespace, harness, terms):
    """The holder was the waiter that watched; the next waiter of the client must watch the new holder."""
    lease = 1.0

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            hold = await others.lock("x").acquire()
            first = harness.spawn(lambda: locks.lock("x", lease=lease, **terms).acquire(timeout=10))
            await harness.sleep(0.2)
            second = harness.spawn(lambda: locks.lock("x").acquire(timeout=20))
            await harness.sleep(0.2)
            began = time.monotonic()
            await hold.release()
            expired = await first.result()
            successor = await second.result()
            assert time.monotonic() - began < 1.5 * lease + 0.5  # a third of the second's lease is 10 s
            assert expired.lost
            assert successor.token > expired.token
            await successor.release()

    harness.run(body)
