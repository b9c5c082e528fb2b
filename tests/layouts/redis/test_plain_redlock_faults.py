"""Redlock with plain keys: nodes that fail, rights that are missing, replies that are lost."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from plain_nodes import OTHER, POLLED, STEPS, breakable, gone, key, nodes, proxies, take, url, values

from leasehold import AsyncClient, StoreUnavailable
from leasehold.layouts.redis.redlock import RENEW, SCRIPTS
from leasehold.layouts.redis.scripts import COMMAND
from leasehold.stores.redis.doctor import foreign
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, REDLOCK_RELEASE
from support.flavors import both
from support.patience import until_in
from support.steps import TO_THE_END, after_steps

__all__ = ["breakable", "key", "nodes", "url"]  # pytest finds the fixtures here

# --- faults ------------------------------------------------------------------------------------------------------


@both
def test_one_of_three_nodes_is_down(breakable, namespace, harness):
    key = f"{namespace}:x"

    async def body(harness):
        async with harness.client(f"{breakable.url}?layout=plain", namespace=namespace, response_timeout=1.0) as locks:
            hold = await locks.lock("x", lease=1.5).acquire()
            breakable.nodes[0].kill()
            await harness.sleep(2.0)
            hold.raise_if_lost()
            await hold.release()
            token = hold.token
            for _ in range(5):
                async with locks.lock("x", lease=1.5) as hold:
                    assert hold.token > token
                    token = hold.token
            take(breakable.nodes[1], key)  # of the two that answer, one is taken: nobody has a majority of three
            assert await locks.lock("x", lease=1.5).acquire(timeout=0.5) is None
            await until_in(harness, lambda: breakable.nodes[2].command("GET", key) is None)
            breakable.nodes[0].start()
            async with locks.lock("x", lease=1.5, timeout=5):
                assert breakable.nodes[1].command("GET", key) == OTHER

    harness.run(body)


@both
def test_a_holder_renews_and_releases_when_memory_is_full(breakable, namespace, harness):
    key = f"{namespace}:x"

    async def body(harness):
        url = f"{breakable.url}?layout=plain"
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(url, namespace=namespace) as others,
        ):
            hold = await locks.lock("x", lease=0.6).acquire()
            waiter = harness.spawn(lambda: others.lock("x").acquire(timeout=1.5))
            await harness.sleep(0.3)
            for node in breakable.nodes:
                node.command("CONFIG", "SET", "maxmemory", "100kb")
            await harness.sleep(1.2)
            hold.raise_if_lost()
            await hold.release()
            assert values(breakable, key) == [None] * 3
            with pytest.raises(StoreUnavailable):
                await waiter.result()

    harness.run(body)


@both
@pytest.mark.parametrize("script", [SCRIPTS[REDLOCK_CLAIM], SCRIPTS[REDLOCK_RELEASE], RENEW], ids=lambda s: s.name)
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_step_whose_requests_or_replies_are_lost(nodes, key, namespace, harness, script, lost, count):
    """The acquire ends with a hold, or is repeated; a release leaves no key that blocks others for a lease."""

    async def body(harness):
        with proxies(nodes, count) as (before, url):
            async with harness.client(url, namespace=namespace, response_timeout=1.0) as locks:
                async with locks.lock("warm", lease=3.0) as hold:
                    await hold.renew()
                where = script.digest
                faults = [
                    proxy.drop_reply(where=where) if lost == "reply" else proxy.cut_at(where=where) for proxy in before
                ]
                hold = await locks.lock("x", lease=1.2 if script is RENEW else 30.0).acquire(timeout=10)
                if script is RENEW:
                    await harness.sleep(1.8)
                hold.raise_if_lost()
                await hold.release()
                again = await locks.lock("x").acquire(timeout=5)
                assert again.token > hold.token
                await again.release()
                end = harness.now() + 3.0
                while [fault.hits for fault in faults] != [1] * count:  # a majority was enough: one may come later
                    assert harness.now() < end, [fault.hits for fault in faults]
                    await harness.sleep(0.01)
                await gone(harness, nodes, key)

    harness.run(body)


def test_cancel_at_each_step(nodes, url, key, namespace):
    async def body():
        async with AsyncClient.from_url(url, namespace=namespace) as locks:
            outcomes = set()
            for k in (*range(STEPS), TO_THE_END):
                task = asyncio.ensure_future(locks.lock("x").acquire())
                await after_steps(k, task)
                if not task.cancelled():
                    await task.result().release()
                outcomes.add(task.cancelled())
                end = asyncio.get_running_loop().time() + 3.0
                while values(nodes, key) != [None] * 3:
                    assert asyncio.get_running_loop().time() < end, values(nodes, key)
                    await asyncio.sleep(0.005)
            assert outcomes == {True, False}

    asyncio.run(body())


def page_rules(namespace):
    """Return the rights that the pages list."""
    page = (Path(__file__).parents[3] / "docs" / "backends" / "redis.md").read_text(encoding="utf-8")
    listed = re.search(r"ACL SETUSER \S+ on >\S+ ([^`\n]+)", page)[1].replace("default:", f"{namespace}:")
    return [*listed.split(), f"~{namespace}:*", "+get", "+set", "+del"]


UNUSED = {"+info", "+spublish"}
"""Rights for a quarantine and for the shards of a cluster, which are not here."""


def test_the_pages_list_what_the_scripts_use():
    for script in SCRIPTS.values():
        used = {f"+{command.decode().lower()}" for command in COMMAND.findall(script.text)}
        assert used
        assert used - UNUSED <= set(page_rules("x")), script.name


@both
@pytest.mark.parametrize("lacking", ["+get", "+set", "+del"])
def test_a_missing_right_is_named_before_the_first_vote(nodes, key, namespace, harness, lacking):
    user = f"user-{namespace}"
    for node in nodes.nodes:
        node.command("ACL", "SETUSER", user, "on", ">s3cret", *page_rules(namespace), lacking.replace("+", "-"))
    hosts = nodes.url.removeprefix("redlock://")

    async def body(harness):
        async with harness.client(f"redlock://{user}:s3cret@{hosts}?layout=plain", namespace=namespace) as locks:
            with pytest.raises(StoreUnavailable, match=rf"lacks the right {re.escape(lacking)}; grant .*interop.md"):
                await locks.lock("x").acquire(timeout=1)
            assert values(nodes, key) == [None] * 3
            assert not any(node.command("KEYS", f"*{namespace}*") for node in nodes.nodes)
            for node in nodes.nodes:
                node.command("ACL", "SETUSER", user, lacking)
            await (await locks.lock("x").acquire(timeout=10)).release()

    harness.run(body)
    for node in nodes.nodes:
        node.command("ACL", "DELUSER", user)


@both
def test_doctor_does_not_warn_of_the_locks_that_are_shared(nodes, url, key, namespace, harness):
    for node in nodes.nodes:
        take(node, f"{key}:lock", "0" * 32)

    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(nodes.url, namespace=namespace) as own,
        ):
            assert any(one.subject.endswith(foreign.SUBJECT) for one in await own.store.diagnose())
            found = await locks.store.diagnose()
            assert not any(one.subject.endswith(foreign.SUBJECT) for one in found)
            assert [one.subject for one in found].count("layout") == 1

    harness.run(body)
    for node in nodes.nodes:
        node.command("DEL", f"{key}:lock")


@both
def test_the_rights_that_the_page_names_are_enough(nodes, key, namespace, harness):
    user = f"user-{namespace}"
    for node in nodes.nodes:
        node.command("ACL", "SETUSER", user, "on", ">s3cret", *page_rules(namespace))
    hosts = nodes.url.removeprefix("redlock://")

    async def body(harness):
        url = f"redlock://{user}:s3cret@{hosts}?layout=plain"
        one, other = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await one.lock("x", lease=0.9).acquire()
        waiter = harness.spawn(lambda: other.lock("x", lease=0.9).acquire(timeout=10))
        await harness.sleep(0.7)
        assert (await one.inspect("x")).token == hold.token
        start = harness.now()
        await hold.release()
        await (await waiter.result()).release()
        assert harness.now() - start < POLLED
        await gone(harness, nodes, key)

    harness.run(body)
    for node in nodes.nodes:
        node.command("ACL", "DELUSER", user)


@both
@pytest.mark.parametrize("layout", ["", "?layout=plain"])
def test_a_lock_is_never_looked_at_on_former_primaries(harness, breakable, namespace, layout):
    """They would answer reads for as long as the connections last, from what they knew when they became replicas."""

    async def body(harness):
        async with harness.client(breakable.url + layout, namespace=namespace) as looker:
            async with looker.lock("x"):
                assert (await looker.inspect("x")).holders
            for node in breakable.nodes[:2]:
                node.command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await looker.inspect("x")
            with pytest.raises(StoreUnavailable):
                await looker.lock("x").locked()

    harness.run(body)
