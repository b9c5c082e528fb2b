"""Plain keys on three servers, of which a majority decides: shared with redlock-py, and under faults of members."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from leasehold import AsyncClient, LeaseLost, StoreUnavailable
from leasehold.layouts.redis.inspecting import FOREIGN
from leasehold.layouts.redis.redlock import RENEW, SCRIPTS
from leasehold.layouts.redis.scripts import COMMAND
from leasehold.stores.redis.doctor import foreign
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, REDLOCK_LEAVE
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedlockNodes
from support.flavors import both
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers
from support.patience import until_in
from support.steps import TO_THE_END, after_steps

OURS = ("ours", "ours-asyncio")

THEIRS = "redlock-py"

POLLED = 0.15 + 0.3
"""Seconds after a release of theirs, which notifies nobody, a round of votes, and a busy machine."""

OTHER = "0123456789abcdef"
"""The value of another program."""

STEPS = 60
"""More steps of the loop than an acquire and a release take."""


@pytest.fixture(scope="module")
def nodes(outlive):
    with RedlockNodes(3) as group:
        for node in group.nodes:
            outlive.add(node.pid)
        yield group


@pytest.fixture
def url(nodes):
    return f"{nodes.url}?layout=plain"


@pytest.fixture
def key(namespace):
    """The key of the lock ``x``."""
    return f"{namespace}:x"


@pytest.fixture
def breakable():
    """Nodes that a test may break."""
    with RedlockNodes(3) as group:
        yield group


@contextmanager
def proxies(nodes, count):
    """Put a proxy before the first ``count`` nodes; yield them, and the URL of all."""
    with ExitStack() as stack:
        before = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes[:count]]
        ports = [proxy.port for proxy in before] + [node.port for node in nodes.nodes[count:]]
        yield before, "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?layout=plain"


def values(nodes, key):
    return [node.command("GET", key) for node in nodes.nodes]


def take(node, key, value=OTHER, ms=10_000):
    """Take the key of a node as another program does."""
    assert node.command("SET", key, value, "NX", "PX", ms) == "OK"


async def gone(harness, nodes, key):
    """Wait until no node has the key; a give-back is waited for by nobody."""
    await until_in(harness, lambda: values(nodes, key) == [None] * 3, 3.0)


# --- shared with another library ---------------------------------------------------------------------------------


def test_three_and_three_count_together(redis_server, nodes, url, namespace):
    with lock_peers(redis_server, url, namespace) as peers:
        check_counting(peers, (THEIRS,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, url, namespace, ours):
    with lock_peers(redis_server, url, namespace, 10.0) as peers:
        check_exclusion(peers, ours, THEIRS, POLLED)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_of_either_side_blocks_for_a_lease(redis_server, url, namespace, ours, record_property):
    with lock_peers(redis_server, url, namespace, 1.5) as peers:
        for killed, next_ in ((ours, THEIRS), (THEIRS, ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, 1.5, POLLED)
            record_property("ms:layouts: free after kill -9, plain Redlock", round(took * 1000))


# --- what is on the nodes ----------------------------------------------------------------------------------------


@both
def test_each_node_has_the_key_with_the_lease(nodes, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=20).acquire()
            await until_in(harness, lambda: len(set(values(nodes, key))) == 1)
            for node in nodes.nodes:
                assert len(node.command("GET", key)) == 22
                assert 19_000 < node.command("PTTL", key) <= 20_000
            await hold.release()
            await gone(harness, nodes, key)
            for node in nodes.nodes:
                for left in node.command("KEYS", f"*{namespace}:*"):
                    assert 0 < node.command("PTTL", left) <= 3_620_000, left

    harness.run(body)


@both
def test_a_renewal_lengthens_the_key_on_each_node(nodes, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.9).acquire()
            await harness.sleep(2.0)
            hold.raise_if_lost()
            for node in nodes.nodes:
                assert 0 < node.command("PTTL", key) <= 900
            await hold.release()

    harness.run(body)


@both
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_stranger_on_some_nodes(nodes, url, key, namespace, harness, taken):
    """With one of three nodes it is no holder; with two it is. Its keys stay as they are, and none of ours is left."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for node in nodes.nodes[:taken]:
                take(node, key)
            seen = await locks.inspect("x")  # before any request of ours for a vote
            assert (seen is not None) == (taken > 1)
            if taken == 1:
                hold = await locks.lock("x").acquire(timeout=5)
                assert values(nodes, key)[0] == OTHER
                assert len(set(values(nodes, key)[1:])) == 1
                assert (await locks.inspect("x")).token == hold.token
                await hold.release()
            else:
                assert await locks.lock("x").acquire(timeout=0.5) is None
                (holder,) = (await locks.inspect("x")).holders
                assert (holder.host, holder.token) == (FOREIGN, None)
                assert 5 < holder.remaining <= 10
                assert OTHER not in repr(holder)
            await until_in(harness, lambda: values(nodes, key) == [OTHER] * taken + [None] * (3 - taken), 3.0)
            for node in nodes.nodes[:taken]:
                assert 5_000 < node.command("PTTL", key) <= 10_000
                node.command("DEL", key)
            hold = await locks.lock("x").acquire(timeout=1)
            await until_in(harness, lambda: len(set(values(nodes, key))) == 1)
            await hold.release()

    harness.run(body)


@both
def test_two_strangers_with_one_node_each_and_ours_with_none(nodes, url, key, namespace, harness):
    """Nobody has a majority: we give back the third, and acquire when one of them has retreated."""

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            take(nodes.nodes[0], key, "a" * 22)
            take(nodes.nodes[1], key, "b" * 22)
            assert await locks.lock("x").acquire(blocking=False) is None
            await until_in(harness, lambda: values(nodes, key)[2] is None, 3.0)
            mine = harness.spawn(lambda: locks.lock("x").acquire(timeout=10))
            await harness.sleep(0.3)
            assert not mine.done()
            nodes.nodes[1].command("DEL", key)
            hold = await mine.result()
            assert values(nodes, key)[0] == "a" * 22
            await hold.release()
            nodes.nodes[0].command("DEL", key)
            await gone(harness, nodes, key)

    harness.run(body)


@both
def test_a_key_without_an_end_is_respected(nodes, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            for node in nodes.nodes:
                node.command("SET", key, OTHER)
            assert await locks.lock("x").acquire(timeout=1.5) is None
            assert values(nodes, key) == [OTHER] * 3
            assert [node.command("PTTL", key) for node in nodes.nodes] == [-1] * 3
            mine = harness.spawn(lambda: locks.lock("x").acquire(timeout=10))
            await harness.sleep(0.2)
            for node in nodes.nodes:
                node.command("DEL", key)
            start = harness.now()
            await (await mine.result()).release()
            assert harness.now() - start < POLLED

    harness.run(body)


@both
def test_a_holder_whose_keys_another_program_deletes_is_told(nodes, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.9).acquire()
            await until_in(harness, lambda: len(set(values(nodes, key))) == 1)
            nodes.nodes[0].command("DEL", key)
            await harness.sleep(1.5)
            hold.raise_if_lost()  # a majority is left
            for node in nodes.nodes:
                node.command("DEL", key)
                take(node, key)
            await until_in(harness, lambda: hold.lost, 1.2)
            with pytest.raises(LeaseLost):
                await hold.release()
            assert values(nodes, key) == [OTHER] * 3, "a late release frees nobody else's lock"
            for node in nodes.nodes:
                node.command("DEL", key)

    harness.run(body)


@both
def test_a_key_of_another_type_is_named_and_left_as_it_is(nodes, url, key, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            nodes.nodes[0].command("RPUSH", key, "a")
            async with locks.lock("x"):
                pass
            nodes.nodes[1].command("RPUSH", key, "a")
            named = rf"too few nodes answered.*the key '{key}' is no plain lock; choose another name, or "
            with pytest.raises(StoreUnavailable, match=named) as caught:
                await locks.lock("x").acquire(timeout=0.3)
            assert "leasehold:" not in str(caught.value)
            with pytest.raises(StoreUnavailable, match=f"'{key}' is no plain lock"):
                await locks.inspect("x")
            assert [node.command("TYPE", key) for node in nodes.nodes[:2]] == ["list"] * 2
            for node in nodes.nodes[:2]:
                node.command("DEL", key)

    harness.run(body)


@both
def test_a_forced_release_frees_our_key_on_each_node(nodes, url, key, namespace, harness):
    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(url, namespace=namespace) as others,
        ):
            hold = await locks.lock("x", lease=0.9).acquire()
            assert await others.force_release("x", hold.token)
            await gone(harness, nodes, key)
            await until_in(harness, lambda: hold.lost, 1.2)

    harness.run(body)


@both
def test_clients_with_a_format_of_their_own_on_these_servers_are_not_disturbed(nodes, url, namespace, harness):
    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as shared,
            harness.client(nodes.url, namespace=namespace) as own,
            own.lock("x", lease=0.9) as hold,
        ):
            for _ in range(3):
                async with shared.lock("x"):
                    await harness.sleep(0.2)
            hold.raise_if_lost()
            assert (await own.inspect("x")).token == hold.token

    harness.run(body)


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
@pytest.mark.parametrize("script", [SCRIPTS[REDLOCK_CLAIM], SCRIPTS[REDLOCK_LEAVE], RENEW], ids=lambda s: s.name)
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
    page = (Path(__file__).parents[2] / "docs" / "backends" / "redis.md").read_text(encoding="utf-8")
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
