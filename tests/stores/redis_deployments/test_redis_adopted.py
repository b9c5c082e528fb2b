"""Clients of redis-py for Sentinel and Cluster, adopted with their settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client
from leasehold_lab.servers import RedisCluster, RedisSentinel


def sentinel_clients(group: RedisSentinel, kind: Any) -> list[tuple[str, Any]]:
    sentinel = kind([("127.0.0.1", each.port) for each in group.sentinels])
    return [("the only primary", sentinel), ("by its name", sentinel.master_for(group.name))]


def test_blocking_clients_are_adopted(
    redis_sentinel: RedisSentinel, redis_cluster: RedisCluster, namespace: str
) -> None:
    port = redis_cluster.nodes[0].port
    cluster = redis.RedisCluster(host="127.0.0.1", port=port)
    for what, client in [*sentinel_clients(redis_sentinel, redis.Sentinel), ("cluster", cluster)]:
        with Client.from_client(client, namespace=namespace) as locks:
            for name in "abcd":
                with locks.lock(name, timeout=5.0) as hold:
                    assert hold.token > 0, what
    cluster.close()


def test_a_client_of_a_cluster_that_translates_addresses_is_refused(redis_cluster: RedisCluster) -> None:
    """The first connection would succeed, and all later ones lead to addresses that cannot be reached."""
    port = redis_cluster.nodes[0].port
    cluster = redis.RedisCluster(host="127.0.0.1", port=port, address_remap=lambda address: address)
    with pytest.raises(TypeError, match="address_remap"):
        Client.from_client(cluster)
    cluster.close()

    async def body() -> None:
        async with redis.asyncio.RedisCluster(
            host="127.0.0.1", port=port, address_remap=lambda address: address
        ) as known:
            with pytest.raises(TypeError, match="address_remap"):
                AsyncClient.from_client(known)

    asyncio.run(body())


def test_asyncio_clients_are_adopted(
    redis_sentinel: RedisSentinel, redis_cluster: RedisCluster, namespace: str
) -> None:
    async def body() -> None:
        port = redis_cluster.nodes[0].port
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as cluster:
            clients = [*sentinel_clients(redis_sentinel, redis.asyncio.Sentinel), ("cluster", cluster)]
            for what, client in clients:
                async with AsyncClient.from_client(client, namespace=namespace) as locks:
                    for name in "abcd":
                        async with locks.lock(name, timeout=5.0) as hold:
                            assert hold.token > 0, what

    asyncio.run(body())


def test_adopted_clients_keep_tls_and_passwords(namespace: str) -> None:
    with RedisSentinel(replicas=1, tls=True, password="a b", sentinel_password="c d") as group:
        assert group.certificates is not None
        tls = {"ssl": True, "ssl_ca_certs": str(group.certificates.authority)}
        sentinel = redis.Sentinel(
            [("127.0.0.1", each.port) for each in group.sentinels],
            sentinel_kwargs={"password": "c d", **tls},
            password="a b",
            **tls,
        )
        for client in (sentinel, sentinel.master_for("locks")):
            with Client.from_client(client, namespace=namespace) as locks, locks.lock("a", timeout=5.0):
                pass
            assert "a b" not in repr(locks.store)
    with RedisCluster(replicas=0, tls=True, password="a b") as cluster:
        assert cluster.certificates is not None
        known = redis.RedisCluster(
            host="127.0.0.1",
            port=cluster.nodes[0].port,
            password="a b",
            ssl=True,
            ssl_ca_certs=str(cluster.certificates.authority),
        )
        with Client.from_client(known, namespace=namespace) as locks, locks.lock("a", timeout=5.0):
            pass
        known.close()
