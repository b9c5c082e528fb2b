"""Spring's rows on real servers, against the statements that Spring was recorded to send; see ``sql_peers``."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from sql_peers import COMMIT, Spring, sql_server

from leasehold import LeaseLost, StoreUnavailable
from leasehold._model import (
    LeaseTerms,
    LockMode,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    ticket_id,
)
from leasehold.layouts.sql.format import uuid_of
from leasehold.layouts.sql.spring import key_of
from leasehold_lab.proxy.proxy import FaultProxy
from support.flavors import both

__all__ = ["sql_server"]

SOON = 1.0
"""Seconds of polls, and of a busy machine."""

VECTORS = {
    "foo": "acbd18db-4cc2-385c-adef-654fccc4a4d8",
    "stock:42": "a0c43d40-cf57-3a08-a07f-a22388568881",
    "é": "66ddcd97-cfde-3bb2-b6fb-8a999b4bc76f",
    "1-2-3-4-5": "601bcbd1-2379-33a0-bbcb-ad773954109d",
    "ACBD18DB-4CC2-385C-ADEF-654FCCC4A4D8": "acbd18db-4cc2-385c-adef-654fccc4a4d8",
    "acbd18db-4cc2-385c-adef-654fccc4a4d80": "71279ca6-a24c-3de2-ae71-23234ba8339e",
}
"""Name to LOCK_KEY, as Spring's UUIDConverter made them."""


@pytest.mark.parametrize("name", VECTORS)
def test_the_key_is_that_of_spring(name):
    assert key_of(name) == VECTORS[name]


def test_a_holder_is_a_uuid_of_version_8_and_names_its_ticket():
    for _ in range(50):
        first = uuid_of(ticket_id(uuid4().bytes))
        assert UUID(first).version == 8
        assert uuid_of(ticket_id(UUID(first).bytes)) == first


@pytest.fixture
def url(sql_server):
    return sql_server.url("spring", margin="0.3")


@pytest.fixture
def spring(sql_server):
    return Spring(sql_server)


def name_in(namespace):
    return f"{namespace}:x"


def rows(database, namespace):
    text = "SELECT REGION, CLIENT_ID, CREATED_DATE, EXPIRED_AFTER FROM INT_LOCK WHERE LOCK_KEY = %s"
    return database.query(text, key_of(name_in(namespace)))


def ticket(lease=10.0):
    return Ticket(ticket_id(uuid4().bytes), LeaseTerms(LockMode(), Owner("h", 1, "c"), lease))


@both
def test_the_row_is_as_spring_writes_it(sql_server, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            ids = set()
            for _ in range(2):
                hold = await locks.lock("x", lease=20).acquire()
                ((region, client, created, ends),) = rows(sql_server, namespace)
                now = datetime.now(UTC).replace(tzinfo=None)
                assert region == "DEFAULT"
                assert UUID(client).version == 8
                assert abs((now - created).total_seconds()) < SOON
                assert 20.3 - SOON < (ends - now).total_seconds() <= 20.3
                ids.add(client)
                await hold.release()
                assert rows(sql_server, namespace) == []
            assert len(ids) == 2, "each acquisition has an id of its own"

    harness.run(body)


@both
def test_each_side_keeps_the_other_out(spring, url, namespace, harness):
    name = name_in(namespace)

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            async with locks.lock("x"):
                assert not spring.lock(name)
                assert not spring.renew(name)
                assert not spring.unlock(name)
            assert spring.lock(name)
            assert await locks.lock("x").acquire(blocking=False) is None
            assert spring.lock(name), "its own lock again"
            assert spring.unlock(name)
            async with locks.lock("x", timeout=0):
                pass

    harness.run(body)


@both
def test_a_waiter_polls_until_the_other_side_releases(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            assert spring.lock(name_in(namespace))

            async def visit():
                async with locks.lock("x", timeout=20):
                    pass

            waiters = [harness.spawn(visit) for _ in range(3)]
            await harness.sleep(0.5)
            start = harness.now()
            assert spring.unlock(name_in(namespace))
            for waiter in waiters:
                await waiter.result()
            assert harness.now() - start < 2 * SOON, "the others of a client are woken by its own releases"

    harness.run(body)


@both
def test_a_dead_program_is_followed_after_its_end_and_the_margin(sql_server, namespace, url, harness):
    spring = Spring(sql_server, ttl=1.0)

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            start = harness.now()
            assert spring.lock(name_in(namespace))
            hold = await locks.lock("x").acquire(timeout=20)
            assert 1.3 - 0.1 < harness.now() - start < 1.3 + SOON
            assert not spring.unlock(name_in(namespace)), "its late release frees no lock of another client"
            hold.raise_if_lost()
            await hold.release()

    harness.run(body)


@both
def test_a_dead_holder_of_ours_is_followed_by_us_at_its_end_and_by_spring(sql_server, spring, namespace, url, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            store, start = locks.store, harness.now()
            await store.try_acquire("x", ticket(1.0), join=False, within=5)
            assert not spring.lock(name_in(namespace))
            hold = await locks.lock("x").acquire(timeout=20)
            assert 1.3 - 0.1 < harness.now() - start < 1.3 + SOON, "the lease and one margin"
            await hold.release()
            await store.try_acquire("x", ticket(0.5), join=False, within=5)
            await harness.sleep(0.9)
            assert spring.lock(name_in(namespace))
            assert spring.unlock(name_in(namespace))

    harness.run(body)


@both
@pytest.mark.parametrize("skew", [-0.7, 0.7])
def test_clocks_that_differ_by_less_than_the_margin_do_no_harm(sql_server, namespace, harness, skew):
    spring = Spring(sql_server, ttl=1.5, skew=skew)
    name = name_in(namespace)

    async def body(harness):
        async with harness.client(sql_server.url("spring", margin="1"), namespace=namespace) as locks:
            assert spring.lock(name)
            start = harness.now()
            hold = await locks.lock("x", lease=1.0, renew=False).acquire(timeout=20)
            assert harness.now() - start >= 1.5, "the other program counts its whole lease"
            while not hold.lost:
                assert not spring.lock(name), "and ours is over before another may begin"
                await harness.sleep(0.02)
            with pytest.raises(LeaseLost):
                await hold.release()

    harness.run(body)


@both
def test_a_hold_is_renewed_and_lost_when_somebody_deletes_its_row(sql_server, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            hold = await locks.lock("x", lease=0.9).acquire()
            await harness.sleep(2.0)
            hold.raise_if_lost()
            sql_server.query("DELETE FROM INT_LOCK WHERE LOCK_KEY = %s", key_of(name_in(namespace)))
            await harness.sleep(0.9)
            assert hold.lost

    harness.run(body)


@both
def test_a_repeated_claim_finds_itself(url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            store, mine = locks.store, ticket()
            first = await store.try_acquire("x", mine, join=True, within=5)
            again = await store.try_acquire("x", mine, join=True, within=5)
            assert again.token == first.token
            assert await store.release("x", mine, reason=ReleaseReason.RELEASE, within=5)
            assert not await store.release("x", mine, reason=ReleaseReason.RELEASE, within=5)

    harness.run(body)


@both
def test_a_renewal_revives_nothing(spring, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            store, mine, other, gone = locks.store, ticket(0.5), ticket(), ticket()
            await store.try_acquire("x", mine, join=False, within=5)
            await store.try_acquire("y", other, join=False, within=5)
            await harness.sleep(1.0)
            tickets = [("x", mine), ("y", other), ("z", gone)]
            expected = [RenewalResult.GONE, RenewalResult.HELD, RenewalResult.GONE]
            assert await store.renew(tickets, within=5) == expected
            assert spring.lock(name_in(namespace))
            assert spring.unlock(name_in(namespace))
            await store.release("y", other, reason=ReleaseReason.RELEASE, within=5)

    harness.run(body)


@both
def test_a_row_that_another_transaction_locks_does_not_delay_the_other_renewals(sql_server, url, namespace, harness):
    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            store, mine, other = locks.store, ticket(), ticket()
            await store.try_acquire("x", mine, join=False, within=5)
            await store.try_acquire("y", other, join=False, within=5)
            connection = sql_server.server.connect()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute(
                        "SELECT 1 FROM INT_LOCK WHERE LOCK_KEY = %s FOR UPDATE", [key_of(name_in(namespace))]
                    )
                    results = await store.renew([("x", mine), ("y", other)], within=2)
                    assert results == [RenewalResult.UNKNOWN, RenewalResult.HELD]
            finally:
                connection.close()
            assert await store.renew([("x", mine), ("y", other)], within=5) == [RenewalResult.HELD] * 2
            for name, one in (("x", mine), ("y", other)):
                assert await store.release(name, one, reason=ReleaseReason.RELEASE, within=5)

    harness.run(body)


@both
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_claim_whose_commit_is_late_does_not_outlive_its_release(sql_server, namespace, harness, taken_over):
    """The claim has its row locked and its commit is under way when the release is sent, on another connection."""
    name = name_in(namespace)

    async def body(harness):
        if taken_over:
            assert Spring(sql_server, ttl=-60).lock(name)
        with FaultProxy(sql_server.port) as proxy:
            async with harness.client(sql_server.url("spring", proxy.port), namespace=namespace) as locks:
                async with locks.lock("warm"):
                    pass
                store, mine = locks.store, ticket()
                late = proxy.delay(1.5, where=COMMIT[sql_server.kind])
                with pytest.raises(StoreUnavailable) as caught:
                    await store.try_acquire("x", mine, join=False, within=0.5)
                assert caught.value.unknown
                assert late.hits
                late.remove()
                await store.release("x", mine, reason=ReleaseReason.RELEASE, within=10)
                await harness.sleep(2.0)
                left = rows(sql_server, namespace)
                assert [client for _, client, *_ in left if UUID(client).version == 8] == []

    harness.run(body)
