"""Two promises: tokens never decrease, and a release notifies waiters at once, without their timers."""

from __future__ import annotations

import os
import time

from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.stores.redis import keys
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from support.flavors import both

DAY_US = 86_400_000_000
LEASE = 9.0
"""Seconds; a renewal, by which a waiter would notice a lost message, comes after a third of it."""


@both
def test_tokens_increase_when_the_servers_clock_is_behind_them(
    harness: Harness, redis_server: RedisServer, namespace: str
) -> None:
    """As after the clock was set back by a day."""

    async def body(harness: Harness) -> None:
        async with harness.client(redis_server.url, namespace=namespace) as locks:
            for kind in ("lock", "rlock"):
                ahead = (time.time_ns() // 1000) + DAY_US
                await (await taken(locks, kind)).release()
                redis_server.command("HSET", keys.mutex_keys(namespace, kind)[0].decode(), "f", str(ahead))
                for more in (1, 2):
                    hold = await taken(locks, kind)
                    assert hold.token == ahead + more
                    await hold.release()

    async def taken(locks, kind):
        hold = await getattr(locks, kind)(kind).acquire(timeout=1.0)
        assert hold is not None
        return hold

    harness.run(body)


@both
def test_a_lease_counts_from_before_the_request(harness: Harness, redis_server: RedisServer, namespace: str) -> None:
    lease, late = 3.0, 0.8

    async def body(harness: Harness) -> None:
        with FaultProxy(redis_server.port) as proxy:
            async with harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
                async with locks.lock("warm"):
                    pass
                slow = proxy.delay(late, Side.REPLIES)
                hold = await locks.lock("x", lease=lease, renew=False).acquire()
                assert hold is not None
                assert 0 < hold.remaining <= lease - late
                slow.remove()
                await hold.release()

    harness.run(body)


@both
def test_a_waiter_that_gives_up_passes_a_free_name_on(
    harness: Harness, redis_server: RedisServer, namespace: str
) -> None:
    """No retry is needed: the second waiter holds as soon as the first has given up."""

    async def body(harness: Harness) -> None:
        async with harness.client(redis_server.url, namespace=namespace) as locks:
            store, owner = locks.store, Owner("host", 1, "client")
            short, *waiting = (
                Ticket(ticket_id(os.urandom(16)), LeaseTerms(LockMode(), owner, lease)) for lease in (0.3, 30.0, 30.0)
            )
            await store.try_acquire("x", short, join=False, within=1.0)
            for ticket in waiting:
                await store.try_acquire("x", ticket, join=True, within=1.0)
            await harness.sleep(0.4)
            await store.release("x", waiting[0], reason=ReleaseReason.RELEASE, within=1.0)
            (view,) = await store.inspect("x", exact=True)
            assert [entry.ticket.id for entry in view.holders] == [waiting[1].id]
            await store.release("x", waiting[1], reason=ReleaseReason.RELEASE, within=1.0)

    harness.run(body)


@both
def test_a_subscribed_waiter_is_notified_at_once(harness: Harness, redis_server: RedisServer, namespace: str) -> None:
    async def body(harness: Harness) -> None:
        async with (
            harness.client(redis_server.url, namespace=namespace) as locks,
            harness.client(redis_server.url, namespace=namespace) as others,
        ):
            hold = await others.lock("x", lease=LEASE).acquire()
            job = harness.spawn(locks.lock("x", lease=LEASE).acquire)
            await harness.sleep(0.5)  # it has subscribed, and asked again
            assert hold is not None
            await hold.release()
            assert await job.join(LEASE / 6)
            got = await job.result()
            assert got is not None
            await got.release()

    harness.run(body)
