"""Holders that are killed and messages that are lost: others enter within the lease."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from shared_calls import LEASE, NAMES, NOISE, WRITER, a_ticket, claim, leave

from leasehold._model import (
    Granted,
    Wait,
)
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import SHARED_CLAIM, SHARED_RELEASE, SHARED_RENEW
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.proxy.proxy import FaultProxy, Side
from support.flavors import both

# --- a waiter without a subscriber -------------------------------------------------------------------------------


def test_a_waiter_without_a_subscriber_is_skipped_and_keeps_its_entry_for_a_second(server, store):
    name, writer, deaf, reader = next(NAMES), a_ticket(WRITER), a_ticket(WRITER), a_ticket()
    far = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(far, RedisStore)
    finish(far._transport.listen(5.0))
    claim(store, name, writer)
    claim(far, name, deaf)
    wait = claim(store, name, reader)
    assert isinstance(wait, Wait)
    finish(far.close())
    for _ in range(100):
        if server.command("PUBSUB", "NUMSUB", far._channel)[1] == 0:
            break
        time.sleep(0.01)
    leave(store, name, writer)
    assert finish(store.wait(name, reader, wait.mark, timeout=1.0)) is not None
    (view,) = finish(store.inspect(name, exact=True))
    assert [entry.ticket.id for entry in view.waiters] == [deaf.id]
    assert 0 < view.waiters[0].expires <= 1.001  # the server counts in ms


# --- killed holders ----------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from leasehold import Client
locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
for _ in range(int(sys.argv[4])):
    assert eval(sys.argv[3]).acquire() is not None
print("held", flush=True)
time.sleep(60)
"""


class Holder:
    """A process that holds, until it is killed."""

    def __init__(self, server, namespace, what, times=1):
        command = [sys.executable, "-c", HOLD, server.url, namespace, what, str(times)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@both
def test_readers_that_are_killed_keep_a_writer_out_for_a_lease_at_most(server, namespace, harness):
    """With a live reader the writer waits for that one alone; the dead one's lease expires."""
    dead = [Holder(server, namespace, f"locks.rw_lock('x', lease={LEASE}).reader()") for _ in range(3)]

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            live = await others.rw_lock("x", lease=LEASE).reader().acquire()
            writer = harness.spawn(lambda: locks.rw_lock("x").writer().acquire(timeout=10))
            await harness.sleep(LEASE / 2)
            for holder in dead:
                holder.kill()
            await harness.sleep(LEASE + NOISE)
            live.raise_if_lost()
            assert [who.owner for who in (await locks.inspect("x")).holders] == [live.owner]
            await live.release()
            start = harness.now()
            got = await writer.result()
            assert harness.now() - start < NOISE
            assert got.token > live.token
            await got.release()

    harness.run(body)


@both
def test_the_last_reader_is_killed_and_a_writer_enters_within_the_lease(server, namespace, harness):
    dead = [Holder(server, namespace, f"locks.rw_lock('x', lease={LEASE}).reader()") for _ in range(2)]

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            writer = harness.spawn(lambda: locks.rw_lock("x").writer().acquire(timeout=10))
            await harness.sleep(LEASE / 2)
            for holder in dead:
                holder.kill()
            start = harness.now()
            got = await writer.result()
            assert harness.now() - start < LEASE + NOISE
            await got.release()

    harness.run(body)


@both
def test_permits_of_killed_holders_return_within_the_lease(server, namespace, harness):
    dead = Holder(server, namespace, f"locks.semaphore('x', 5, lease={LEASE})", times=5)

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            partner = locks.semaphore("x", 5)
            assert await partner.acquire(blocking=False) is None
            waiters = [harness.spawn(lambda n=n: partner.acquire(n, timeout=10)) for n in (2, 3)]
            await harness.sleep(0.2)
            dead.kill()
            start = harness.now()
            got = [await waiter.result() for waiter in waiters]
            assert harness.now() - start < LEASE + NOISE
            assert await partner.available() == 0
            for hold in got:
                await hold.release()
            assert await partner.available() == 5

    harness.run(body)


@both
def test_another_waiter_watches_when_the_watching_one_acquires(server, namespace, harness):
    """The leases of killed holders end one after the other: each frees a permit for one of two waiters of a client."""
    dead = [Holder(server, namespace, f"locks.semaphore('x', 2, lease={lease})") for lease in (LEASE, 2 * LEASE)]

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            partner = locks.semaphore("x", 2)
            waiters = [harness.spawn(lambda: partner.acquire(timeout=10)) for _ in range(2)]
            await harness.sleep(0.2)
            for holder in dead:
                holder.kill()
            start = harness.now()
            got = [await waiter.result() for waiter in waiters]
            assert harness.now() - start < 2 * LEASE + NOISE
            for hold in got:
                await hold.release()

    harness.run(body)


EXPIRE_ALL = """
for _, ticket in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 'XX', 1, ticket) end
"""


def test_many_expired_holders_are_removed_in_steps(server, store):
    """While some of them remain, no ticket acquires; waiters retry at once."""
    name, writer = next(NAMES), a_ticket(WRITER)
    for _ in range(1_100):
        assert isinstance(claim(store, name, a_ticket(), join=False), Granted)
    server.command("EVAL", EXPIRE_ALL, 1, keys.shared_keys("default", name)[4])
    first = claim(store, name, writer)
    assert isinstance(first, Wait)
    assert first.ask_again < 0.01
    assert isinstance(claim(store, name, writer), Granted)
    assert server.command("ZCARD", keys.shared_keys("default", name)[4]) == 1


def test_many_readers_are_granted_in_steps(server, store):
    name, writer, readers = next(NAMES), a_ticket(WRITER), [a_ticket() for _ in range(1_100)]
    for ticket in (writer, *readers):
        claim(store, name, ticket)
    _, queue, _, _, holders, _ = keys.shared_keys("default", name)
    leave(store, name, writer)
    assert (server.command("ZCARD", holders), server.command("ZCARD", queue)) == (1_000, 100)
    leave(store, name, readers[0])
    assert (server.command("ZCARD", holders), server.command("ZCARD", queue)) == (1_099, 0)


# --- lost messages -----------------------------------------------------------------------------------------------

KINDS = {
    "reader": lambda locks: locks.rw_lock("x", lease=LEASE).reader(),
    "writer": lambda locks: locks.rw_lock("x", lease=LEASE).writer(),
    "permits": lambda locks: locks.semaphore("x", 5, lease=LEASE).permits(3),
}


@pytest.fixture
def proxy(server):
    with FaultProxy(server.port) as running:
        yield running


def lose(proxy, lost, script):
    return proxy.drop_reply(where=script.digest) if lost == "reply" else proxy.cut_at(where=script.digest)


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_acquire_renewal_and_release_with_lost_requests_or_replies(server, proxy, namespace, harness, kind, lost):
    """The lost request is repeated: one hold, with one token, and nothing is left on the server."""

    async def body(harness):
        async with harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            async with KINDS[kind](locks):
                pass
            fault = lose(proxy, lost, SHARED_CLAIM)
            hold = await KINDS[kind](locks).acquire(timeout=5)
            assert fault.hits == 1
            (info,) = (await locks.inspect("x")).holders
            assert info.token == hold.token
            fault = lose(proxy, lost, SHARED_RENEW)
            await harness.sleep(1.5 * LEASE)
            assert fault.hits == 1
            hold.raise_if_lost()
            fault = lose(proxy, lost, SHARED_RELEASE)
            await hold.release()
            assert fault.hits == 1
            assert await locks.holds() == []
            again = await KINDS[kind](locks).acquire(blocking=False)
            assert again.token > hold.token
            await again.release()

    harness.run(body)


@both
def test_hand_over_when_the_grant_message_is_lost(server, proxy, namespace, harness):
    """The renewal of the queue entry, at a third of the lease, finds the grant."""

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as others,
            harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks,
        ):
            hold = await others.rw_lock("x").writer().acquire()
            waiter = harness.spawn(KINDS["reader"](locks).acquire)
            await harness.sleep(0.2)
            fault = proxy.drop(Side.REPLIES, where=b"$7\r\nmessage")
            start = harness.now()
            await hold.release()
            got = await waiter.result()
            assert fault.hits == 1
            assert harness.now() - start < LEASE / 3 + NOISE
            await got.release()

    harness.run(body)
