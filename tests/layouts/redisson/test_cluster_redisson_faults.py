"""Faults of a cluster with locks of Redisson: failovers, a node that hangs, lost requests, cancellations, rights.

What a migration of a slot does is in ``test_cluster_redisson.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from layout_keys import assert_clean, url_of
from layout_rights import rules
from redisson_on_cluster import SHAPES, Java, followed

from leasehold import AsyncClient, StoreRefused
from leasehold_lab.servers import RedisCluster
from support.chunk_faults import sweep
from support.flavors import both
from support.patience import until_in
from support.steps import TO_THE_END, after_steps

LONG = 60.0
"""Seconds of a lease whose renewals come after the test."""

NOTIFIED = 0.25
"""Seconds after a message, on a busy machine."""

FAILS_OVER = 12.0
"""Seconds, at most, until another node has the slots of one that does not answer."""

shapes = pytest.mark.parametrize("shape", SHAPES)


# --- failovers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing(outlive: set[int]) -> Iterator[RedisCluster]:
    """Three primaries with a replica each, which take over from each other."""
    with RedisCluster(node_timeout=1.0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


@both
@shapes
@pytest.mark.parametrize("fault", ["asked for", "killed", "hangs"])
@pytest.mark.timeout(120)
def test_a_waiter_is_woken_at_the_new_primary(failing, namespace, harness, outlive, shape, fault):
    key = f"{namespace}:x"
    make, java = SHAPES[shape], Java(failing, key, shape)

    async def body(harness):
        url = url_of(failing.url, "redisson")
        old = failing.primary_of(key)
        (new,) = failing.replicas_of(old)
        lease = 9.0 if fault == "hangs" else LONG  # then the watchdog alone can see it, in a third of that
        async with harness.client(url, namespace=namespace) as locks:
            java.holds()
            waiter = harness.spawn(lambda: make(locks, "x", lease=lease).acquire(timeout=60))
            await until_in(harness, lambda: followed(old, key))
            failing.catch_up(old)
            match fault:
                case "asked for":
                    failing.ask_to_take_over(new)
                case "killed":
                    old.kill()
                case "hangs":
                    old.pause()
            try:
                await until_in(harness, lambda: new.role == "master", FAILS_OVER)
                await until_in(harness, lambda: followed(new, key), 1.0 if fault == "asked for" else FAILS_OVER)
                await harness.sleep(0.3)
                assert not waiter.done()
                start = harness.now()
                java.releases(new)
                hold = await waiter.result()
                assert harness.now() - start < NOTIFIED
                await hold.release()
            finally:
                if fault == "killed":
                    old.start()
                    outlive.add(old.pid)
                elif fault == "hangs":
                    old.resume()
                await until_in(harness, lambda: old.role == "slave", FAILS_OVER)
                failing.wait_healthy()

    harness.run(body)


@both
@pytest.mark.timeout(120)
def test_a_lock_that_has_not_reached_the_new_primary_is_acquired_there(failing, namespace, harness, outlive):
    """Its waiter follows no channel there: nobody holds it any more."""
    key = f"{namespace}:x"
    java = Java(failing, key, "redisson-lock")

    async def body(harness):
        old = failing.primary_of(key)
        async with harness.client(url_of(failing.url, "redisson"), namespace=namespace) as locks:
            old.cut_off()
            java.holds()
            waiter = harness.spawn(lambda: locks.lock("x", lease=LONG).acquire(timeout=60))
            await until_in(harness, lambda: followed(old, key))
            old.kill()
            try:
                await until_in(harness, waiter.done, FAILS_OVER)
                await (await waiter.result()).release()
            finally:
                old.start()
                outlive.add(old.pid)
                await until_in(harness, lambda: old.role == "slave", FAILS_OVER)
                failing.wait_healthy()

    harness.run(body)


# --- lost requests and replies, cancellations ------------------------------------------------------------------------


class Alone(RedisCluster):
    """A cluster of one node, which each client reaches through a proxy of its own."""

    def __init__(self) -> None:
        super().__init__(primaries=1, replicas=0)

    @property
    def port(self):
        return self.nodes[0].port

    def command(self, *words):
        return self.nodes[0].command(*words)


@pytest.fixture(scope="module")
def alone(outlive: set[int]) -> Iterator[Alone]:
    with Alone() as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


def through(client, proxy):
    """Let a client reach all nodes by a proxy, whatever address they announce."""
    topology = client.store._topology
    settings = topology.settings
    topology.settings = lambda address: settings(("127.0.0.1", proxy.port))


@both
@pytest.mark.parametrize("name", ["drop request", "drop reply", "reset before the reply"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.timeout(240)
def test_a_fault_at_every_chunk(alone, namespace, harness, shape, name):
    clean, make = partial(assert_clean, alone, "redisson"), SHAPES[shape]

    def url(server):
        return url_of(server.replace("redis://", "redis+cluster://"), "redisson")

    sweep(alone, namespace, harness, name, range(1, 41), assert_clean=clean, url_of=url, make=make, opened=through)


STEPS = 40
"""More steps of the loop than an acquire, a wait and a release take."""


async def keep(lock):
    """Acquire; a cancelled acquire leaves no hold."""
    return await lock.acquire()


async def until_gone(alone, namespace, locks):
    """Wait until there is no holder and no listener."""
    end = asyncio.get_running_loop().time() + 2.0
    while (found := await locks.holds() or followed(alone.nodes[0], f"{namespace}:x")) != []:
        assert asyncio.get_running_loop().time() < end, found
        await asyncio.sleep(0.005)


@shapes
@pytest.mark.parametrize("waits", ["queued", "woken"])
@pytest.mark.timeout(240)
def test_cancel_at_each_step(alone, namespace, shape, waits):
    make, url = SHAPES[shape], url_of(alone.url, "redisson")

    async def body():
        async with (
            AsyncClient.from_url(url, namespace=namespace) as locks,
            AsyncClient.from_url(url, namespace=namespace) as others,
        ):
            outcomes = set()
            for k in (*range(STEPS), TO_THE_END):
                hold = await make(others, "x").acquire()
                task = asyncio.ensure_future(keep(make(locks, "x")))
                await asyncio.sleep(0.03 if waits == "woken" else 0)
                releasing = None
                if waits == "woken" or k is TO_THE_END:
                    releasing = asyncio.ensure_future(hold.release())
                await after_steps(k, task)
                await (hold.release() if releasing is None else releasing)
                if not task.cancelled():
                    await task.result().release()
                outcomes.add(task.cancelled())
                await until_gone(alone, namespace, others)
            assert outcomes == {True, False}

    asyncio.run(body())
    assert_clean(alone, "redisson", namespace)


# --- rights ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def user(alone, namespace):
    yield f"user-{namespace}"
    alone.command("ACL", "DELUSER", f"user-{namespace}")


@both
@shapes
def test_the_listed_rights_are_enough_and_each_that_is_missing_is_named(alone, namespace, harness, user, shape):
    make = SHAPES[shape]
    url = url_of(alone.url.replace("://", f"://{user}:secret@"), "redisson")

    async def body(harness):
        for lacking in (None, "ssubscribe", "sunsubscribe", "spublish", "asking"):
            revoked = ["-publish", *([] if lacking is None else [f"-{lacking}"])]  # all is published in shards
            allowed = rules("redisson", namespace)
            alone.command("ACL", "SETUSER", user, "reset", "on", ">secret", *allowed, *revoked)
            async with (
                harness.client(url, namespace=namespace) as locks,
                harness.client(url, namespace=namespace) as other,
            ):
                if lacking is not None:
                    with pytest.raises(StoreRefused, match=rf"lacks the right \+{lacking}; grant .*interop.md"):
                        await make(locks, "x").acquire(timeout=5)
                    assert not alone.command("KEYS", f"*{namespace}:x*")
                    continue
                hold = await make(locks, "y", lease=0.6).acquire()
                waiter = harness.spawn(lambda: make(other, "y", lease=0.6).acquire(timeout=10))
                await until_in(harness, lambda: followed(alone.nodes[0], f"{namespace}:y"))
                await harness.sleep(0.5)
                await hold.release()
                await (await waiter.result()).release()

    harness.run(body)


@both
def test_a_right_to_the_channels_of_one_lock_alone_is_enough_for_it(alone, namespace, harness, user):
    """No two of these are in different slots, so the commands are tried with others."""
    allowed = [rule for rule in rules("redisson", namespace) if not rule.startswith("&redisson")]
    channel = f"&redisson_lock__channel:{{{namespace}:x}}*"
    alone.command("ACL", "SETUSER", user, "reset", "on", ">secret", *allowed, channel)
    url = url_of(alone.url.replace("://", f"://{user}:secret@"), "redisson")

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            await (await locks.lock("x").acquire(timeout=5)).release()

    harness.run(body)
