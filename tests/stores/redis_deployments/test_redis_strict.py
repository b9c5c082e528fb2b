"""Strict mode: no two valid claims overlap after a restart, flush or failover that loses data; without it they do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from strict_mode import LONGEST, NOISE, got, lose_touch, overlap, stalled, url_of, warm

from leasehold import AcquireTimeout, Client, LeaseLost, StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisReplicas, RedisSentinel, RedisServer
from support.flavors import both

modes = pytest.mark.parametrize("strict", [True, False], ids=["strict", "control"])


# --- a dataset that forgets ----------------------------------------------------------------------------------------


@modes
@both
@pytest.mark.parametrize("event", ["restart", "flush"])
def test_a_server_that_forgot_grants_nothing_for_the_longest_lease(
    event: str, strict: bool, harness: Harness, namespace: str
) -> None:
    with RedisServer() as server:
        url = url_of(server.url, strict)

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                first = await got(locks.lock("a", lease=LONGEST, renew=False))
                if event == "restart":
                    server.restart(keep_data=False)
                else:
                    server.flush()
                assert await overlap(harness, url, namespace, first) is not strict
                with pytest.raises(LeaseLost):
                    await first.release()

        harness.run(body)


@both
def test_a_holder_whose_lock_survived_keeps_it_in_quarantine(harness: Harness, namespace: str) -> None:
    """A restart with all data: the holder renews, waiters wait, and a release hands over after the quarantine."""
    with RedisServer(append_only=True) as server:
        url = url_of(server.url)

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                first = await got(locks.lock("a", lease=LONGEST))
                waiting = harness.spawn(lambda: got(locks.lock("a", lease=LONGEST), timeout=10.0))
                await harness.sleep(0.2)  # it has its place
                server.restart()
                began = harness.now()
                await harness.sleep(LONGEST / 2)
                await first.release()
                await harness.sleep(0.1)
                assert server.command("HEXISTS", f"leasehold:{{{namespace}:a}}:lock", "t") == 1  # put down as the next
                assert not waiting.done()
                second = await waiting.result()
                waited = harness.now() - began
                assert LONGEST - 0.1 < waited < LONGEST + NOISE
                assert second.token > first.token
                await second.release()

        harness.run(body)


@both
def test_all_waiters_acquire_after_the_quarantine(harness: Harness, namespace: str, redis_server: Any) -> None:
    """A new dataset has an unknown history. An acquire without waiting is refused at once."""
    url = url_of(redis_server.url)

    async def body(harness: Harness) -> None:
        async with harness.client(url, namespace=namespace) as locks:
            began = harness.now()
            assert await locks.lock("a", lease=1.0).acquire(timeout=0) is None
            with pytest.raises(AcquireTimeout, match=r"may have forgotten grants.* none for [01]\.\d s more") as late:
                async with locks.lock("a", lease=1.0, timeout=0.2):
                    pass
            assert late.value.held_by is None
            with pytest.raises(AcquireTimeout, match=r"none for [01]\.\d s more"):
                async with locks.semaphore("s", 2, lease=1.0, timeout=0.1):
                    pass
            assert harness.now() - began < LONGEST

            async def once(fair: bool) -> float:
                async with locks.lock("a", lease=1.0, fair=fair, timeout=20.0):
                    return harness.now() - began

            async def permit() -> float:
                async with locks.semaphore("s", 2, lease=1.0, timeout=20.0):
                    return harness.now() - began

            jobs = [harness.spawn(lambda fair=fair: once(fair)) for fair in (True, False) * 5]
            jobs += [harness.spawn(permit) for _ in range(5)]
            waited = [await job.result() for job in jobs]
            assert min(waited) > LONGEST - 0.1
            assert max(waited) < LONGEST + 1.0 + NOISE  # a wake-up that was lost costs a third of a lease

    harness.run(body)


def test_the_marker_outlives_every_lease(namespace: str, redis_server: RedisServer) -> None:
    with Client.from_url(url_of(redis_server.url), namespace=namespace) as locks:
        with locks.lock("a", lease=1.0, timeout=10.0):
            pass
        marker = f"leasehold:{{{namespace}:}}:marker"
        assert int(str(redis_server.command("PTTL", marker))) > 29 * 86_400_000
        began = time.monotonic()
        with locks.lock("b", lease=1.0, timeout=10.0):  # known by now: no name waits
            assert time.monotonic() - began < LONGEST / 2
        redis_server.command("HSET", marker, "l", 9000)  # another client takes longer leases: its bound counts
        redis_server.command("HSET", marker, "i", "another server")
        assert locks.lock("b", lease=1.0).acquire(timeout=0) is None
        left = [each.meaning for each in locks.diagnose() if each.subject == "strict"]
        assert "nothing is granted for another 8." in left[0] or "nothing is granted for another 9.0" in left[0]


# --- failover ------------------------------------------------------------------------------------------------------


@modes
@both
def test_a_failover_that_forgets_a_grant(strict: bool, harness: Harness, namespace: str) -> None:
    """The replica that takes over never saw the grant, though another acknowledged it."""
    with RedisReplicas(2) as group:
        old, (new, _) = group.primary, group.replicas

        async def body(harness: Harness) -> None:
            await warm(harness, url_of(old.url, strict), namespace)
            group.catch_up()
            async with harness.client(url_of(old.url, strict), namespace=namespace, response_timeout=2.0) as locks:
                lose_touch(new)
                first = await got(locks.lock("a", lease=LONGEST, renew=False))
                old.kill()
                new.command("REPLICAOF", "NO", "ONE")
                assert await overlap(harness, url_of(new.url, strict), namespace, first) is not strict

        harness.run(body)


@both
def test_a_server_that_becomes_primary_again_is_in_quarantine(harness: Harness, namespace: str) -> None:
    """It was never restarted, and its run id is the marker's; its earlier grants were lost meanwhile."""
    with RedisReplicas(1) as group:
        old, (new,) = group.primary, group.replicas
        longest = 4.0  # so that the claim is valid still when both have changed their roles
        url = url_of(old.url, more="&replicas=0").replace(f"={LONGEST}", f"={longest}")

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            group.catch_up()
            async with harness.client(url, namespace=namespace) as locks:
                lose_touch(new)
                first = await got(locks.lock("a", lease=longest, renew=False))
                group.promote(new)
                group.wait_until(lambda: old.info("replication")["master_link_status"] == "up", 10.0, "it follows")
                assert old.command("HEXISTS", f"leasehold:{{{namespace}:a}}:lock", "t") == 0
                old.command("REPLICAOF", "NO", "ONE")
                assert first.remaining > 0
                assert not await overlap(harness, url, namespace, first)

        harness.run(body)


@both
def test_a_hold_that_the_successor_knows_survives_the_failover(harness: Harness, namespace: str) -> None:
    with RedisSentinel(replicas=2) as group:
        url = url_of(group.url)

        async def body(harness: Harness) -> None:
            lease = 8.0  # longer than a failover takes
            mine = url.replace(f"={LONGEST}", f"={lease}")
            async with harness.client(mine, namespace=namespace) as locks:
                hold = await got(locks.lock("a", lease=lease), timeout=30.0)
                old = group.primary
                old.kill()
                group.wait_failover(old)
                began = harness.now()
                while harness.now() - began < lease / 3 + NOISE:  # one renewal at least
                    hold.raise_if_lost()
                    await harness.sleep(0.05)
                await hold.renew()
                assert hold.remaining > lease * 0.9
                assert await locks.lock("b", lease=1.0).acquire(timeout=0) is None
                await hold.release()

        harness.run(body)


# --- replicas that do not acknowledge ------------------------------------------------------------------------------


@both
def test_a_grant_that_no_replica_has_is_released(harness: Harness, namespace: str) -> None:
    with RedisReplicas(1) as group:
        primary, (replica,) = group.primary, group.replicas
        url = url_of(primary.url)

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                held = await got(locks.lock("held", lease=LONGEST))
                with stalled(replica):
                    began = harness.now()
                    with pytest.raises(StoreUnavailable, match="of 1 replicas that must have it in time only 0 did"):
                        await got(locks.lock("a", lease=LONGEST), timeout=5.0)
                    assert 0.9 < harness.now() - began < 1.0 + NOISE
                    assert not primary.command("HEXISTS", f"leasehold:{{{namespace}:a}}:lock", "t")
                    jobs = [harness.spawn(lambda n=n: locks.lock(f"n{n}", lease=LONGEST).acquire()) for n in range(5)]
                    for job in jobs:
                        assert isinstance(await refusal(job), StoreUnavailable)
                    held.raise_if_lost()  # renewals did not wait behind them
                assert await locks.lock("a", lease=LONGEST).acquire(timeout=5.0) is not None
                await held.release()

        harness.run(body)


async def refusal(job: Any) -> BaseException | None:
    await job.join()
    failed: BaseException | None = job.exception()
    return failed


@both
def test_a_waiter_holds_only_once_the_replicas_have_its_grant(harness: Harness, namespace: str) -> None:
    with RedisReplicas(1) as group:
        url, (replica,) = url_of(group.url), group.replicas

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                first = await got(locks.lock("a", lease=LONGEST))
                waiting = harness.spawn(lambda: got(locks.lock("a", lease=LONGEST), timeout=20.0))
                await harness.sleep(0.3)
                with stalled(replica):
                    await first.release()
                    await harness.sleep(0.5)
                    assert not waiting.done()
                second = await waiting.result()
                assert second.token > first.token
                await second.release()

        harness.run(body)


# --- clocks --------------------------------------------------------------------------------------------------------


def test_setting_the_clock_back_does_not_lengthen_the_quarantine() -> None:
    server = RedisServer()
    clock = server.give_clock()
    with server, Client.from_url(url_of(server.url)) as locks:
        lock = locks.lock("a", lease=LONGEST)
        assert lock.acquire(timeout=0.0) is None
        clock.step(-3600.0)
        assert lock.acquire(timeout=0.0) is None
        began = time.monotonic()
        hold = lock.acquire(timeout=60.0)
        assert hold is not None
        assert (
            time.monotonic() - began < LONGEST + 2.0
        )  # once more from the step on; the rest is room for a busy machine
        hold.release()
