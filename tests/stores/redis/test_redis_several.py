"""Several names in one script: one request to take them and one to release them, and nothing is left where it fails."""

from __future__ import annotations

import pytest

from leasehold import Client, LeaseholdError, NameInUse, StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import CLAIM_MANY
from leasehold_lab.proxy.faults import Side
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedisServer
from support.flavors import both

NAMES = [f"name {number:02}" for number in range(20)]


@pytest.fixture(scope="module")
def server():
    """One whose statistics nobody else moves."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.port) as running:
        yield running


def calls(server, command):
    """Return how often a command came over the network, not from a script."""
    return {name: count for name, count in server.commandstats().items() if name.startswith(command)}


def test_twenty_names_are_one_command_to_take(server, namespace):
    with Client.from_url(server.url, namespace=namespace) as client:
        with client.multi_lock(["warm", "up"]):
            pass
        before = calls(server, "eval")
        hold = client.multi_lock(NAMES).acquire()
        after = calls(server, "eval")
        assert hold is not None
        assert after.get("evalsha", 0) - before.get("evalsha", 0) == 1
        assert after.get("eval", 0) == before.get("eval", 0)
        assert client.multi_lock(NAMES).acquire(timeout=0) is None
        assert calls(server, "evalsha")["evalsha"] == after["evalsha"] + 1
        assert len(client.holds()) == len(NAMES)
        hold.release()
        assert client.holds() == []


@both
def test_twenty_names_take_one_round_trip_and_so_does_their_release(redis_server, proxy, namespace, harness):
    """With replies 100 ms late: one after another the names would take two seconds."""

    async def body(harness):
        async with harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as client:
            async with client.multi_lock(["warm", "up"]):
                pass
            slow = proxy.delay(0.1, Side.REPLIES)
            start = harness.now()
            hold = await client.multi_lock(NAMES).acquire()
            taken = harness.now()
            await hold.release()
            released = harness.now()
            slow.remove()
            assert 0.1 <= taken - start < 1.0
            assert 0.1 <= released - taken < 1.0

    harness.run(body)


@both
@pytest.mark.parametrize("timeout", [0, 5])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_bytes_that_are_lost_cost_nothing(redis_server, proxy, namespace, harness, lost, timeout):
    """The same tickets are asked for again; whatever the first request did, all is held, and all is released."""

    async def body(harness):
        url = f"redis://127.0.0.1:{proxy.port}"
        async with (
            harness.client(url, namespace=namespace) as through,
            harness.client(redis_server.url, namespace=namespace) as clean,
        ):
            async with through.multi_lock(["warm", "up"]):
                pass
            lose = proxy.drop_reply if lost == "reply" else proxy.cut_at
            fault = lose(where=CLAIM_MANY.digest)
            hold = await through.multi_lock(NAMES).acquire(timeout=timeout)
            assert fault.hits == 1
            assert [info.name for info in await clean.holds()] == NAMES
            assert {info.name: info.holders[0].token for info in await clean.holds()} == hold.tokens
            await hold.release()
            assert await clean.holds() == []

    harness.run(body)


@both
def test_a_key_of_another_type_gives_the_others_back(redis_server, namespace, harness):
    """A script that fails in the middle leaves nothing, whether it tries or waits."""

    async def body(harness):
        lock_key = keys.mutex_keys(namespace, "b")[0]
        redis_server.command("SET", lock_key, "not a hash")
        async with harness.client(redis_server.url, namespace=namespace) as client:
            for timeout in (0, 1):
                with pytest.raises(LeaseholdError):
                    await client.multi_lock(["a", "b", "c"]).acquire(timeout=timeout)
                redis_server.command("DEL", lock_key)
                assert await client.holds() == []
                redis_server.command("SET", lock_key, "not a hash")
        redis_server.command("DEL", lock_key)

    harness.run(body)


@both
def test_kinds_are_mixed_in_one_script(redis_server, namespace, harness):
    async def body(harness):
        async with harness.client(redis_server.url, namespace=namespace) as client:
            permits = client.semaphore("s", 3).permits(2)
            async with client.multi_lock(["a", permits, "z"]) as hold:
                assert hold.names == ("a", "s", "z")
                assert await client.semaphore("s", 3).available() == 1
                assert await client.multi_lock(["b", permits, "y"]).acquire(timeout=0) is None
                assert [info.name for info in await client.holds()] == ["a", "s", "z"]
                with pytest.raises(NameInUse) as told:
                    await client.multi_lock(["b", client.semaphore("s", 4).permits(2), "y"]).acquire(timeout=0)
                assert told.value.name == "s"
                assert [info.name for info in await client.holds()] == ["a", "s", "z"]
            assert await client.holds() == []

    harness.run(body)


@both
def test_a_store_that_goes_away_in_between_is_told(redis_server, proxy, namespace, harness):
    """The second store does not answer: the lock of the first is given back before the error is raised."""

    async def body(harness):
        async with (
            harness.client(redis_server.url, namespace=namespace) as here,
            harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace + "-2", response_timeout=1) as there,
        ):
            async with there.lock("b"):
                pass
            proxy.blackhole()
            with pytest.raises(StoreUnavailable):
                await here.multi_lock(["a", there.lock("b"), "c"]).acquire(timeout=1)
            assert await here.holds() == []
            proxy.heal()

    harness.run(body)
