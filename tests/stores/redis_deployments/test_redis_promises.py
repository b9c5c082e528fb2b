"""Two promises: tokens never decrease, and a release notifies waiters at once, without their timers."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.stores.redis import keys
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from support.flavors import both

DAY_US = 86_400_000_000
DAY_MS = DAY_US // 1000
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
@pytest.mark.parametrize("kind", ["lock", "rlock", "semaphore"])
def test_a_token_is_remembered_until_the_servers_clock_has_passed_it(
    harness: Harness, redis_server: RedisServer, namespace: str, kind: str
) -> None:
    """The clock was set back by a day during a hold, so the keys live so much longer: no step may shorten that."""

    def number(*words: str) -> int:
        return int(str(redis_server.command(*words)))

    async def body(harness: Harness) -> None:
        async with (
            harness.client(redis_server.url, namespace=namespace) as locks,
            harness.client(redis_server.url, namespace=namespace) as others,
        ):
            turns = itertools.cycle((locks, others))

            async def step(does: str, name: str, hold: Any) -> Any:
                args = (2,) if kind == "semaphore" else ()
                if does == "acquire":
                    return await getattr(next(turns), kind)(name, *args, lease=LEASE).acquire(timeout=0)
                if does == "renew":
                    await hold.renew()
                elif does == "break":
                    (entry,) = (await locks.inspect(name)).holders
                    assert await locks.force_release(name, entry.token)
                elif does == "expire":
                    redis_server.command("PEXPIRE", key, str(number("PTTL", key) - int(1000 * LEASE)))
                    held = keys.shared_keys(namespace, name)[4].decode()
                    redis_server.command("ZUNIONSTORE", held, "1", held, "WEIGHTS", "0")
                else:
                    await hold.release()
                return hold

            for does in (
                ("release", "acquire", "release"),
                ("renew", "release"),
                ("renew", "expire", "acquire", "renew"),
                ("renew", "acquire", "release", "acquire", "acquire", "release"),
                ("break", "acquire", "break", "acquire", "release"),
            ):
                name = "-".join((kind, *does))
                key = keys.mutex_keys(namespace, name)[0].decode()
                hold = await step("acquire", name, None)
                ahead = (time.time_ns() // 1000) + DAY_US
                redis_server.command("HSET", key, "f", str(ahead))
                redis_server.command("PEXPIRE", key, str(number("PTTL", key) + DAY_MS))
                for one in does:
                    hold = await step(one, name, hold) or hold
                    left, highest = number("PTTL", key), number("HGET", key, "f")
                    assert highest >= ahead
                    assert time.time_ns() // 1000 + left * 1000 > highest, f"{one} of {does}"

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
