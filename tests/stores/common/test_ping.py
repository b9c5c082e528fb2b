"""`ping` answers where locks are acquired, and raises where they would not be."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from leasehold import Client, StoreUnavailable
from leasehold.stores import registry
from leasehold_lab.faulty_store import Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.flavors import both

NOISE = 1.0

NOBODY = {
    "redis": "redis://{}",
    "sentinel": "redis+sentinel://{}/mymaster",
    "cluster": "redis+cluster://{}",
    "redlock": "redlock://{},{},{}",
    "etcd": "etcd://{}",
    "zookeeper": "zookeeper://{}",
    "postgres": "postgresql://me:secret@{}/db",
    "postgres-session": "postgresql://me:secret@{}/db?mode=session",
    "mysql": "mysql://me:secret@{}/db",
    "mysql-session": "mysql://me:secret@{}/db?mode=session",
}
"""URLs without a listener."""


def ping(harness: Harness, where: Any, **options: Any) -> None:
    async def body(harness: Harness) -> None:
        async with harness.client(where, **options) as locks:
            await locks.ping()

    harness.run(body)


def refused(harness: Harness, where: Any, **options: Any) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        ping(harness, where, **options)
    return caught.value


@both
@pytest.mark.parametrize("store", NOBODY)
def test_a_store_that_is_not_there(harness: Harness, store: str) -> None:
    template = NOBODY[store]
    url = template.format(*(f"127.0.0.1:{free_port()}" for _ in range(template.count("{}"))))
    message = str(refused(harness, url, response_timeout=1.0))
    assert "release" not in message, "a ping is no release to whoever asks for it"
    assert store != "redlock" or message.startswith("too few nodes answered: 0 of 3")


@both
@pytest.mark.timing
def test_a_store_that_does_not_answer_takes_the_response_timeout(harness: Harness) -> None:
    with RedisServer() as server:
        server.pause()
        began = time.monotonic()
        refused(harness, server.url, response_timeout=0.3)
        assert 0.25 < time.monotonic() - began < 0.3 + NOISE


@both
def test_it_leaves_no_key(harness: Harness) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as plain:
        ping(harness, server.url)
        assert plain.dbsize() == 0


def test_a_server_that_became_a_replica_is_not_ready() -> None:
    """Its connections stay open, and it answers what is only read."""
    with RedisServer() as server, redis.Redis.from_url(server.url) as plain, Client.from_url(server.url) as locks:
        locks.ping()
        plain.replicaof("127.0.0.1", free_port())
        with pytest.raises(StoreUnavailable, match="replica"):
            locks.ping()
        plain.replicaof("NO", "ONE")
        locks.ping()


def test_a_server_that_may_write_nothing_is_not_ready() -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as plain, Client.from_url(server.url) as locks:
        locks.ping()
        plain.config_set("min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            locks.ping()


@both
def test_a_connection_that_broke_while_it_was_idle_is_no_failure(harness: Harness) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as plain:

        async def body(harness: Harness) -> None:
            async with harness.client(server.url) as locks:
                await locks.ping()
                plain.client_kill_filter(_type="normal", skipme=True)
                await locks.ping()

        harness.run(body)


@both
def test_a_redlock_needs_a_majority(harness: Harness) -> None:
    with RedisServer() as one, RedisServer() as two:
        third = f"127.0.0.1:{free_port()}"
        nodes = [server.url.removeprefix("redis://").partition("/")[0] for server in (one, two)]
        url = f"redlock://{nodes[0]},{nodes[1]},{third}"
        ping(harness, url)
        two.kill()
        assert "1 of 3, and it takes 2" in str(refused(harness, url, response_timeout=1.0))


@both
def test_a_lost_reply_is_asked_for_again(harness: Harness) -> None:
    store = Faulty(registry.opener("memory:"), nth(0, Fault(Kind.DROP_REPLY), method="release"))
    ping(harness, store, response_timeout=5.0)


@both
def test_a_store_that_refuses_is_asked_once(harness: Harness) -> None:
    calls = list[str]()

    def plan(call: Any) -> Fault:
        calls.append(call.method)
        return Fault(Kind.REFUSE)

    assert refused(harness, Faulty(registry.opener("memory:"), plan)).unknown is False
    assert calls == ["release"]


def test_a_closed_client() -> None:
    locks = Client.from_url("memory:")
    locks.close()
    with pytest.raises(RuntimeError, match="closed"):
        locks.ping()
