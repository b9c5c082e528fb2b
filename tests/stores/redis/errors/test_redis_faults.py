"""Lost requests and replies, at every chunk of a whole run, on both transports:

right result, same token, nothing left on the server.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import CLAIM, RELEASE, RENEW
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import BlockingHarness
from leasehold_lab.runtimes.sync_facade import sync_facade
from support.chunk_faults import FAULTS, sweep
from support.flavors import both

LEASE = 0.9


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.port) as running:
        yield running


@pytest.fixture
def url(proxy):
    return f"redis://127.0.0.1:{proxy.port}"


def stored(server, namespace, name):
    """Return ticket and token of the holder on the server."""
    ticket, token = server.command("HMGET", keys.mutex_keys(namespace, name)[0], "t", "f")
    return ticket, int(token) if token else None


def assert_clean(server, namespace):
    """Check that there are no holders and waiters, and that all keys left expire an hour after a lease."""

    def held():
        with Client.from_url(server.url, namespace=namespace) as locks:
            return locks.holds()

    with ThreadPoolExecutor(1) as thread:  # a test of asyncio has a running loop here
        assert thread.submit(held).result() == []
    for key in server.command("KEYS", f"leasehold:{{{namespace}:*"):
        assert key.endswith(":lock")
        assert 0 < server.command("PTTL", key) <= 3_600_000 + 30_000


# --- a reply is lost -------------------------------------------------------------------------------------------


def client_of(harness, origin, url, namespace):
    """Open a client by URL, or from a user's object that retries by itself, as redis-py does by default."""
    if origin == "url":
        return harness.client(url, namespace=namespace)
    if isinstance(harness, BlockingHarness):
        return sync_facade(Client.from_client(redis.Redis.from_url(url), namespace=namespace))
    return AsyncClient.from_client(redis.asyncio.Redis.from_url(url), namespace=namespace)


@both
@pytest.mark.parametrize("origin", ["url", "client"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_acquire_when_a_request_or_reply_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
    async def body(harness):
        async with client_of(harness, origin, url, namespace) as locks:
            async with locks.lock("warm"):
                pass
            fault = proxy.drop_reply(where=CLAIM.digest) if lost == "reply" else proxy.cut_at(where=CLAIM.digest)
            hold = await locks.lock("x").acquire(timeout=5)
            assert fault.hits == 1
            assert stored(redis_server, namespace, "x")[1] == hold.token
            hold.raise_if_lost()
            assert await hold.release()
        assert_clean(redis_server, namespace)

    harness.run(body)


@both
@pytest.mark.parametrize("origin", ["url", "client"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_release_when_a_request_or_reply_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
    async def body(harness):
        async with client_of(harness, origin, url, namespace) as locks:
            hold = await locks.lock("x").acquire()
            fault = proxy.drop_reply(where=RELEASE.digest) if lost == "reply" else proxy.cut_at(where=RELEASE.digest)
            await hold.release()  # no error: whether the first try or the second freed it is all the same
            assert fault.hits == 1
            assert not hold.lost
            assert_clean(redis_server, namespace)
            again = await locks.lock("x").acquire(timeout=0)
            assert again.token > hold.token
            await again.release()

    harness.run(body)


@both
@pytest.mark.parametrize("origin", ["url", "client"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_renewal_when_a_request_or_reply_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
    async def body(harness):
        async with client_of(harness, origin, url, namespace) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            before = stored(redis_server, namespace, "x")
            fault = proxy.drop_reply(where=RENEW.digest) if lost == "reply" else proxy.cut_at(where=RENEW.digest)
            await harness.sleep(1.5 * LEASE)
            assert fault.hits == 1
            hold.raise_if_lost()
            assert stored(redis_server, namespace, "x") == before
            assert await hold.release()
        assert_clean(redis_server, namespace)

    harness.run(body)


@both
def test_hand_over_when_the_grant_message_is_lost(redis_server, proxy, url, namespace, harness):
    """The renewal of the queue entry, at a third of the lease, finds the grant."""

    async def body(harness):
        async with (
            harness.client(redis_server.url, namespace=namespace) as others,
            harness.client(url, namespace=namespace) as locks,
        ):
            hold = await others.lock("x").acquire()
            waiter = harness.spawn(lambda: locks.lock("x", lease=LEASE).acquire())
            await harness.sleep(0.2)
            fault = proxy.drop(Side.REPLIES, where=b"$7\r\nmessage")
            start = harness.now()
            await hold.release()
            got = await waiter.result()
            assert fault.hits == 1
            assert harness.now() - start < LEASE / 3 + 0.25
            assert got.token > hold.token
            await got.release()

    harness.run(body)


# --- every chunk of a whole run --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_every_chunk(redis_server, namespace, harness, name):
    sweep(redis_server, namespace, harness, name, range(1, 41), assert_clean=partial(assert_clean, redis_server))
