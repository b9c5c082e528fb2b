"""Faults of the server: restarted empty, stopped, flushed, connections killed; holders are notified in time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest

from leasehold._model import DRIFT
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.stores.redis import keys
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedisServer
from support.flavors import both

LEASE = 0.9
NOISE = 0.25
"""Seconds for scheduling on a busy machine."""


@pytest.fixture
def server():
    with RedisServer() as running:
        yield running


async def seconds_until_notified(harness, hold, limit):
    """Wait until a loss is reported; return the seconds that it took."""
    start, lost = harness.now(), harness.event()
    hold.on_lost(lambda error: lost.set())
    assert await lost.wait(limit)
    with pytest.raises(LeaseLost):
        hold.raise_if_lost()
    return harness.now() - start


@contextmanager
def repeating(seconds, deed):
    """Call ``deed`` in a thread, once in ``seconds``, until the block ends."""
    end = threading.Event()

    def work():
        while not end.wait(seconds):
            deed()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


# --- data are lost ---------------------------------------------------------------------------------------------


@both
def test_a_holder_loses_its_lock_when_the_server_restarts_empty(server, harness):
    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            token = hold.token
            server.restart(keep_data=False)
            assert await seconds_until_notified(harness, hold, 2 * LEASE) < LEASE / 3 + LEASE * 0.05 + NOISE
            again = await locks.lock("x").acquire(timeout=1)
            assert again.token > token
            await again.release()

    harness.run(body)


@both
@pytest.mark.parametrize("fair", [False, True])
def test_waiters_survive_a_restart_of_the_server(server, harness, fair):
    async def body(harness):
        async with harness.client(server.url) as locks, harness.client(server.url) as others:
            hold = await others.lock("x", lease=2.0).acquire()
            jobs = [harness.spawn(lambda: locks.lock("x", lease=2.0, fair=fair).acquire()) for _ in range(5)]
            await harness.sleep(0.3)
            server.kill()
            await harness.sleep(0.5)
            server.start()
            tokens = [hold.token]
            while jobs:
                done = [job for job in jobs if await job.join(0.01)]
                for job in done:
                    jobs.remove(job)
                    got = await job.result()
                    tokens.append(got.token)
                    await got.release()
            assert tokens == sorted(set(tokens))
            await seconds_until_notified(harness, hold, 2.0)

    harness.run(body)


@both
@pytest.mark.parametrize("deed", ["FLUSHALL", "DEL"])
def test_a_holder_learns_of_deleted_keys_at_its_next_renewal(redis_server, server, harness, deed):
    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            waiter = harness.spawn(lambda: locks.lock("x", lease=LEASE).acquire(timeout=5))
            await harness.sleep(0.1)
            server.command(*([deed] if deed == "FLUSHALL" else [deed, *keys.mutex_keys("default", "x")]))
            assert await seconds_until_notified(harness, hold, 2 * LEASE) < LEASE / 3 + NOISE
            got = await waiter.result()
            assert got.token > hold.token
            await got.release()

    harness.run(body)


@both
def test_a_holder_learns_of_a_key_that_expired_early(server, harness):
    """The server's clock stepped forward."""

    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            server.command("PEXPIRE", keys.mutex_keys("default", "x")[0], 1)
            assert await seconds_until_notified(harness, hold, 2 * LEASE) < LEASE / 3 + NOISE

    harness.run(body)


# --- no answer -------------------------------------------------------------------------------------------------


@both
def test_a_stalled_server_is_noticed_by_the_deadline(server, harness):
    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=LEASE).acquire()
            await harness.sleep(LEASE / 2)  # renewed once
            server.pause()
            left = hold.remaining
            assert await seconds_until_notified(harness, hold, 2 * LEASE) < left + 0.1
            server.resume()
            again = await locks.lock("x", lease=LEASE).acquire(timeout=2 * LEASE)
            assert again.token > hold.token
            await again.release()

    harness.run(body)


@both
def test_a_partitioned_holder_is_notified_before_another_can_hold(server, harness):
    async def body(harness):
        with FaultProxy(server.port) as proxy:
            async with (
                harness.client(f"redis://127.0.0.1:{proxy.port}", response_timeout=1.0) as locks,
                harness.client(server.url) as others,
            ):
                hold = await locks.lock("x", lease=LEASE).acquire()
                lost = []
                hold.on_lost(lambda error: lost.append(harness.now()))
                proxy.blackhole()
                start = harness.now()
                got = await others.lock("x").acquire(timeout=5)
                assert lost
                assert lost[0] < harness.now()
                assert harness.now() - start < LEASE + NOISE
                await got.release()
                proxy.heal()

    harness.run(body)


@both
def test_a_short_pause_of_writes_loses_nothing(server, harness):
    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=2.0).acquire()
            server.command("CLIENT", "PAUSE", 300, "WRITE")
            other = await locks.lock("y").acquire(timeout=2)
            hold.raise_if_lost()
            await other.release()
            await hold.release()

    harness.run(body)


@both
def test_an_acquire_whose_grant_came_too_late_tries_again(server, harness):
    """The reply is delayed for longer than the lease, which counts from before the request."""

    async def body(harness):
        async with harness.client(server.url) as locks:
            async with locks.lock("warm"):
                pass
            start = harness.now()
            server.command("CLIENT", "PAUSE", 400, "WRITE")
            hold = await locks.lock("x", lease=0.2).acquire(timeout=2)
            assert harness.now() - start >= 0.4 - 0.05
            assert 0 < hold.remaining <= 0.2
            await hold.release()

    harness.run(body)


@both
def test_a_late_grant_message_is_ignored(server, harness):
    """The message of a grant arrives after the end of the granted lease."""

    async def body(harness):
        with FaultProxy(server.port) as proxy:
            async with harness.client(f"redis://127.0.0.1:{proxy.port}") as locks, harness.client(server.url) as others:
                hold = await others.lock("x").acquire()
                waiter = harness.spawn(lambda: locks.lock("x", lease=LEASE).acquire(timeout=6))
                await harness.sleep(0.2)
                held = proxy.hold(Side.REPLIES, where=b"$7\r\nmessage")
                await hold.release()
                await harness.sleep(1.2 * LEASE)
                held.remove()
                got = await waiter.result()
                assert 0 < got.remaining <= LEASE
                stored = server.command("HGET", keys.mutex_keys("default", "x")[0], "f")
                assert int(stored) == got.token
                left = server.command("PTTL", keys.mutex_keys("default", "x")[0]) / 1000 - 3600
                assert got.remaining <= left * (1 - DRIFT) + 0.02
                await got.release()

    harness.run(body)


# --- connections are killed ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_hand_overs_go_on_while_connections_are_killed(server, harness, kind):
    """Each wait ends within a third of the waiter's lease; a reconnected waiter retries at once."""
    waiters, turns = 6, 4

    async def body(harness):
        async with harness.client(server.url) as locks, harness.client(server.url) as others:
            tokens, longest = [], []

            async def work(mine):
                for _ in range(turns):
                    start = harness.now()
                    hold = await acquire_again(mine)
                    longest.append(harness.now() - start)
                    tokens.append(hold.token)
                    await hold.release()

            async def acquire_again(mine):
                while True:
                    try:
                        return await mine.lock("x", lease=LEASE).acquire(timeout=20)
                    except StoreUnavailable as error:
                        if error.unknown:
                            raise  # else it was killed in a handshake, which at first contact is an error at once

            def kill():
                server.command("CLIENT", "KILL", "TYPE", kind)

            with repeating(0.05, kill):
                await harness.gather(*(work(locks if i % 2 else others) for i in range(waiters)))
            assert len(set(tokens)) == waiters * turns
            assert max(longest) < waiters * (LEASE / 3 + NOISE)

    harness.run(body)


@both
def test_a_hold_survives_killed_connections(server, harness):
    async def body(harness):
        async with harness.client(server.url) as locks:
            hold = await locks.lock("x", lease=2.0).acquire()
            with repeating(0.05, lambda: server.command("CLIENT", "KILL", "TYPE", "normal")):
                await harness.sleep(3.0)
            hold.raise_if_lost()
            assert await hold.release() is True

    harness.run(body)


@both
def test_waits_end_within_a_third_of_the_lease_if_every_message_is_lost(server, harness):
    async def body(harness):
        with FaultProxy(server.port) as proxy:
            proxy.drop(Side.REPLIES, where=b"$7\r\nmessage")
            async with harness.client(f"redis://127.0.0.1:{proxy.port}") as locks, harness.client(server.url) as others:
                for _ in range(3):
                    hold = await others.lock("x").acquire()
                    waiter = harness.spawn(lambda: locks.lock("x", lease=LEASE).acquire())
                    await harness.sleep(0.15)
                    start = harness.now()
                    await hold.release()
                    got = await waiter.result()
                    assert harness.now() - start < LEASE / 3 + NOISE
                    await got.release()

    harness.run(body)


# --- the password changed --------------------------------------------------------------------------------------


@both
def test_a_server_restarted_with_another_password(harness):
    async def body(harness):
        server = RedisServer(password="first-secret")
        with server:
            async with harness.client(server.url) as locks:
                hold = await locks.lock("x", lease=LEASE).acquire()
                server.password = "second-secret"
                server.restart(keep_data=False)
                start = time.monotonic()
                with pytest.raises(StoreUnavailable, match="wrong") as caught:
                    await locks.lock("y").acquire(timeout=2)
                assert time.monotonic() - start < 1.0
                assert "secret" not in str(caught.value)
                await seconds_until_notified(harness, hold, 2 * LEASE)

    harness.run(body)
