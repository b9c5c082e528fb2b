"""Lost requests and replies, at every chunk of a whole run, on both transports:

right result, same token, no remains.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import CLAIM, LEAVE, RENEW
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import BlockingHarness
from leasehold_lab.runtimes.sync_facade import sync_facade
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
    """Return ticket and token as the server has them."""
    ticket, token = server.command("HMGET", keys.mutex_keys(namespace, name)[0], "t", "f")
    return ticket, int(token) if token else None


def assert_clean(server, namespace):
    """Check that nobody holds or waits, and that what remains are locks that are remembered for an hour at most."""

    def held():
        with Client.from_url(server.url, namespace=namespace) as locks:
            return locks.holds()

    with ThreadPoolExecutor(1) as thread:  # a test of asyncio has a running loop here
        assert thread.submit(held).result() == []
    for key in server.command("KEYS", f"leasehold:{{{namespace}:*"):
        assert key.endswith(":lock")
        assert 0 < server.command("PTTL", key) <= 3_600_000


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
def test_a_claim_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
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
def test_a_leave_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
    async def body(harness):
        async with client_of(harness, origin, url, namespace) as locks:
            hold = await locks.lock("x").acquire()
            fault = proxy.drop_reply(where=LEAVE.digest) if lost == "reply" else proxy.cut_at(where=LEAVE.digest)
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
def test_a_renewal_is_lost(redis_server, proxy, url, namespace, harness, origin, lost):
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
def test_the_message_of_a_grant_is_lost(redis_server, proxy, url, namespace, harness):
    """The renewal of the waiter's place finds it: at a third of its lease."""

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


LONG_LEASE = 2.0
"""Seconds. Several runs share one process, so a renewal may be late by far more than a fault makes it."""

AT_ONCE = 8
"""Runs that share the process. Each has two clients and a proxy, and some ten threads."""


async def whole_run(harness, locks, others):
    """Hold, be waited for, hand over, be renewed, release; return the tokens in the order of the holds."""
    tokens = []
    async with locks.lock("x", lease=LONG_LEASE, timeout=5) as hold:
        tokens.append(hold.token)
        waiter = harness.spawn(lambda: others.lock("x", lease=LONG_LEASE, timeout=5).acquire())
        await harness.sleep(LONG_LEASE / 2)  # renewed once, waiting and holding
    got = await waiter.result()
    tokens.append(got.token)
    mine = harness.spawn(lambda: locks.lock("x", lease=LONG_LEASE, timeout=5).acquire())
    await harness.sleep(0.05)
    await got.release()
    last = await mine.result()
    tokens.append(last.token)
    last.raise_if_lost()
    await last.release()
    return tokens


FAULTS = {
    "drop request": lambda proxy, k: proxy.cut_at(k),
    "drop reply": lambda proxy, k: proxy.drop_reply(k),
    "reset before the reply": lambda proxy, k: proxy.cut_at(k, Side.REPLIES),
    "delay request": lambda proxy, k: proxy.delay(0.15, Side.REQUESTS, nth=k),
    "delay reply": lambda proxy, k: proxy.delay(0.15, Side.REPLIES, nth=k),
}


def sweep(server, namespace, harness, name, chunks):
    """Do the run once for each chunk, several at once: each with a proxy, clients and a namespace of its own."""

    async def one(k):
        space = f"{namespace}-{k}"
        with FaultProxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}"
            async with harness.client(url, namespace=space) as locks, harness.client(url, namespace=space) as others:
                fault = FAULTS[name](proxy, k)
                try:
                    tokens = await whole_run(harness, locks, others)
                    assert tokens == sorted(set(tokens))
                    outcome = "done"
                except StoreUnavailable as error:
                    outcome = str(error)
                hit = fault.hits
                fault.remove()
                again = await locks.lock("x", timeout=LONG_LEASE + 1.0).acquire()
                assert again is not None
                await again.release()
        return k, hit, outcome

    async def body(harness):
        done = []
        for first in range(0, len(chunks), AT_ONCE):
            done += await harness.gather(*(one(k) for k in chunks[first : first + AT_ONCE]))
        return done

    results = harness.run(body)
    for k, _, _ in results:
        assert_clean(server, f"{namespace}-{k}")
    return results


@both
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_every_chunk(redis_server, namespace, harness, name):
    """Nobody notices any of them: what is under way is repeated, and a handshake that breaks off is tried once more.

    Each run meets one fault. So the second attempt at a handshake is whole, and the bound is none.
    """
    results = sweep(redis_server, namespace, harness, name, range(1, 41))
    hit = [k for k, hits, _ in results if hits]
    assert len(hit) >= 12, "the sweep did not reach the end of the run"
    assert {k: outcome for k, _, outcome in results if outcome != "done"} == {}
