"""Sentinel, Cluster and replicas: connecting, refusals with the remedy, and costs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from leasehold import StoreUnavailable, Unsupported
from leasehold.stores.redis import scripts
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import Node, RedisCluster, RedisReplicas, RedisSentinel, RedisServer
from leasehold_lab.servers.base import free_port
from support.flavors import both

LEASE = 1.2
NOISE = 1.0

INSIDE = {
    word.decode().lower() for script in scripts.ALL for word in re.findall(rb"redis\.p?call\('([A-Z]+)'", script.text)
}
"""What scripts call."""

AROUND = {"config|resetstat", "info", "ping", "publish", "replconf", "hello", "auth", "cluster|nodes", "role"}
"""What the tests, the sentinels and the replicas ask of a server."""


def pair(harness: Harness, url: str, namespace: str, **options: Any) -> None:
    """Acquire and release once."""

    async def body(harness: Harness) -> None:
        async with harness.client(url, namespace=namespace, **options) as locks:
            hold = await locks.lock("a").acquire(timeout=0)
            assert hold is not None
            await hold.release()

    harness.run(body)


def refusal(harness: Harness, url: str, kind: type[Exception] = StoreUnavailable) -> str:
    with pytest.raises(kind) as caught:
        pair(harness, url, "default", response_timeout=1.0)
    return str(caught.value)


# --- how many round trips ------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("deployment", ["server", "replicas", "sentinel"])
def test_an_uncontended_pair_is_two_commands(
    deployment: str, harness: Harness, namespace: str, request: pytest.FixtureRequest
) -> None:
    group = request.getfixturevalue(f"redis_{deployment}")
    server: RedisServer = group.primary if isinstance(group, RedisReplicas) else group

    async def body(harness: Harness) -> None:
        async with harness.client(group.url, namespace=namespace) as locks:
            await (await locks.lock("a").acquire()).release()
            server.reset_stats()
            for _ in range(10):
                await (await locks.lock("a").acquire()).release()
            counts = server.commandstats()
            assert counts["evalsha"] == 20
            assert counts.keys() <= {"evalsha"} | INSIDE | AROUND

    harness.run(body)


# --- replicas ------------------------------------------------------------------------------------------------------


@both
def test_a_replica_is_refused_with_the_remedy(redis_replicas: RedisReplicas, harness: Harness, namespace: str) -> None:
    error = refusal(harness, redis_replicas.replicas[0].url)
    assert "is a replica" in error
    assert "connect to the primary, or let redis+sentinel:// or redis+cluster:// find it" in error


@both
@pytest.mark.parametrize("closed", [True, False])
def test_an_address_that_moves_to_the_new_primary_is_followed(harness: Harness, namespace: str, closed: bool) -> None:
    """A virtual address or a DNS name in front: the old primary's connections stay, or are closed."""
    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        with FaultProxy(old.port) as proxy:

            async def body(harness: Harness) -> None:
                async with harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
                    hold = await locks.lock("a", lease=LEASE).acquire()
                    group.catch_up()
                    group.promote(new)
                    proxy._carrier.target = ("127.0.0.1", new.port)
                    if closed:
                        proxy.cut()
                    await harness.sleep(LEASE * 2)
                    assert not hold.lost  # a renewal that was refused went to where the address leads now
                    assert int(str(new.command("EXISTS", f"leasehold:{{{namespace}:a}}:lock"))) == 1
                    await hold.release()

            harness.run(body)


# --- Sentinel ------------------------------------------------------------------------------------------------------


@both
def test_no_sentinel_answers(harness: Harness) -> None:
    ports = free_port(), free_port()
    error = refusal(harness, f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/locks")
    assert "no sentinel names the primary" in error
    assert all(f"127.0.0.1:{port}" in error for port in ports)


@both
def test_an_unknown_primary_name(redis_sentinel: RedisSentinel, harness: Harness) -> None:
    error = refusal(harness, redis_sentinel.url.replace("/locks", "/other"))
    assert "knows no primary called 'other'" in error
    assert "SENTINEL MASTERS" in error


@both
def test_kinds_of_servers_that_are_mixed_up(
    redis_server: RedisServer, redis_sentinel: RedisSentinel, redis_cluster: RedisCluster, harness: Harness
) -> None:
    sentinel = f"127.0.0.1:{redis_sentinel.sentinels[0].port}"
    assert "is a single server; write the URL as redis://" in refusal(
        harness, f"redis+sentinel://127.0.0.1:{redis_server.port}/locks", Unsupported
    )
    assert "is a Sentinel; write the URL as redis+sentinel://" in refusal(harness, f"redis://{sentinel}", Unsupported)
    assert "is a Sentinel" in refusal(harness, f"redis+cluster://{sentinel}", Unsupported)
    assert "is a single server" in refusal(harness, f"redis+cluster://127.0.0.1:{redis_server.port}", Unsupported)
    assert "is a node of a cluster; write the URL as redis+cluster://" in refusal(
        harness, f"redis://127.0.0.1:{redis_cluster.nodes[0].port}", Unsupported
    )


@both
def test_sentinels_and_servers_have_users_of_their_own(harness: Harness, namespace: str) -> None:
    watcher = "watcher on >s3ntinel ~* &* +@all"
    app = "app on >s3cret ~* &* +@all"
    with RedisSentinel(
        replicas=1, password="w0rd", users=[app], sentinel_password="oth3r", sentinel_users=[watcher]
    ) as group:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in group.sentinels)
        as_users = f"redis+sentinel://app:s3cret@{hosts}/locks?sentinel_username=watcher&sentinel_password=s3ntinel"
        for url in (group.url, as_users):
            pair(harness, url, namespace)
        error = refusal(harness, f"redis+sentinel://:w0rd@{hosts}/locks")
        assert "?sentinel_password=" in error
        error = refusal(harness, as_users.replace("s3ntinel", "wr0ng"))
        assert "?sentinel_password=" in error
        assert "wr0ng" not in error
        error = refusal(harness, as_users.replace("s3cret", "wr0ng"))
        assert "wrong" in error
        assert "wr0ng" not in error


@both
def test_a_sentinel_that_was_cut_off_is_outvoted(harness: Harness, namespace: str) -> None:
    """It alone still names the old primary, which replies; the others know of the failover."""
    with RedisSentinel(replicas=1) as group:
        old, late = group.primary, group.sentinels[0]
        late.pause()
        old.kill()
        rest = group.sentinels[1:]
        group.wait_until(
            lambda: all(each.state()["port"] != str(old.port) for each in rest), 30.0, "the others have decided"
        )
        new = group.nodes[1] if group.nodes[0] is old else group.nodes[0]
        with RedisServerAt(old):  # it came back as a primary: no sentinel has reconfigured it yet
            for each in rest:
                each.pause()
            late.resume()
            for each in rest:
                each.resume()
            pair(harness, group.url, namespace)
            assert int(str(new.command("EXISTS", f"leasehold:{{{namespace}:a}}:lock"))) == 1


class RedisServerAt:
    """Bring a node back."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._node.start()

    def __exit__(self, *error: object) -> None:
        pass


@both
@pytest.mark.parametrize("down", ["dead", "stalled"])
def test_one_dead_sentinel_does_no_harm(harness: Harness, namespace: str, down: str) -> None:
    with RedisSentinel(replicas=1) as group:
        (group.sentinels[0].kill if down == "dead" else group.sentinels[0].pause)()
        pair(harness, group.url, namespace)
        if down == "stalled":
            group.sentinels[0].resume()


@both
def test_the_last_primary_is_used_while_all_sentinels_are_down(harness: Harness, namespace: str) -> None:
    with RedisSentinel(replicas=1) as group:

        async def body(harness: Harness) -> None:
            async with harness.client(group.url, namespace=namespace) as locks:
                hold = await locks.lock("a", lease=LEASE).acquire()
                for each in group.sentinels:
                    each.kill()
                group.primary_node.command("CLIENT", "KILL", "TYPE", "normal")
                await harness.sleep(LEASE * 1.5)
                assert not hold.lost
                await hold.release()

        group.primary_node = group.primary  # type: ignore[attr-defined]
        harness.run(body)


# --- Cluster -------------------------------------------------------------------------------------------------------


@both
def test_no_node_answers(harness: Harness) -> None:
    ports = free_port(), free_port()
    error = refusal(harness, f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    assert "no node of the cluster replied with the slot map" in error
    assert all(f"127.0.0.1:{port}" in error for port in ports)


@both
def test_a_replica_is_enough_as_the_only_seed(redis_cluster: RedisCluster, harness: Harness, namespace: str) -> None:
    replica = next(node for node in redis_cluster.nodes if node.role == "slave")
    pair(harness, f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{replica.port}", namespace)


@both
def test_announced_host_names_are_used(harness: Harness, namespace: str) -> None:
    names = {"cluster-announce-hostname": "localhost", "cluster-preferred-endpoint-type": "hostname"}
    with RedisCluster(replicas=0, config=names) as cluster:

        async def body(harness: Harness) -> None:
            async with harness.client(cluster.url, namespace=namespace) as locks:
                for name in "abcdef":
                    await (await locks.lock(name).acquire()).release()
                servers = [finding for finding in await locks.diagnose() if finding.subject == "server"]
                assert all("at localhost:" in finding.found for finding in servers)

        harness.run(body)


@both
def test_a_cluster_without_slots_raises(harness: Harness) -> None:
    with RedisServer(config={"cluster-enabled": "yes", "cluster-port": str(free_port())}) as node:
        error = refusal(harness, f"redis+cluster://127.0.0.1:{node.port}")
        assert "knows of no node that serves a slot" in error


# --- the demo ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployment", [pytest.param("replicas", marks=pytest.mark.nightly), "sentinel", "cluster"])
def test_the_demo_loses_nothing(deployment: str, request: pytest.FixtureRequest) -> None:
    from leasehold_lab.demo.rows import Guard
    from leasehold_lab.demo.run import Settings, run

    group = request.getfixturevalue(f"redis_{deployment}")
    result = run(Settings(group.url, requests=222), Quiet())
    row = next(row for row in result.rows if row.guard is Guard.LEASEHOLD)
    assert (row.final, row.failures) == (222, ())


class Quiet:
    """Observes a run silently."""

    def row_begins(self, *facts: object) -> None: ...

    def row_moves(self, *facts: object) -> None: ...

    def row_ends(self, *facts: object) -> None: ...
