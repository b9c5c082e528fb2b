"""Plain keys on three servers, of which a majority decides: shared with redlock-py, and under faults of members."""

from __future__ import annotations

import pytest
from plain_nodes import OTHER, OURS, POLLED, THEIRS, gone, key, nodes, take, url, values

from leasehold import LeaseLost, StoreUnavailable
from leasehold.layouts.redis.inspecting import FOREIGN
from support.flavors import both
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers
from support.patience import until_in

__all__ = ["key", "nodes", "url"]  # pytest finds the fixtures here

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
    """No client has a majority: we give back the third vote, and acquire when one of them has retreated."""

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
            assert values(nodes, key) == [OTHER] * 3, "a late release frees no lock of another client"
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
