"""The access rules of docs/backends/redis.md: enough for everything, each word needed, and nothing else allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold._model import Change, Severity
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import scripts
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisCluster, RedisSentinel, RedisServer
from leasehold_lab.servers.redis.resp import RedisError
from support.flavors import FLAVORS, both

PAGES = Path(__file__).parents[2] / "docs" / "backends"
PAGE = PAGES / "redis.md"


def documented(page: Path = PAGE) -> list[str]:
    """Return the words of the one line on the page that makes the user."""
    (line,) = re.findall(r"^ACL SETUSER .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    words: list[str] = line.split()
    return words


RULES = documented()[3:]
NEEDED = [rule for rule in RULES if rule[0] == "+" or rule.startswith(("~", "&"))]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        running.command(*documented())
        yield running


def url_of(server: RedisServer, user: str = "app") -> str:
    return f"redis://{user}:secret@127.0.0.1:{server.port}/0"


LEASE = 3.0
"""Seconds, long enough for a machine that is busy; the watchdog renews each third of it."""


async def everything(harness: Harness, url: str, namespace: str = "default") -> None:
    """Use every feature, contended and not."""
    async with harness.client(url, namespace=namespace, response_timeout=2.0) as locks:
        for fair in (False, True):
            lock = locks.lock("a b{c}:*?[é", fair=fair, lease=LEASE, lock_delay=0.1, meta={"why": "test"})
            hold = await lock.acquire()
            assert hold is not None
            await hold.renew()
            assert [info.name for info in await locks.holds("a b{")] == [lock.name]
            waiter = harness.spawn(lambda lock=lock: lock.acquire(timeout=5))
            async with harness.client(url, namespace=namespace) as others:
                other = harness.spawn(lambda name=lock.name: others.lock(name, lease=LEASE).acquire(timeout=5))
                info = await locks.inspect(lock.name)
                while info is None or len(info.waiters) < 2:
                    await harness.sleep(0.01)
                    info = await locks.inspect(lock.name)
                await harness.sleep(LEASE * 0.4)  # the watchdog renews holder and waiters
                await hold.release()
                for job in (waiter, other):
                    held = await job.result()
                    assert held is not None
                    await held.release()
        await shares(harness, locks)
        broken = await locks.rlock("broken").acquire()
        assert broken is not None
        assert await locks.force_release("broken", broken.token)
        assert (await locks.store.compare_and_set("cell", Change(b"v", fence=broken.token))).changed
        assert (await locks.store.compare_and_set("cell", Change())).value == b"v"


async def shares(harness: Harness, locks: Any) -> None:
    """Read, write and take permits, contended, renewed, upgraded and broken."""
    stock, partner = locks.rw_lock("stock", lease=LEASE, lock_delay=0.1), locks.semaphore("partner", 3, lease=LEASE)
    reading = await stock.reader().acquire()
    writer = harness.spawn(lambda: stock.writer().acquire(timeout=5))
    two = await partner.acquire(2)
    permits = harness.spawn(lambda: partner.acquire(2, timeout=5))
    await harness.sleep(LEASE * 0.4)  # the watchdog renews holders and waiters
    assert {info.name for info in await locks.holds()} >= {"stock", "partner"}
    for hold, job in ((reading, writer), (two, permits)):
        await hold.release()
        held = await job.result()
        assert held is not None
        await held.release()
    async with stock.upgradeable() as hold:
        writing = await hold.upgrade()
        assert await locks.force_release("stock", writing.token)


@both
def test_the_documented_rights_are_enough(harness: Harness, server: RedisServer) -> None:
    server.flush()
    server.command("SCRIPT", "FLUSH")
    server.command("ACL", "LOG", "RESET")
    harness.run(lambda harness: everything(harness, url_of(server)))
    assert server.command("ACL", "LOG") == []


@both
def test_the_documented_rights_are_enough_on_a_cluster(harness: Harness) -> None:
    words = documented(PAGES / "redis-cluster.md")[2:]
    with RedisCluster(replicas=0, users=[" ".join(words)]) as cluster:
        url = cluster.url.replace("//", "//app:secret@")
        harness.run(lambda harness: everything(harness, url))
        for node in cluster.nodes:
            assert node.command("ACL", "LOG") == []


@both
def test_the_documented_rights_are_enough_under_sentinel(harness: Harness) -> None:
    app, watcher = documented()[2:], documented(PAGES / "redis-sentinel.md")[2:]
    with RedisSentinel(replicas=1, users=[" ".join(app)], sentinel_users=[" ".join(watcher)]) as group:
        url = group.url.replace("//", "//app:secret@") + "?sentinel_username=watcher&sentinel_password=secret"
        harness.run(lambda harness: everything(harness, url))
        for server in [group.primary, *group.sentinels]:
            assert server.command("ACL", "LOG") == []


def test_the_rights_on_a_cluster_are_those_of_a_server_and_a_few() -> None:
    more = {"+ssubscribe", "+spublish", "+asking", "+cluster|slots", "+cluster|info"}
    assert set(documented(PAGES / "redis-cluster.md")[3:]) == set(RULES) | more


def test_the_rights_name_exactly_the_commands_of_the_scripts() -> None:
    def commands(text: bytes, call: bytes) -> set[str]:
        return {word.decode().lower() for word in re.findall(call + rb"\('([A-Z]+)'", text)}

    used = set().union(*(commands(script.text, rb"redis\.p?call") for script in scripts.ALL))
    assert commands(scripts.RIGHTS.text, rb"try") == used | {"info"}  # which only some deployments need
    asked = {"eval", "evalsha", "subscribe", "scan"}
    only_on_clusters = {"spublish"}
    assert {rule[1:] for rule in NEEDED if rule[0] == "+"} == (used - only_on_clusters) | asked


@pytest.mark.parametrize("rule", NEEDED)
@both
def test_each_right_is_needed_and_named_when_it_is_missing(harness: Harness, server: RedisServer, rule: str) -> None:
    server.command("ACL", "DELUSER", "poor")
    server.command("ACL", "SETUSER", "poor", *(other for other in RULES if other != rule))
    server.command("SCRIPT", "FLUSH")

    async def body(harness: Harness) -> None:
        async with harness.client(url_of(server)) as holder, harness.client(url_of(server, "poor")) as poor:
            hold = await holder.lock("taken").acquire()
            assert hold is not None
            started = harness.now()
            use = poor.holds if rule == "+scan" else poor.lock("taken", timeout=3).acquire
            with pytest.raises(StoreUnavailable) as caught:
                await use()
            assert harness.now() - started < 1.0
            assert not caught.value.unknown
            assert "docs/backends/redis.md" in str(caught.value)
            assert rule in str(caught.value) or (rule[0] == "&" and "channel" in str(caught.value))
            await hold.release()
            if rule[0] != "~" and rule not in ("+time", "+eval"):
                findings = {finding.subject: finding for finding in await poor.diagnose()}
                assert rule in findings["rights"].found
                assert findings["rights"].severity is (Severity.NOTE if rule == "+scan" else Severity.ERROR)

    harness.run(body)


DENIED = [
    ("GET", "other"),
    ("HSET", "other", "f", "v"),
    ("HGET", "leasehold:{other:x}:lock", "f"),
    ("DEL", "leasehold:{default:x}:lock"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SCRIPT", "FLUSH"),
    ("SCRIPT", "KILL"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("KEYS", "*"),
    ("ACL", "LIST"),
    ("INFO",),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("SHUTDOWN",),
    ("DEBUG", "SLEEP", "0"),
    ("PSUBSCRIBE", "*"),
    ("SUBSCRIBE", "other"),
    ("SUBSCRIBE", "leasehold:{other:}:wake:x"),
    ("PUBLISH", "other", "x"),
    ("EVAL", "return redis.call('HGET', 'other', 'f')", "0"),
    ("EVAL", "return redis.call('HGET', KEYS[1], 'f')", "1", "other"),
    ("EVAL", "return redis.call('GET', 'leasehold:{default:x}:lock')", "0"),
    ("EVAL", "return redis.call('PUBLISH', 'other', 'x')", "0"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
]


@pytest.mark.parametrize("words", DENIED, ids=" ".join)
def test_nothing_else_is_allowed(server: RedisServer, words: tuple[str, ...]) -> None:
    server.command("HSET", "other", "f", "v")
    connection = server.connect("app", "secret")
    try:
        with pytest.raises(RedisError, match=r"NOPERM|can't|ACL failure"):
            connection.command(*words)
    finally:
        connection.close()


@both
def test_another_namespace_is_refused_by_the_rule_to_add(harness: Harness, server: RedisServer) -> None:
    async def body(harness: Harness) -> None:
        async with harness.client(url_of(server), namespace="dev: {x}") as locks:
            with pytest.raises(StoreUnavailable, match=re.escape("~leasehold:{dev%3A%20%7Bx%7D:*")):
                await locks.lock("x").acquire(timeout=1)

    harness.run(body)


def test_a_right_that_the_default_user_lacks_is_named_when_it_is_missed() -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "admin", "on", ">secret", "+@all", "~*", "&*")
        server.command("ACL", "SETUSER", "default", "-zadd", "-exists")

        async def body(harness: Harness) -> None:
            async with harness.client(server.url) as locks:
                with pytest.raises(StoreUnavailable, match=r"lacks the rights \+exists \+zadd") as caught:
                    await locks.lock("x").acquire(timeout=3)
                assert not caught.value.unknown

        for harness in FLAVORS:
            harness.run(body)


def test_looking_for_rights_changes_nothing(server: RedisServer) -> None:
    server.flush()
    before = server.command("INFO", "keyspace")
    for harness in FLAVORS:

        async def body(harness: Harness) -> None:
            async with harness.client(url_of(server)) as locks:
                await locks.diagnose()
                async with locks.lock("x"):
                    pass

        harness.run(body)
    assert server.command("EXISTS", "leasehold:{default:}:lock", "leasehold:{default:}:queue") == 0
    assert before == "# Keyspace\r\n"


def test_another_database_needs_select(server: RedisServer) -> None:
    async def body(harness: Harness) -> None:
        url = url_of(server).replace("/0", "/3")
        async with harness.client(url) as locks:
            with pytest.raises(StoreUnavailable, match=r"\+select"):
                await locks.lock("x").acquire(timeout=1)

    for harness in FLAVORS:
        harness.run(body)
