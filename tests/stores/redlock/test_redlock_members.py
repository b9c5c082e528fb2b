"""What may be a node of Redlock: a server, or a Sentinel group, each with its own secrets; and what may not."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported
from leasehold._model import Severity
from leasehold._runtimes.base import Flavor
from leasehold._url import parse
from leasehold.stores.redis import keys
from leasehold.stores.redis.openers import Redlock, adopt_all
from leasehold.stores.redis.redlock.background import BackgroundCalls
from leasehold_lab.runtimes.harnesses import BlockingHarness
from leasehold_lab.servers import RedisReplicas, RedisSentinel, RedisServer, RedlockNodes
from support.flavors import both
from support.patience import until


def use_for_a_while(locks):
    until = time.monotonic() + 5
    while time.monotonic() < until:  # two that differ may have voted before the third has said who it is
        locks.lock("x").acquire(timeout=1).release()


def test_one_server_under_two_names_is_refused(redlock_nodes, namespace):
    first, second = (node.port for node in redlock_nodes.nodes[:2])
    url = f"redlock://127.0.0.1:{first},localhost:{first},127.0.0.1:{second}"
    with Client.from_url(url, namespace=namespace) as locks:
        with pytest.raises((Unsupported, StoreUnavailable), match="same server"):
            use_for_a_while(locks)
        with pytest.raises(Unsupported, match="same server"):
            locks.lock("x").acquire(timeout=1)
        (twins,) = [finding for finding in locks.diagnose() if finding.subject == "one server twice"]
        assert twins.severity is Severity.ERROR


def test_existing_clients_can_be_nodes(redlock_nodes, namespace):
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
def test_a_sentinel_group_is_a_node(redlock_nodes, redis_sentinel, namespace, harness):
    members = [redis_sentinel.url, *(f"redis://127.0.0.1:{node.port}" for node in redlock_nodes.nodes[:2])]
    redlock_nodes.nodes[1].pause()  # so it takes the one under Sentinel
    try:

        async def body(harness):
            client, other = (harness.client(Redlock(members), namespace=namespace) for _ in range(2))
            hold = await client.lock("x").acquire(timeout=10)
            assert await other.lock("x").acquire(blocking=False) is None
            job = harness.spawn(lambda: other.lock("x").acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await harness.sleep(0.01)
            await hold.release()
            late = await job.result()
            assert late.token > hold.token
            await late.release()
            redlock_nodes.nodes[1].resume()

        harness.run(body)
    finally:
        redlock_nodes.nodes[1].resume()


def test_the_caller_sends_to_each_kind_of_node_itself(redlock_nodes, redis_sentinel, namespace, monkeypatch):
    members = [redis_sentinel.url, *(f"redis://127.0.0.1:{node.port}" for node in redlock_nodes.nodes[:2])]
    with Client(Redlock(members), namespace=namespace) as locks:
        for _ in range(4):  # the first meets them, and connections are made behind it
            locks.lock("x").acquire(timeout=10).release()
            time.sleep(0.2)
        alongside, do = [], BackgroundCalls.do
        monkeypatch.setattr(BackgroundCalls, "do", lambda *args: (alongside.append(args), do(*args)))
        hold = locks.lock("x").acquire(timeout=10)
        key = keys.node_keys(namespace, "x")[0]
        servers = (redis_sentinel.primary, *redlock_nodes.nodes[:2])
        until(lambda: [server.command("HGET", key, "f") for server in servers] == [str(hold.token)] * 3, 5.0)
        assert hold.release() is True
        assert not alongside


@both
def test_each_node_has_a_password_and_tls_of_its_own(namespace, harness):
    app = "app on >s3cret ~* &* +@all"
    with RedisServer(tls=True, password="one") as a, RedisServer(users=[app], password="x") as b, RedisServer() as c:
        tls = f"?ssl_ca_certs={a.certificates.authority}"
        members = f"{a.url}{tls}|redis://app:s3cret@127.0.0.1:{b.port}|{c.url}"
        c.pause()  # so it takes the others

        async def body(harness):
            client = harness.client(f"redlock:{members}", namespace=namespace)
            hold = await client.lock("x").acquire(timeout=10)
            assert await hold.release() is True
            wrong = harness.client(f"redlock:{members.replace('s3cret', 'wr0ng')}", namespace=namespace)
            with pytest.raises(StoreUnavailable, match="too few nodes answered: 1 of 3") as caught:
                await wrong.lock("x").acquire(timeout=1)
            assert "wr0ng" not in str(caught.value)
            assert "one" not in repr(client.store).replace("None", "")

        harness.run(body)
        c.resume()


@both
@pytest.mark.nightly
def test_a_node_that_failed_over_gives_no_votes_while_in_quarantine(namespace, harness):
    """The promoted server may not know the last votes: it abstains for as long as they may count."""
    with RedlockNodes(2) as nodes, RedisSentinel() as group:
        alone = [f"redis://127.0.0.1:{node.port}" for node in nodes.nodes]
        url = f"redlock:{'|'.join([group.url, *alone])}|?quarantine=3"

        async def body(harness):
            client = harness.client(url, namespace=namespace)
            began = harness.now()
            while (hold := await tried(client, "x")) is None:
                assert harness.now() - began < 10
            await hold.release()
            nodes.nodes[1].kill()
            old = group.primary
            old.kill()
            group.wait_failover(old)
            began = harness.now()
            while (hold := await tried(client, "x")) is None:
                assert harness.now() - began < 15
            assert harness.now() - began > 2.5, "it voted before its quarantine was over"
            await hold.release()

        harness.run(body)


async def tried(client, name, lease=2.5):
    try:
        return await client.lock(name, lease=lease).acquire(timeout=0.3)
    except StoreUnavailable:
        return None


@pytest.mark.parametrize("few", [["redis://a"], ["redis://a", "redis://b"], ["redis://a", "redis://b", "redis://a"]])
def test_too_few_nodes_are_refused_at_once(few):
    with pytest.raises(ValueError, match=r"takes 3 nodes or more|there twice"):
        Redlock(few)


@both
@pytest.mark.nightly
def test_a_failover_of_a_node_loses_no_lock(namespace, harness):
    """Five of all kinds. The primaries of two of them fail, one after the other, while a lock is held and used."""
    with RedlockNodes(2) as nodes, RedisSentinel() as first, RedisSentinel() as second, RedisReplicas(1) as group:
        members = [*(f"redis://127.0.0.1:{node.port}" for node in nodes.nodes), first.url, second.url, group.url]

        async def body(harness):
            client, other = (harness.client(Redlock(members), namespace=namespace) for _ in range(2))
            hold = await client.lock("x", lease=2.0).acquire(timeout=10)
            key, last = keys.node_keys(namespace, "x")[0], 0
            for broken, old in ((first, first.primary), (second, second.primary)):
                old.kill()
                until = harness.now() + 6.0  # longer than it takes to fail over, and than three leases
                while harness.now() < until:
                    hold.raise_if_lost()
                    assert await other.lock("x", lease=2.0).acquire(timeout=0) is None
                    used = await other.lock("y", lease=2.0).acquire(timeout=5)
                    assert used.token > last
                    last = used.token
                    await used.release()
                    await harness.sleep(0.05)
                broken.wait_failover(old)
            await hold.release()
            again = await other.lock("x", lease=2.0).acquire(timeout=5)
            assert again.token > hold.token
            new = (first.primary, second.primary)
            await harness.sleep(2.5)  # connected to anew, and renewed: the new primaries vote, too
            assert [server.command("HGET", key, "f") for server in new] == [str(again.token)] * 2
            await again.release()

        harness.run(body)


def test_invalid_nodes_are_refused():
    three = ["redis://a", "redis://b", "redlock://c,d,e"]
    with pytest.raises(TypeError, match="one server or a Sentinel group, not a Redlock"):
        Redlock(three)
    with pytest.raises(TypeError, match="not a Redlock"):
        Client.from_url("redlock:redis://a|redis://b|redlock://c,d,e")
    for wrong, words in {
        "redlock:redis://a|redis://b": "takes 3 nodes",
        "redlock:redis://a|redis://b|redis://a": "there twice",
        "redlock:redis://a|nosuch://:pw@b|redis://c": "which nosuch: is not; pass redis://",
        "redlock:redis://a|postgresql://b/x|redis://c": "which postgresql: is not; pass redis://",
        "redlock:redis://a|redis://b|c": "wrong at member 3 of 3: the store URL has no scheme",
        "redlock:redis://a|redis://:pw@b/x@y|redis://c": "wrong at member 2 of 3",
        "redlock:redis://a|redis://b|redis+sentinel://c/m?strict=true": "no strict mode",
        "redlock:redis://a|redis://b|redis+cluster://:pw@c": "cannot be a whole cluster; use the cluster alone",
        "redlock:redis://a|redis://b|redis://c|?strict=true": "unknown option 'strict'",
        "redlock:redis://a|redis://b|redis://c|?quarantine=soon": "number of seconds",
        "redlocks:redis://a|redis://b|redis://c": "says itself whether it uses TLS",
    }.items():
        with pytest.raises(ValueError, match=words) as caught:
            Client.from_url(wrong)
        assert "pw" not in str(caught.value)


def test_the_parts_of_a_url_with_members():
    url = parse("redlock:redis://:pw@a?db=1|redis+sentinel://s1,s2/m?sentinel_password=o|rediss://c|?quarantine=6")
    assert [str(parse(each)) for each in url.members] == [
        "redis://:***@a",
        "redis+sentinel://s1,s2/m",
        "rediss://c",
    ]
    assert dict(url.options) == {"quarantine": "6"}
    assert str(url) == "redlock:redis://:***@a|redis+sentinel://s1,s2/m|rediss://c"
    assert "pw" not in repr(url)


@both
def test_clients_for_sentinels_are_nodes(redlock_nodes, redis_sentinel, namespace, harness):
    """And doctor checks each node as what it is."""
    kind = redis if isinstance(harness, BlockingHarness) else redis.asyncio
    flavor = Flavor.SYNC if isinstance(harness, BlockingHarness) else Flavor.ASYNC

    async def body(harness):
        sentinel = kind.Sentinel([("127.0.0.1", each.port) for each in redis_sentinel.sentinels])
        single = [kind.Redis(port=node.port) for node in redlock_nodes.nodes[:2]]
        client = harness.client(adopt_all([sentinel, *single], flavor), namespace=namespace)
        hold = await client.lock("x").acquire(timeout=10)
        assert hold.token
        await harness.sleep(0.3)
        for node in (redis_sentinel.primary, *redlock_nodes.nodes[:2]):
            assert node.command("HGET", keys.node_keys(namespace, "x")[0], "f") == str(hold.token)
        found = {finding.subject: finding for finding in await client.diagnose()}
        assert found["nodes"].severity is Severity.OK
        assert found["restart of a node"].severity is Severity.WARNING
        assert "forgetful: the primary of the sentinels at" in found["restart of a node"].found
        assert sum(subject.endswith(" sentinels") for subject in found) == 1
        assert not any(one.severity is Severity.ERROR for one in found.values())
        await hold.release()
        for each in single:
            await each.aclose() if flavor is Flavor.ASYNC else each.close()

    harness.run(body)


@both
def test_a_client_for_a_cluster_is_refused_as_a_node(redis_cluster, namespace, harness):
    kind = redis if isinstance(harness, BlockingHarness) else redis.asyncio
    flavor = Flavor.SYNC if isinstance(harness, BlockingHarness) else Flavor.ASYNC

    async def body(harness):
        cluster = kind.RedisCluster(host="127.0.0.1", port=redis_cluster.nodes[0].port)
        single = [kind.Redis(port=1), kind.Redis(port=2)]
        if flavor is Flavor.ASYNC:
            await cluster.initialize()
        with pytest.raises(ValueError, match="cannot be a whole cluster; use the cluster alone"):
            adopt_all([*single, cluster], flavor)
        for each in (cluster, *single):
            await each.aclose() if flavor is Flavor.ASYNC else each.close()

    harness.run(body)
