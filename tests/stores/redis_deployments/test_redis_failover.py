"""Failovers under load: tokens increase, no guarded write goes backwards, holders learn of a loss, service resumes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from leasehold import LeaseLost, StoreUnavailable
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Flavor, finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores.redis.connection.base import UNSUBSCRIBED, RetryableError, pack
from leasehold.stores.redis.connection.settings import from_url
from leasehold.stores.redis.connection.transports import single_transport
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster, RedisReplicas, RedisSentinel
from support.flavors import both
from support.stores.failover_load import LEASE, NOISE, Load

NAMES = [f"name-{number}" for number in range(6)]

RESUMES = {"sentinel": 1.0 + 6.0 + 3 * NOISE, "cluster": 1.5 + 6.0 + 3 * NOISE}
"""Seconds from a primary's death until every name is granted anew: detection, election, promotion, our pauses."""


@pytest.fixture
def sentinel() -> Iterator[RedisSentinel]:
    with RedisSentinel(replicas=2) as group:
        yield group


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as group:
        yield group


def kill_again_and_again(group: RedisSentinel | RedisCluster, load: Load, times: int) -> None:
    """Kill a primary, wait until the service resumes, bring the server back empty, and so on."""
    bound = RESUMES["cluster" if isinstance(group, RedisCluster) else "sentinel"]
    load.wait_service(bound)
    for turn in range(times):
        if isinstance(group, RedisCluster):
            old = group.primary_of(f"leasehold:{{{load.namespace}:{NAMES[turn % len(NAMES)]}}}:lock")
        else:
            old = group.primary
        old.kill()
        load.wait_service(bound)
        group.wait_failover(old)
        old.start()
        group.wait_healthy()


@both
def test_sentinel_primaries_are_killed_under_load(sentinel: RedisSentinel, harness: Harness, namespace: str) -> None:
    killed(sentinel, harness, namespace, 2)


@both
def test_cluster_primaries_are_killed_under_load(cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    killed(cluster, harness, namespace, 2)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@both
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_primaries_are_killed_for_long(
    kind: str, harness: Harness, namespace: str, request: pytest.FixtureRequest
) -> None:
    killed(request.getfixturevalue(kind), harness, namespace, 12)


def killed(group: RedisSentinel | RedisCluster, harness: Harness, namespace: str, times: int) -> None:
    group.wait_healthy()

    async def body(harness: Harness) -> None:
        load = Load(harness, group.url, namespace, NAMES)
        await load.run(lambda: kill_again_and_again(group, load, times))
        load.check()

    harness.run(body)


@both
def test_servers_forget_under_load(sentinel: RedisSentinel, harness: Harness, namespace: str) -> None:
    """All data and scripts are deleted, and the primary restarts empty before a replica takes over."""
    sentinel.wait_healthy()

    async def body(harness: Harness) -> None:
        load = Load(harness, sentinel.url, namespace, NAMES[:3])

        def disturb() -> None:
            load.wait_service(RESUMES["sentinel"])
            for words in (("FLUSHALL",), ("SCRIPT", "FLUSH"), ("FLUSHALL",)):
                sentinel.primary.command(*words)
                load.wait_service(LEASE + NOISE)
            sentinel.primary.restart(keep_data=False)
            load.wait_service(RESUMES["sentinel"])

        await load.run(disturb)
        load.check()

    harness.run(body)


@both
def test_a_replica_that_lags_is_promoted(harness: Harness, namespace: str) -> None:
    """The grant never reached it: another client gets a higher token, and the holder learns it at its renewal."""
    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas

        async def body(harness: Harness) -> None:
            async with (
                harness.client(old.url, namespace=namespace) as before,
                harness.client(new.url, namespace=namespace) as after,
            ):
                old.cut_off()
                first = await before.lock("a", lease=LEASE).acquire()
                new.command("REPLICAOF", "NO", "ONE")
                second = await after.lock("a", lease=LEASE).acquire(timeout=0)
                assert second is not None
                assert second.token > first.token
                old.command("REPLICAOF", "127.0.0.1", new.port)
                old.rejoin()
                began = harness.now()
                while not first.lost:
                    assert harness.now() - began < LEASE + NOISE
                    await harness.sleep(0.01)
                with pytest.raises(LeaseLost):
                    first.raise_if_lost()
                assert not second.lost
                await second.release()
                with pytest.raises(LeaseLost):
                    await first.release()

        harness.run(body)


@both
@pytest.mark.parametrize("frozen", [False, True], ids=["", "with the first sentinel"])
def test_a_primary_that_was_cut_off_keeps_serving_its_side(
    sentinel: RedisSentinel, harness: Harness, namespace: str, frozen: bool
) -> None:
    """Two sides grant the same name; tokens show the newer grant. Clients of the sentinels leave the old primary.

    So they do if the first sentinel of the URL learns nothing: it may be on the host that was cut off.
    """
    sentinel.wait_healthy()
    old = sentinel.primary

    async def body(harness: Harness) -> None:
        async with (
            harness.client(old.url, namespace=namespace) as inside,
            harness.client(sentinel.url, namespace=namespace) as outside,
        ):
            first = await outside.lock("warm", lease=LEASE).acquire()  # connected to the old one
            await first.release()
            done: list[object] = []
            thread = threading.Thread(target=lambda: done.append(part(sentinel, old, sentinel.sentinels[:frozen])))
            thread.start()
            while thread.is_alive():
                await harness.sleep(0.02)
            assert done
            there = await inside.lock("a", lease=LEASE).acquire()
            here = await outside.lock("a", lease=LEASE).acquire(timeout=0)
            assert here is not None
            assert here.token > there.token
            assert old.role == "master"
            for one in sentinel.sentinels[:frozen]:
                one.resume()
            old.rejoin()  # the sentinels make it a replica, and drop what it granted
            began = harness.now()
            while not there.lost:
                assert harness.now() - began < LEASE + NOISE
                await harness.sleep(0.01)
            assert not here.lost
            await here.release()
            with pytest.raises(LeaseLost):
                await there.release()

    harness.run(body)
    sentinel.wait_healthy()


def part(sentinel: RedisSentinel, old: Any, frozen: Sequence[Any]) -> bool:
    for one in frozen:
        one.pause()
    old.cut_off()

    def all_know() -> bool:
        return all(each.state()["port"] != str(old.port) for each in sentinel.sentinels if each not in frozen)

    sentinel.wait_until(all_know, 40.0, "the last sentinel has heard of it")
    time.sleep(0.1)  # and what it publishes has arrived
    return True


@both
def test_the_sentinel_that_leads_a_failover_names_the_new_primary(
    sentinel: RedisSentinel, harness: Harness, namespace: str
) -> None:
    """Until the other replica follows, its ``SENTINEL MASTER`` has the new epoch and the old address."""
    old, leader = sentinel.primary, sentinel.sentinels[0]
    stuck, new = sentinel.replicas
    stuck.command("CONFIG", "SET", "replica-priority", "0")
    stuck.command("CONFIG", "SET", "masterauth", "wrong")  # it follows no new primary
    sentinel.wait_until(lambda: knows(leader, stuck), 30.0, "the sentinel will not promote it")
    leader.command("SENTINEL", "SET", sentinel.name, "failover-timeout", "60000")
    leader.command("SENTINEL", "FAILOVER", sentinel.name)
    sentinel.wait_until(lambda: leader.state()["config-epoch"] != "0", 30.0, "the other replica is promoted")
    assert new.role == "master"

    async def body(harness: Harness) -> None:
        async with harness.client(f"redis+sentinel://127.0.0.1:{leader.port}/{sentinel.name}") as locks:
            await (await locks.lock(namespace, lease=LEASE).acquire()).release()

    harness.run(body)
    keys = [node.command("EXISTS", f"leasehold:{{default:{namespace}}}:lock") for node in (old, new)]
    assert keys == [0, 1]
    assert leader.state()["port"] == str(old.port)


def knows(sentinel: Any, replica: Any) -> bool:
    """Return whether a sentinel knows that it must not promote a replica."""
    replies = sentinel.command("SENTINEL", "REPLICAS", sentinel._name)
    words = [dict(zip(reply[::2], reply[1::2], strict=True)) for reply in replies]
    return any(each["port"] == str(replica.port) and each["slave-priority"] == "0" for each in words)


@pytest.mark.parametrize("flavor", [Flavor.SYNC, Flavor.ASYNC])
def test_an_attempt_to_connect_takes_a_part_of_the_time(flavor: Flavor) -> None:
    """The next one may be at a successor of the server."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        settings = from_url(parse("redis://localhost")).at(*frozen.getsockname())

        async def attempt(within: float) -> float:
            runtime = BlockingRuntime() if flavor is Flavor.SYNC else AsyncioRuntime()
            transport = single_transport(runtime)(runtime, settings, *UNSUBSCRIBED)
            began = time.monotonic()
            with pytest.raises(RetryableError):
                await transport.call(pack(b"PING"), within=within)
            await transport.close()
            return time.monotonic() - began

        for within, least, most in ((6.0, 2.0, 5.0), (0.6, 0.6, 2.6)):
            work = attempt(within)
            assert least * 0.9 < (finish(work) if flavor is Flavor.SYNC else asyncio.run(work)) < most


@both
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_frozen_primary_does_not_take_all_of_the_time(
    kind: str, harness: Harness, namespace: str, request: pytest.FixtureRequest
) -> None:
    """It accepts connections and does not answer. The acquire ends at its successor, which comes meanwhile."""
    group = request.getfixturevalue(kind)
    group.wait_healthy()
    key = f"leasehold:{{{namespace}:a}}:lock"
    old = group.primary_of(key) if isinstance(group, RedisCluster) else group.primary

    async def body(harness: Harness) -> None:
        async with harness.client(group.url, namespace=namespace, response_timeout=12.0) as locks:
            await (await locks.lock("a", lease=60.0).acquire()).release()
            old.pause()
            with pytest.raises(StoreUnavailable):
                await locks.lock("a", lease=60.0).acquire(timeout=0.3)
            await (await locks.lock("a", lease=60.0).acquire(timeout=30)).release()

    harness.run(body)
