"""Redlock where all goes well, or as well as it can: rounds counted, waiting, tokens, who may be a node."""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported
from leasehold.model import Change, Severity, Standing
from leasehold.runtimes.base import drive
from leasehold.stores.redis import Redlock, keys
from leasehold.stores.redis.redlock_electing import Electing
from leasehold.stores.redis.redlock_node import Node
from leasehold.stores.redis.redlock_votes import Outcome, Vote, free_after, majority, outcome, standing, was_there
from leasehold.testing.servers import RedisServer
from leasehold.testing.worlds import AsyncioWorld, BlockingWorld

both = pytest.mark.parametrize("world", [BlockingWorld(), AsyncioWorld()], ids=["blocking", "asyncio"])


def eventually(condition, limit=5.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def scripts_run(nodes):
    return [node.commandstats().get("evalsha", 0) for node in nodes.nodes]


def votes_of(nodes, namespace, name):
    """Return who has the vote of each node."""
    return [node.command("HGET", keys.node_keys(namespace, name)[0], "t") for node in nodes.nodes]


# --- rounds ----------------------------------------------------------------------------------------------------


@both
def test_acquire_and_release_cost_one_parallel_round_each(redlock_nodes, namespace, world):
    async def body(world):
        lock = world.client(redlock_nodes.url, namespace=namespace).lock("x")
        await (await lock.acquire()).release()  # the nodes know the scripts by now
        await world.sleep(0.3)
        for node in redlock_nodes.nodes:
            node.reset_stats()
        hold = await lock.acquire()
        await world.sleep(0.3)  # the slower of them, too
        assert scripts_run(redlock_nodes) == [1] * 5
        await hold.release()
        await world.sleep(0.3)
        assert scripts_run(redlock_nodes) == [2] * 5
        assert not any("keys" in node.commandstats() for node in redlock_nodes.nodes)

    world.run(body)


@both
def test_who_waits_asks_nothing_until_a_release_wakes_it(redlock_nodes, namespace, world):
    async def body(world):
        first, second = (world.client(redlock_nodes.url, namespace=namespace) for _ in range(2))
        hold = await first.lock("x", lease=60.0).acquire()
        job = world.spawn(lambda: second.lock("x", lease=60.0).acquire(timeout=20.0))
        info = await first.inspect("x")
        while not info.waiters:
            await world.sleep(0.01)
            info = await first.inspect("x")
        await world.sleep(0.5)
        for node in redlock_nodes.nodes:
            node.reset_stats()
        await world.sleep(1.5)
        assert scripts_run(redlock_nodes) == [0] * 5
        released = world.now()
        await hold.release()
        late = await job.result()
        assert world.now() - released < 1.0  # far below the lease: it was told
        assert late.token > hold.token
        await late.release()

    world.run(body)


def test_twenty_at_once_get_on_within_ten_rounds(redlock_nodes, namespace, monkeypatch):
    rounds, ask = {}, Electing._ask

    def counted(self, ballot, channels, *, join, until):
        rounds[ballot.ticket.id] = rounds.get(ballot.ticket.id, 0) + 1
        return ask(self, ballot, channels, join=join, until=until)

    run = Node.run

    async def by_ways_of_different_length(self, command, within):
        await asyncio.sleep(random.random() * 0.005)
        return await run(self, command, within)

    monkeypatch.setattr(Electing, "_ask", counted)
    monkeypatch.setattr(Node, "post", lambda *_: False)  # so that all is asked by `run`
    monkeypatch.setattr(Node, "run", by_ways_of_different_length)

    async def start(number):
        """Let all ask for one name at the same moment; return the most rounds anyone took until somebody had it."""
        clients = [AsyncClient.from_url(redlock_nodes.url, namespace=namespace) for _ in range(20)]
        try:
            await asyncio.gather(*[client.inspect("x") for client in clients])  # all are connected
            rounds.clear()
            tasks = [asyncio.ensure_future(client.lock(f"x{number}").acquire(timeout=10)) for client in clients]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            most = max(rounds.values())
            for task in pending:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.result() is not None for task in done)
            return most
        finally:
            await asyncio.gather(*[client.close() for client in clients])

    async def body():
        return sorted([await start(number) for number in range(6)])

    most = asyncio.run(body())
    assert most[-1] <= 10, most
    assert most[-1] > 1, "no vote was ever split"


# --- tokens ----------------------------------------------------------------------------------------------------


@both
def test_a_client_whose_clock_is_behind_gets_a_higher_token_all_the_same(redlock_nodes, namespace, world):
    ahead = (int(time.time()) + 3600) * 1_000_000

    async def body(world):
        client = world.client(redlock_nodes.url, namespace=namespace)
        for node in redlock_nodes.nodes[1:4]:
            node.command("HSET", keys.node_keys(namespace, "x")[4], "f", ahead)
        first = await client.lock("x").acquire(timeout=5)
        assert first.token > ahead
        await first.release()
        second = await client.lock("x").acquire(timeout=5)
        assert second.token > first.token
        await second.release()

    world.run(body)


def test_the_highest_token_outlives_release_and_expiry(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        released = locks.lock("released").acquire()
        released.release()
        expired = locks.lock("expired", lease=0.2, renew=False).acquire()
        time.sleep(0.4)

        def remembered(name):
            found = [node.command("HGET", keys.node_keys(namespace, name)[4], "f") for node in redlock_nodes.nodes]
            return [int(token or 0) for token in found]

        eventually(lambda: remembered("released") == [released.token] * 5)
        eventually(lambda: remembered("expired") == [expired.token] * 5)
        for node in redlock_nodes.nodes:
            for key in node.command("KEYS", f"leasehold:{{{namespace}:*"):
                assert key.endswith(":votetoken"), key
                assert 0 < node.command("PTTL", key) <= 3_600_000 + 30_000
        assert locks.lock("expired").acquire().token > expired.token


# --- who may be a node -----------------------------------------------------------------------------------------


def test_one_server_under_two_names_is_refused(redlock_nodes, namespace):
    first, second = (node.port for node in redlock_nodes.nodes[:2])
    url = f"redlock://127.0.0.1:{first},localhost:{first},127.0.0.1:{second}"
    with Client.from_url(url, namespace=namespace) as locks:

        def use_it():
            until = time.monotonic() + 5
            while time.monotonic() < until:  # two that differ may have voted before the third has said who it is
                locks.lock("x").acquire(timeout=1).release()

        with pytest.raises((Unsupported, StoreUnavailable), match="same server"):
            use_it()
        with pytest.raises(Unsupported, match="same server"):
            locks.lock("x").acquire(timeout=1)
        (twins,) = [finding for finding in locks.diagnose() if finding.subject == "one server twice"]
        assert twins.severity is Severity.ERROR


def test_clients_of_ones_own_are_nodes(redlock_nodes, namespace):
    ports = [node.port for node in redlock_nodes.nodes[:3]]
    with ExitStack() as stack:
        mine = [stack.enter_context(redis.Redis(port=port)) for port in ports]
        with (
            Client.from_client(mine, namespace=namespace) as locks,
            locks.lock("x") as hold,
            Client(Redlock([f"redis://127.0.0.1:{port}" for port in ports]), namespace=namespace) as others,
        ):
            assert others.inspect("x").token == hold.token
            assert others.lock("x").acquire(blocking=False) is None

    async def body():
        mine = [redis.asyncio.Redis(port=port) for port in ports]
        async with AsyncClient.from_client(mine, namespace=namespace) as locks, locks.lock("x") as hold:
            assert hold.token
        for each in mine:
            await each.aclose()

    asyncio.run(body())


@both
def test_what_sentinels_watch_over_is_a_node(redlock_nodes, redis_sentinel, namespace, world):
    members = [redis_sentinel.url, *(f"redis://127.0.0.1:{node.port}" for node in redlock_nodes.nodes[:2])]
    redlock_nodes.nodes[1].pause()  # so it takes the one under Sentinel
    try:

        async def body(world):
            client, other = (world.client(Redlock(members), namespace=namespace) for _ in range(2))
            hold = await client.lock("x").acquire(timeout=10)
            assert await other.lock("x").acquire(blocking=False) is None
            job = world.spawn(lambda: other.lock("x").acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await world.sleep(0.01)
            await hold.release()
            late = await job.result()
            assert late.token > hold.token
            await late.release()
            redlock_nodes.nodes[1].resume()

        world.run(body)
    finally:
        redlock_nodes.nodes[1].resume()


def test_what_cannot_be_promised_is_refused_with_the_reason(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        with pytest.raises(Unsupported, match="fair order"):
            locks.lock("x", fair=True)
        with pytest.raises(Unsupported, match=r"shared|fair"):
            locks.rw_lock("x").reader()
        with pytest.raises(Unsupported, match="permits"):
            locks.semaphore("x", 2).acquire()
        with pytest.raises(Unsupported, match="versions"):
            locks.versioned("x")
        with pytest.raises(Unsupported, match="cannot agree"):
            drive(locks.store.cell("x", Change()))


@pytest.mark.parametrize("few", [["redis://a"], ["redis://a", "redis://b"], ["redis://a", "redis://b", "redis://a"]])
def test_too_few_nodes_are_refused_at_once(few):
    with pytest.raises(ValueError, match=r"takes 3 nodes or more|there twice"):
        Redlock(few)


@both
def test_the_rights_of_a_single_server_are_enough(namespace, world):
    """A user who may do what locks on one server need may do what a node needs; one right less is named."""
    page = (Path(__file__).parents[2] / "docs" / "backends" / "redis.md").read_text()
    rules = re.search(r"ACL SETUSER \S+ on >\S+ ([^`\n]+)", page)[1].replace("default:", f"{namespace}:")
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(users=[f"app on >secret {rules}"])) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)

        async def body(world):
            client, other = (world.client(f"redlock://app:secret@{hosts}", namespace=namespace) for _ in range(2))
            hold = await client.lock("x").acquire()
            job = world.spawn(lambda: other.lock("x").acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await world.sleep(0.01)
            await hold.extend()
            await hold.release()
            await (await job.result()).release()
            for node in nodes:
                node.command("ACL", "SETUSER", "app", "-hset")
            third = world.client(f"redlock://app:secret@{hosts}", namespace=namespace)
            with pytest.raises(StoreUnavailable, match=r"lacks the right.* \+hset"):
                await third.lock("x").acquire(timeout=1)

        world.run(body)


def test_a_cluster_is_no_node():
    with pytest.raises(TypeError, match="not a Cluster"):
        Redlock(["redis://a", "redis://b", "redis+cluster://c"])


def test_doctor_looks_at_all_nodes(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["nodes"].severity is Severity.OK
    assert findings["restart of a node"].severity is Severity.WARNING  # they keep nothing, and there is no quarantine
    assert "clocks of the nodes" in findings
    for node in redlock_nodes.nodes:
        assert findings[f"127.0.0.1:{node.port} eviction"].severity is Severity.OK
    four = redlock_nodes.url.rpartition(",")[0] + "?quarantine=60"
    with Client.from_url(four, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["nodes"].severity is Severity.WARNING
    assert findings["restart of a node"].severity is Severity.OK
    with Client.from_url(redlock_nodes.url.rpartition(",")[0] + ",127.0.0.1:1", namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["quorum"].severity is Severity.WARNING
    assert "127.0.0.1:1" in findings["quorum"].found


# --- adding up -------------------------------------------------------------------------------------------------

MINE, OTHER, THIRD = Vote(token=7), Vote(top=5, left=9.0, holder="o", owner="h:1:o"), Vote(top=5, left=4.0, holder="t")
FREE, ABSTAINS = Vote(top=9), Vote(top=1, left=30.0, abstains=True)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([MINE, MINE, MINE], Outcome.WON),
        ([MINE, MINE, MINE, OTHER, OTHER], Outcome.WON),
        ([MINE, MINE, OTHER, OTHER, OTHER], Outcome.TAKEN),
        ([MINE, MINE, OTHER, OTHER, THIRD], Outcome.SPLIT),
        ([MINE, MINE, Vote(token=6), OTHER, OTHER], Outcome.LOW),
        ([MINE, MINE, FREE], Outcome.LOW),
        ([FREE] * 5, Outcome.LOW),
        ([MINE, MINE], Outcome.SILENT),
        ([MINE, MINE, ABSTAINS, ABSTAINS, ABSTAINS], Outcome.SILENT),
        ([MINE, MINE, ABSTAINS, OTHER], Outcome.SPLIT),
        ([], Outcome.SILENT),
    ],
)
def test_what_a_round_comes_to(votes, expected):
    assert outcome(dict(enumerate(votes)), 7, 5) is expected


def test_majorities():
    assert [majority(nodes) for nodes in (3, 4, 5, 6, 7)] == [2, 3, 3, 4, 4]
    assert free_after(dict(enumerate([MINE, OTHER, THIRD, OTHER, THIRD])), 5) == 4.0
    assert [
        standing(dict(enumerate(told)), 5) for told in ([1, 1, 1], [1, 1, 0, 0], [0, 0, 0], [2, 2, 3], [1, 1, 2])
    ] == [
        Standing.HELD,
        None,
        Standing.GONE,
        Standing.QUEUED,
        Standing.QUEUED,
    ]
    assert was_there({0: True, 1: True, 2: True}, 5) is True
    assert was_there({0: True, 1: True, 2: False}, 5) is None
    assert was_there({0: False, 1: False, 2: False}, 5) is False
