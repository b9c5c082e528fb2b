"""Strict mode: no two valid claims overlap after a restart, flush or failover that loses data; without it they do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold import AcquireTimeout, AsyncClient, Client, LeaseLost, StoreUnavailable, Unsupported
from leasehold._model import Severity
from leasehold.stores.redis.doctor.group_checks import cut_off
from leasehold.stores.redis.openers import Strict
from leasehold.stores.redis.strict.checks import adjusted, state_finding
from leasehold_lab.history import History, Hold, check
from leasehold_lab.runtimes.harnesses import Harness, Job
from leasehold_lab.servers import RedisCluster, RedisReplicas, RedisSentinel, RedisServer
from support.flavors import ASYNCIO, BLOCKING, both, by_day

LONGEST = 1.5
"""Seconds of the longest lease, and of the leases here."""

NOISE = 1.0
"""Seconds that a busy machine may add to what the protocol bounds."""


modes = pytest.mark.parametrize("strict", [True, False], ids=["strict", "control"])


def url_of(url: str, strict: bool = True, more: str = "") -> str:
    if not strict:
        return url
    return f"{url}{'&' if '?' in url else '?'}strict=true&longest_lease={LONGEST}{more}"


async def warm(harness: Harness, url: str, namespace: str, name: str = "a") -> None:
    """Wait out the quarantine of a dataset that is new."""
    async with harness.client(url, namespace=namespace) as locks, locks.lock(name, lease=LONGEST, timeout=10.0):
        pass


async def got(lock: Any, timeout: float | None = None) -> Any:
    """Acquire; None is a failure."""
    hold = await lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


@contextmanager
def stalled(*servers: RedisServer) -> Generator[None, None, None]:
    """Stop servers for a while."""
    for server in servers:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)


def lose_touch(replica: RedisServer) -> None:
    """Disconnect a replica from its primary; a stalled one would still read what is in its socket."""
    replica.command("REPLICAOF", "127.0.0.1", "1")


async def overlap(harness: Harness, url: str, namespace: str, first: Any) -> bool:
    """Acquire what ``first`` holds; return whether both claims are valid at once."""
    async with harness.client(url, namespace=namespace) as others:
        began = harness.now()
        second = await others.lock(first.name, lease=LONGEST).acquire(timeout=10.0)
        both_valid = first.remaining > 0
        assert second is not None
        assert harness.now() - began < 5.0 + NOISE
        assert second.token > first.token
        await second.release()
        return both_valid


# --- a dataset that forgets ----------------------------------------------------------------------------------------


@modes
@by_day(BLOCKING)
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


@by_day(ASYNCIO)
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
@by_day(BLOCKING)
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


@by_day(ASYNCIO)
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


@by_day(BLOCKING)
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


@by_day(ASYNCIO)
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


# --- under load ----------------------------------------------------------------------------------------------------


@by_day(ASYNCIO)
def test_primaries_are_killed_under_load(harness: Harness, namespace: str) -> None:
    with RedisSentinel(replicas=2) as group:
        killed(group, harness, namespace, 1)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@both
@pytest.mark.parametrize("kind", [RedisSentinel, RedisCluster])
def test_primaries_are_killed_for_long(kind: Any, harness: Harness, namespace: str) -> None:
    with kind() as group:
        killed(group, harness, namespace, 8)


def killed(group: Any, harness: Harness, namespace: str, times: int) -> None:
    """Kill primaries under load, and let the checker look for claims that overlap."""
    group.wait_healthy()
    holds: list[Hold] = []
    ends = threading.Event()
    names = [f"name-{number}" for number in range(4)]
    bound = 10.0 + 2 * LONGEST + 3 * NOISE

    def served(since: float) -> bool:
        return {hold.name for hold in list(holds) if hold.asked > since} == set(names)

    def disturb() -> None:
        group.wait_until(lambda: served(0.0), bound, "each name is granted")
        for turn in range(times):
            key = f"leasehold:{{{namespace}:{names[turn % 4]}}}:lock"
            old = group.primary_of(key) if isinstance(group, RedisCluster) else group.primary
            old.kill()
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            group.wait_until(lambda now=now: served(now), bound, "each name is granted anew")
            old.start()
            group.wait_healthy()

    async def body(harness: Harness) -> None:
        async with harness.client(url_of(group.url), namespace=namespace) as locks:
            jobs = [
                harness.spawn(lambda name=name, who=who: work(harness, locks, f"{name}/{who}", name, holds, ends))
                for name in names
                for who in range(2)
            ]
            await disturbed(harness, disturb, jobs, ends)

    harness.run(body)
    verdict = check(History(holds=tuple(holds)))
    assert not verdict.violations, verdict.report()


async def disturbed(
    harness: Harness, disturb: Callable[[], None], jobs: Sequence[Job[None]], ends: threading.Event
) -> None:
    """Disturb the servers while the jobs run; raise the errors of both."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            disturb()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        await harness.sleep(0.02)
    ends.set()
    for job in jobs:
        await job.result()
    if failed:
        raise failed[0]


async def work(harness: Harness, locks: Any, who: str, name: str, holds: list[Hold], ends: threading.Event) -> None:
    """Acquire again and again; some holds last over a failover."""
    while not ends.is_set():
        asked = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            hold = await locks.lock(name, lease=LONGEST).acquire(timeout=2.0)
        except (StoreUnavailable, LeaseLost):
            await harness.sleep(0.02)
            continue
        if hold is None:
            continue
        got = time.clock_gettime(time.CLOCK_BOOTTIME)
        keep = LONGEST * 1.5 if len(holds) % 8 == 0 else 0.01
        left = now = got
        while now < got + keep and hold.remaining > 0 and not ends.is_set():
            await harness.sleep(0.01)
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            left = now if hold.remaining > 0 else left
        holds.append(Hold(who, name, asked, got, left, token=hold.token, lease=LONGEST))
        try:
            await hold.release()
        except LeaseLost:
            pass


# --- cluster -------------------------------------------------------------------------------------------------------


@by_day(ASYNCIO)
def test_a_cluster_waits_once_for_each_node(harness: Harness, namespace: str) -> None:
    """Not for each name or slot. A marker whose slot has moved is made anew. Only a flushed node waits."""
    with RedisCluster(replicas=1) as cluster:
        url = url_of(cluster.url)
        names = [f"n{number}" for number in range(12)]

        async def body(harness: Harness) -> None:
            async with harness.client(url, namespace=namespace) as locks:

                async def each() -> dict[str, float]:
                    took: dict[str, float] = {}
                    for name in names:
                        began = harness.now()
                        async with locks.lock(name, lease=1.0, timeout=10.0):
                            took[name] = harness.now() - began
                    return took

                await each()
                assert max((await each()).values()) < LONGEST / 2
                flushed = cluster.primary_of(f"leasehold:{{{namespace}:n0}}:lock")
                flushed.flush()
                took = await each()
                there = [n for n in names if cluster.primary_of(f"leasehold:{{{namespace}:{n}}}:lock") is flushed]
                assert took[there[0]] > LONGEST - 0.1
                assert all(seconds < LONGEST / 2 for name, seconds in took.items() if name != there[0])
                marker = first_marker(flushed, namespace)
                target = next(node for node in cluster.primaries if node is not flushed)
                cluster.migrate(marker, target).finish()
                assert max((await each()).values()) < LONGEST + NOISE

        harness.run(body)


def first_marker(node: RedisServer, namespace: str) -> str:
    found = node.command("KEYS", f"leasehold:{{{namespace}:*}}:marker")
    assert isinstance(found, list)
    return str(found[0])


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("strict=yes", "'strict' in the redis URL is true or false, not 'yes'"),
        ("longest_lease=5", "'longest_lease' in the redis URL needs strict=true"),
        ("strict=true&longest_lease=soon", "is a number of seconds"),
        ("strict=true&longest_lease=0", "above 0"),
        ("strict=true&longest_lease=nan", "above 0"),
        ("strict=true&longest_lease=90000", "at most 86400"),
        ("strict=true&replicas=some", "whole number"),
        ("strict=true&replicas=-1", "from 0 to 1000"),
        ("strict=true&fsync=1", "true or false"),
        ("strict=false&fsync=true", "needs strict=true"),
    ],
)
def test_invalid_options_are_refused(options: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Client.from_url(f"redis://localhost?{options}")


def test_redlock_refuses_strict_members() -> None:
    with pytest.raises(ValueError, match="strict"):
        Client.from_url("redlock://a,b,c?strict=true")


@pytest.mark.parametrize("scheme", ["redis://h", "redis+sentinel://h/n", "redis+cluster://h"])
def test_a_lease_above_the_bound_is_refused_when_the_lock_is_made(scheme: str) -> None:
    with Client.from_url(f"{scheme}?strict=true&longest_lease=10") as locks:
        locks.lock("a", lease=8.0, lock_delay=2.0)
        for make in (
            lambda: locks.lock("a"),
            lambda: locks.lock("a", lease=8.0, lock_delay=2.1),
            lambda: locks.rw_lock("a", lease=11.0),
            lambda: locks.semaphore("a", 2, lease=11.0),
            lambda: locks.election("a", lease=11.0),
        ):
            with pytest.raises(Unsupported, match="longest_lease"):
                make()


def test_an_adopted_client_can_be_strict(redis_server: RedisServer, namespace: str) -> None:
    mine = redis.Redis(port=redis_server.port)
    with Client.from_client(mine, strict=Strict(longest=LONGEST), namespace=namespace) as locks:
        assert locks.lock("a", lease=1.0).acquire(timeout=0) is None
        assert locks.lock("a", lease=1.0).acquire(timeout=10.0) is not None
    mine.close()

    async def body() -> None:
        theirs = redis.asyncio.Redis(port=redis_server.port)
        bound = Strict(longest=2 * LONGEST)
        async with AsyncClient.from_client(theirs, strict=bound, namespace=namespace) as locks:
            assert await locks.lock("a", lease=1.0).acquire(timeout=10.0) is not None
            with pytest.raises(Unsupported, match="longest_lease"):
                locks.lock("a", lease=2 * LONGEST + 0.1)
        await theirs.aclose()

    asyncio.run(body())


def test_servers_without_strict_mode_raise() -> None:
    import sqlalchemy

    nodes = [redis.Redis(port=port) for port in (1, 2, 3)]
    with pytest.raises(ValueError, match="no strict mode; leave out strict"):
        Client.from_client(nodes, strict=Strict())
    with pytest.raises(TypeError, match="strict mode is one of Redis"):
        Client.from_client(sqlalchemy.create_engine("sqlite://"), strict=Strict())


RIGHTS = (
    "resetkeys ~leasehold:{default:* resetchannels &leasehold:{default:* -@all +eval +evalsha +subscribe +publish "
    "+time +exists +hmget +hget +hlen +hset +hdel +pttl +pexpire +zadd +zcard +zrange +zrangebyscore +zscore +zrem"
)
"""As in the page on Redis."""


@pytest.mark.parametrize(
    ("more", "lacks"), [("+info +wait", ""), ("+wait", r"the right \+info;"), ("+info", r"\+wait is missing")]
)
def test_rights_that_strict_mode_needs(more: str, lacks: str) -> None:
    with RedisReplicas(1, users=[f"app on >w0rd {RIGHTS} {more}"]) as group:
        url = url_of(group.url.replace("//", "//app:w0rd@"))
        with Client.from_url(url) as locks:
            lock = locks.lock("a", lease=1.0)
            if not lacks:
                assert lock.acquire(timeout=10.0) is not None
                return
            with pytest.raises(StoreUnavailable, match=lacks):
                lock.acquire(timeout=10.0)
            assert not group.primary.command("HEXISTS", "leasehold:{default:a}:lock", "t")


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


# --- doctor --------------------------------------------------------------------------------------------------------


def test_doctor_reports_what_strict_mode_depends_on() -> None:
    with RedisReplicas(1) as group, Client.from_url(url_of(group.url)) as locks:

        def found() -> dict[str, Any]:
            return {each.subject: each for each in locks.diagnose()}

        assert found()["strict"].severity is Severity.NOTE
        with locks.lock("a", lease=1.0, timeout=10.0):
            pass
        before = found()
        assert before["strict"].severity is Severity.OK
        assert "1 of 1 replicas" in before["strict"].found
        assert before["replicas"].severity is Severity.ERROR
        assert before["persistence"].severity is Severity.NOTE
        group.primary.command("CONFIG", "SET", "min-replicas-to-write", "1")
        assert found()["replicas"].severity is Severity.NOTE


def test_findings_on_strict_mode() -> None:
    assert state_finding(Strict(replicas=2), 1, 0.0, marked=True).severity is Severity.ERROR
    assert state_finding(Strict(replicas=0), 1, 0.0, marked=True).severity is Severity.WARNING
    assert state_finding(Strict(), 0, 0.0, marked=True).severity is Severity.OK
    assert state_finding(Strict(), 0, 3.0, marked=True).severity is Severity.NOTE
    split = cut_off(0, 10, 1.0, "down-after-milliseconds")
    assert split is not None
    assert adjusted([split], Strict())[0].severity is Severity.ERROR
