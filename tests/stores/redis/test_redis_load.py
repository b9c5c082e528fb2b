"""Servers lose data, lag, or migrate slots under continuous load, in each deployment.

Tokens increase, no guarded write goes backwards, holders learn of a loss, and the service resumes within the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster, RedisSentinel, RedlockNodes
from support.flavors import ASYNCIO, BLOCKING, both
from support.stores.failover_load import LEASE, NOISE, Load

NAMES = ["a", "b", "c", "d"]

GRANTED_AGAIN = 2 * LEASE + 2 * NOISE
"""Seconds until each name is granted anew when nobody has to be promoted: a lease, a place in the queue, and noise."""

PROMOTED = {"sentinel": 1.0 + 6.0 + 3 * NOISE, "cluster": 1.5 + 6.0 + 3 * NOISE}
"""Seconds from a primary's death on: detection, election, promotion, our pauses."""


def loaded(harness: Harness, url: str, namespace: str, disturb: Callable[[Load], object], *, fair: bool = True) -> None:
    async def body(harness: Harness) -> None:
        load = Load(harness, url, namespace, NAMES, fair=fair)
        await load.run(lambda: disturb(load))
        load.check()

    harness.run(body)


# --- forgetting ----------------------------------------------------------------------------------------------------


@both
def test_nodes_of_a_redlock_forget(harness: Harness, namespace: str) -> None:
    """One by one, and two at once: all data, all scripts, and a restart without either."""
    with RedlockNodes(5) as group:
        nodes = group.nodes

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            for some in (nodes[:1], nodes[1:3]):
                for words in (("FLUSHALL",), ("SCRIPT", "FLUSH")):
                    for node in some:
                        node.command(*words)
                    load.wait_service(GRANTED_AGAIN)
                for node in some:
                    node.restart(keep_data=False)
                load.wait_service(GRANTED_AGAIN)

        loaded(harness, group.url, namespace, disturb, fair=False)


@both
def test_the_primaries_of_a_cluster_forget(harness: Harness, namespace: str) -> None:
    with RedisCluster() as group:

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            for words in (("FLUSHALL",), ("SCRIPT", "FLUSH"), ("FLUSHALL",)):
                for node in group.primaries:
                    node.command(*words)
                load.wait_service(GRANTED_AGAIN)
            group.primary_of(keys.mutex_keys(namespace, NAMES[0])[0]).restart(keep_data=False)
            load.wait_service(PROMOTED["cluster"])

        loaded(harness, group.url, namespace, disturb)


# --- lagging -------------------------------------------------------------------------------------------------------


@both
def test_replicas_that_lag_are_promoted_by_sentinels(harness: Harness, namespace: str) -> None:
    with RedisSentinel(replicas=2) as group:
        lagging(group, harness, namespace)


@pytest.mark.nightly
@pytest.mark.parametrize("harness", [BLOCKING, ASYNCIO], ids=str)
def test_replicas_that_lag_are_promoted_in_a_cluster(harness: Harness, namespace: str) -> None:
    with RedisCluster() as group:
        lagging(group, harness, namespace)


def lagging(group: RedisSentinel | RedisCluster, harness: Harness, namespace: str) -> None:
    """Keep the last grants before the primary dies from its replicas."""
    kind = "cluster" if isinstance(group, RedisCluster) else "sentinel"
    group.wait_healthy()

    def disturb(load: Load) -> None:
        load.wait_service(10.0)
        key = keys.mutex_keys(namespace, NAMES[0])[0]
        old = group.primary_of(key) if isinstance(group, RedisCluster) else group.primary
        before = len(load.holdings)
        old.cut_off()
        time.sleep(0.4)  # less than it takes to notice
        old.kill()
        assert len(load.holdings) > before, "nothing was granted that no replica has"
        load.wait_service(PROMOTED[kind])

    loaded(harness, group.url, namespace, disturb)


# --- slots on their way --------------------------------------------------------------------------------------------


@both
def test_slots_are_moved_under_load(harness: Harness, namespace: str) -> None:
    """Slots migrate back and forth while in use: their names wait for the end of the migration, others do not."""
    with RedisCluster(replicas=0) as group:

        def disturb(load: Load) -> None:
            load.wait_service(10.0)
            for name in NAMES[:1]:
                lock = keys.mutex_keys(namespace, name)[0]
                for _ in range(2):
                    source = group.primary_of(lock)
                    target = next(node for node in group.primaries if node is not source)
                    migration = group.migrate(lock, target)
                    time.sleep(0.2)
                    migration.move()
                    load.wait_service(GRANTED_AGAIN, set(NAMES) - {name})
                    migration.finish()
                    load.wait_service(GRANTED_AGAIN)
                    group.wait_until(
                        lambda lock=lock, target=target: group.primary_of(lock) is target, 5.0, "it has moved"
                    )

        loaded(harness, group.url, namespace, disturb)
