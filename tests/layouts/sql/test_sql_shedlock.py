"""ShedLock's rows on real servers, against the statements that ShedLock was recorded to send; see ``sql_peers``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from sql_peers import COMMIT, ShedLock, sql_server

from leasehold import LeaseLost, Unsupported
from leasehold.store_api import RenewalResult
from leasehold_lab.proxy.proxy import FaultProxy
from support.flavors import both

__all__ = ["sql_server"]

SOON = 1.0

WHAT = {
    "lock": lambda locks: locks.lock("a"),
    "rlock": lambda locks: locks.rlock("a"),
    "semaphore": lambda locks: locks.semaphore("a", 3),
    "once": lambda locks: locks.once("a", ttl=5),
    "election": lambda locks: locks.election("a"),
}


@pytest.fixture
def url(sql_server):
    return sql_server.url("shedlock", margin="0.2")


def rows(database, namespace):
    text = "SELECT lock_until, locked_at, locked_by FROM shedlock WHERE name = %s"
    return database.query(text, f"{namespace}:x")


def job(locks, at_least=0.5, at_most=60):
    return locks.scheduled("x", at_least=at_least, at_most=at_most)


@both
def test_the_row_is_as_shedlock_writes_it(sql_server, url, namespace, harness):
    async def body(harness):
        seen = []

        async def work():
            seen.append(rows(sql_server, namespace))

        async with harness.client(url, namespace=namespace) as locks:
            for _ in range(2):
                assert await job(locks).run(work)
                ((until, at, _),) = rows(sql_server, namespace)
                assert abs((until - at).total_seconds() - 0.5) < 0.01, "held for at_least from the beginning"
                await harness.sleep(0.6)
        holders = set()
        for ((until, at, by),) in seen:
            assert abs((datetime.now(UTC).replace(tzinfo=None) - at).total_seconds()) < 3
            assert 30.2 - SOON < (until - at).total_seconds() <= 30.3, "a lease and the margin, and not at_most"
            assert re.search(r".-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$", by)
            holders.add(by)
        assert len(holders) == 2, "each run has a holder of its own"

    harness.run(body)


@both
def test_a_run_happens_on_one_side(sql_server, url, namespace, harness):
    theirs = ShedLock(sql_server)
    name = f"{namespace}:x"

    async def body(harness):
        inside = []

        async def work():
            inside.append(theirs.lock(name, 60))
            inside.append(theirs.unlock(name))

        async with harness.client(url, namespace=namespace) as locks:
            assert await job(locks).run(work)
            assert inside == [False, False], "kept out, and its late release does not free ours"
            assert not theirs.lock(name, 60), "at_least"
            await harness.sleep(0.8)
            assert theirs.lock(name, 60)
            assert not await job(locks).run(work)
            assert theirs.unlock(name)
            await harness.sleep(0.4)
            assert await job(locks).run(work)

    harness.run(body)


@both
def test_a_late_release_of_the_other_side_frees_no_run_of_ours(sql_server, url, namespace, harness):
    """Its defect: the holder is the host's name, so the release of a process frees the next holder's lock."""
    theirs, name = ShedLock(sql_server), f"{namespace}:x"

    async def body(harness):
        inside = []

        async def work():
            inside.append(theirs.unlock(name))
            inside.append(theirs.lock(name, 60))

        async with harness.client(url, namespace=namespace) as locks:
            assert theirs.lock(name, 0.2)
            await harness.sleep(0.6)
            assert await job(locks).run(work)
            assert inside == [False, False]

    harness.run(body)


@both
def test_at_least_is_kept_though_the_run_fails_or_its_instance_is_gone(sql_server, url, namespace, harness):
    async def body(harness):
        async def fails():
            raise KeyError("x")

        async with harness.client(url, namespace=namespace) as locks:
            with pytest.raises(KeyError):
                await job(locks, at_least=1.5).run(fails)
            assert not await job(locks, at_least=1.5).run(fails)
            ((until, at, _),) = rows(sql_server, namespace)
            assert abs((until - at).total_seconds() - 1.5) < 0.01

    harness.run(body)


@both
def test_a_renewal_keeps_the_end_of_at_least(sql_server, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:

            async def work():
                engine = (locks.blocking._core if hasattr(locks, "blocking") else locks)._engine
                (lease,) = engine.watchdog.leases()
                await harness.sleep(0.5)
                assert await engine.store.renew([(lease.name, lease.ticket)], within=5.0) == [RenewalResult.HELD]
                ((until, at, _),) = rows(sql_server, namespace)
                assert abs((until - at).total_seconds() - 100) < 0.01, "it counts from the beginning, not from now"

            assert await job(locks, at_least=100, at_most=200).run(work)

    harness.run(body)


@both
def test_a_run_ends_after_at_most(url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with pytest.raises(LeaseLost):
                await job(locks, at_most=0.5).run(lambda: harness.sleep(1.5))

    harness.run(body)


@both
@pytest.mark.parametrize("what", WHAT)
def test_all_but_runs_is_refused_when_it_is_made(url, namespace, harness, what):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with pytest.raises(Unsupported, match="layout=shedlock shares runs of jobs alone"):
                WHAT[what](locks)

    harness.run(body)


@both
def test_ticks_and_long_names_are_refused(url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            with pytest.raises(ValueError, match=r"'x' needs at_least=, since <SharedRowStore .* keeps no ticks"):
                locks.scheduled("x", at_most=5)
            with pytest.raises(Unsupported, match="keeps no ticks; layout=shedlock shares runs of jobs alone"):
                await job(locks).run(lambda: harness.sleep(0), tick=1)
            long = locks.scheduled("x" * 65, at_most=5, at_least=1)
            assert await locks.inspect("x" * 65) is None
            with pytest.raises(Unsupported, match=r"ShedLock's names have at most 64 characters, and .* has"):
                await long.run(lambda: harness.sleep(0))

    harness.run(body)


@both
def test_at_least_is_kept_though_the_reply_of_the_claim_was_lost(sql_server, namespace, harness):
    async def body(harness):
        with FaultProxy(sql_server.port) as proxy:
            url = sql_server.url("shedlock", proxy.port, margin="0.2")
            async with harness.client(url, namespace=namespace) as locks:
                assert await locks.scheduled("warm", at_least=0.01, at_most=60).run(lambda: harness.sleep(0))
                lost = proxy.drop_reply(where=COMMIT[sql_server.kind])
                assert await job(locks, at_least=5).run(lambda: harness.sleep(0))
                assert lost.hits == 1
                ((until, at, _),) = rows(sql_server, namespace)
                assert abs((until - at).total_seconds() - 5) < 0.01

    harness.run(body)
