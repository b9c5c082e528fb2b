"""Layouts on the primary under Sentinel: waiters are woken there, and follow a failover."""

from __future__ import annotations

import pytest
from layout_keys import LAYOUT_NAMES, url_of

from leasehold_lab.servers import RedisSentinel
from support.flavors import both
from support.patience import until_in

layouts = pytest.mark.parametrize("layout", LAYOUT_NAMES)


@both
@layouts
def test_a_waiter_is_woken(redis_sentinel, namespace, harness, layout):
    url = url_of(redis_sentinel.url, layout)

    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(url, namespace=namespace) as other,
        ):
            tokens = []
            for _ in range(3):
                hold = await locks.lock("x").acquire(timeout=5)
                tokens.append(hold.token)
                waiter = harness.spawn(lambda: other.lock("x").acquire(timeout=20))
                await harness.sleep(0.4)
                start = harness.now()
                await hold.release()
                got = await waiter.result()
                assert harness.now() - start < 0.25
                tokens.append(got.token)
                await got.release()
            assert tokens == sorted(set(tokens))

    harness.run(body)


RESUMES = 1.0 + 6.0 + 3.0
"""Seconds from a primary's death until the service resumes: detection, election, promotion, pauses."""


async def waits_there(harness, group):
    """Wait until a client waits on the primary, for a message or for an element of a list."""

    def waits():
        primary = group.primary
        channels = set(primary.command("PUBSUB", "CHANNELS")) - {"__sentinel__:hello"}
        return channels or int(primary.info("clients")["blocked_clients"])

    await until_in(harness, waits, within=RESUMES)


@pytest.mark.timeout(120)
@both
@layouts
def test_holders_and_waiters_follow_a_failover(namespace, harness, layout):
    """The holder keeps what was replicated, and its release on the new primary wakes the waiter there."""

    async def body(harness):
        with RedisSentinel() as group:
            url = url_of(group.url, layout)
            async with (
                harness.client(url, namespace=namespace) as locks,
                harness.client(url, namespace=namespace) as other,
            ):
                hold = await locks.lock("x").acquire()
                waiter = harness.spawn(lambda: other.lock("x").acquire(timeout=60))
                await waits_there(harness, group)
                group.catch_up()
                old = group.primary
                old.kill()
                group.wait_failover(old)
                await waits_there(harness, group)
                await hold.renew()
                hold.raise_if_lost()
                assert not waiter.done()
                start = harness.now()
                await hold.release()
                got = await waiter.result()
                assert harness.now() - start < 0.5
                assert got.token > hold.token
                await got.release()

    harness.run(body)


@pytest.mark.timeout(120)
@both
@layouts
def test_the_lock_of_a_holder_that_ended_in_a_failover_is_free_after_its_lease(namespace, harness, layout):
    async def body(harness):
        with RedisSentinel() as group:
            url = url_of(group.url, layout)
            async with harness.client(url, namespace=namespace) as locks:
                hold = await locks.lock("x", lease=3, renew=False).acquire()
                waiter = harness.spawn(lambda: locks.lock("x").acquire(timeout=60))
                await waits_there(harness, group)
                group.catch_up()
                start = harness.now()
                group.primary.kill()
                got = await waiter.result()
                assert harness.now() - start < 3 + RESUMES
                assert got.token > hold.token
                await got.release()

    harness.run(body)
