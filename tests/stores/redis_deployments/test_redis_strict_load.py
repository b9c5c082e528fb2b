"""Strict mode under load, while primaries are killed, and on a cluster, where each node has a quarantine of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from strict_mode import LONGEST, NOISE, disturbed, url_of, work

from leasehold_lab.history import History, Hold, check
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster, RedisSentinel, RedisServer
from support.flavors import both

# --- under load ----------------------------------------------------------------------------------------------------


@both
def test_primaries_are_killed_under_load(harness: Harness, namespace: str) -> None:
    with RedisSentinel(replicas=2) as group:
        killed(group, harness, namespace, 1)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@both
@pytest.mark.parametrize("kind", [RedisSentinel, RedisCluster])
def test_primaries_are_killed_for_long(kind: Any, harness: Harness, namespace: str) -> None:
    with kind() as group:
        killed(group, harness, namespace, 8)


def killed(group: Any, harness: Harness, namespace: str, times: int) -> None:
    """Kill primaries under load, and let the checker look for claims that overlap."""
    group.wait_healthy()
    holds: list[Hold] = []
    ends = threading.Event()
    names = [f"name-{number}" for number in range(4)]
    bound = 10.0 + 2 * LONGEST + 3 * NOISE

    def served(since: float) -> bool:
        return {hold.name for hold in list(holds) if hold.asked > since} == set(names)

    def disturb() -> None:
        group.wait_until(lambda: served(0.0), bound, "each name is granted")
        for turn in range(times):
            key = f"leasehold:{{{namespace}:{names[turn % 4]}}}:lock"
            old = group.primary_of(key) if isinstance(group, RedisCluster) else group.primary
            old.kill()
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            group.wait_until(lambda now=now: served(now), bound, "each name is granted anew")
            old.start()
            group.wait_healthy()

    async def body(harness: Harness) -> None:
        async with harness.client(url_of(group.url), namespace=namespace) as locks:
            jobs = [
                harness.spawn(lambda name=name, who=who: work(harness, locks, f"{name}/{who}", name, holds, ends))
                for name in names
                for who in range(2)
            ]
            await disturbed(harness, disturb, jobs, ends)

    harness.run(body)
    verdict = check(History(holds=tuple(holds)))
    assert not verdict.violations, verdict.report()


# --- cluster -------------------------------------------------------------------------------------------------------


@both
def test_a_cluster_waits_once_for_each_node(harness: Harness, namespace: str) -> None:
    """Not for each name or slot. A marker whose slot has moved is made anew. Only a flushed node waits."""
    with RedisCluster(replicas=1) as cluster:
        url = url_of(cluster.url)
        names = [f"n{number}" for number in range(12)]

        async def body(harness: Harness) -> None:
            async with harness.client(url, namespace=namespace) as locks:

                async def each() -> dict[str, float]:
                    took: dict[str, float] = {}
                    for name in names:
                        began = harness.now()
                        async with locks.lock(name, lease=1.0, timeout=10.0):
                            took[name] = harness.now() - began
                    return took

                await each()
                assert max((await each()).values()) < LONGEST / 2
                flushed = cluster.primary_of(f"leasehold:{{{namespace}:n0}}:lock")
                flushed.flush()
                took = await each()
                there = [n for n in names if cluster.primary_of(f"leasehold:{{{namespace}:{n}}}:lock") is flushed]
                assert took[there[0]] > LONGEST - 0.1
                assert all(seconds < LONGEST / 2 for name, seconds in took.items() if name != there[0])
                marker = first_marker(flushed, namespace)
                target = next(node for node in cluster.primaries if node is not flushed)
                cluster.migrate(marker, target).finish()
                assert max((await each()).values()) < LONGEST + NOISE

        harness.run(body)


@both
def test_a_slot_that_leaves_a_node_in_quarantine_leaves_the_quarantine_behind(harness: Harness, namespace: str) -> None:
    """A limit, which docs/strict.md states: the node that receives the slot cannot know what the other one lost."""
    with RedisCluster(replicas=0) as cluster:

        async def body(harness: Harness) -> None:
            async with harness.client(url_of(cluster.url), namespace=namespace) as locks:
                for name in [f"n{number}" for number in range(12)]:  # of all nodes, which are new
                    async with locks.lock(name, lease=LONGEST, timeout=10.0):
                        pass
                hold = await locks.lock("n0", lease=LONGEST, renew=False, timeout=10.0).acquire()
                lossy = cluster.primary_of(f"leasehold:{{{namespace}:n0}}:lock")
                target = next(node for node in cluster.primaries if node is not lossy)
                lossy.flush()
                assert await locks.lock("n0", lease=LONGEST).acquire(timeout=0) is None
                cluster.migrate(f"leasehold:{{{namespace}:n0}}:lock", target).finish()
                second = await locks.lock("n0", lease=LONGEST).acquire(timeout=0)
                assert second is not None
                assert not hold.lost, "it took longer than the lease"
                assert second.token > hold.token
                await second.release()

        harness.run(body)


def first_marker(node: RedisServer, namespace: str) -> str:
    found = node.command("KEYS", f"leasehold:{{{namespace}:*}}:marker")
    assert isinstance(found, list)
    return str(found[0])
