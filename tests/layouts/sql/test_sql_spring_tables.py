"""What people do with Spring's rows: see and break locks, choose a region and a prefix, make the table, ask doctor."""

from __future__ import annotations

import re

import pytest
from sql_peers import Spring, sql_server

from leasehold import StoreRefused, tables
from leasehold._model import Severity
from leasehold.layouts.sql.format import FOREIGN
from leasehold.layouts.sql.spring import key_of
from support.flavors import both

__all__ = ["sql_server"]


@pytest.fixture
def url(sql_server):
    return sql_server.url("spring", margin="0.3")


@pytest.fixture
def spring(sql_server):
    return Spring(sql_server)


def name_in(namespace):
    return f"{namespace}:x"


def regions(database, namespace):
    return [
        row[0] for row in database.query("SELECT REGION FROM INT_LOCK WHERE LOCK_KEY = %s", key_of(name_in(namespace)))
    ]


@both
def test_people_see_who_holds(sql_server, spring, url, namespace, harness):
    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(sql_server.url("spring")) as others,
        ):
            async with locks.lock("x", meta={"why": "test"}) as hold:
                info = await locks.inspect("x")
                (holder,) = info.holders
                assert (holder.token, holder.meta) == (hold.token, {"why": "test"})
                assert [each.name for each in await locks.holds()] == ["x"]
                assert await locks.lock("x").locked()
                seen = {each.name: each for each in await others.holds()}[key_of(name_in(namespace))]
                assert seen.holders[0].token == hold.token, "by its key: the name is not in the row"
            assert spring.lock(name_in(namespace))
            (holder,) = (await locks.inspect("x")).holders
            assert (holder.host, holder.token) == (FOREIGN, None)
            assert spring.unlock(name_in(namespace))
            assert await locks.inspect("x") is None

    harness.run(body)


@both
def test_a_holder_of_ours_is_broken_by_its_key_and_token(sql_server, url, namespace, harness):
    async def body(harness):
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(sql_server.url("spring")) as others,
        ):
            hold = await locks.lock("x", lease=0.9).acquire()
            key = key_of(name_in(namespace))
            assert not await others.force_release(key, hold.token - 1)
            assert await others.force_release(key, hold.token)
            assert regions(sql_server, namespace) == []
            await harness.sleep(0.9)
            assert hold.lost

    harness.run(body)


@both
def test_a_region_and_a_prefix_are_other_locks(sql_server, namespace, harness):
    urls = [sql_server.url("spring"), sql_server.url("spring", region="jobs"), sql_server.url("spring", prefix="APP_")]
    tables.create(urls[-1])

    async def body(harness):
        holds = [await harness.client(each, namespace=namespace).lock("x").acquire(timeout=0) for each in urls]
        assert all(holds)
        assert set(regions(sql_server, namespace)) == {"DEFAULT", "jobs"}
        assert not Spring(sql_server, region="jobs").lock(name_in(namespace))
        for hold in holds:
            await hold.release()

    harness.run(body)


@both
def test_a_missing_table_and_one_of_spring_6_are_refused(sql_server, namespace, harness):
    table = f"T{namespace.rpartition('-')[2]}_"
    url = sql_server.url("spring", prefix=table)

    async def body(harness):
        async with harness.client(url, namespace=namespace) as locks:
            missing = rf"there is no table {table}LOCK; Spring Integration's JdbcLockRegistry .* makes it, or run: leas"
            with pytest.raises(StoreRefused, match=missing):
                await locks.lock("x").acquire(timeout=5)
            (finding,) = [one for one in await locks.diagnose() if one.severity is Severity.ERROR]
            assert finding.subject == f"{table}LOCK"
            sql_server.query(
                f"CREATE TABLE {table}LOCK (LOCK_KEY CHAR(36) NOT NULL, REGION VARCHAR(100) NOT NULL, "
                "CLIENT_ID CHAR(36), CREATED_DATE TIMESTAMP NOT NULL, PRIMARY KEY (LOCK_KEY, REGION))"
            )
            with pytest.raises(
                StoreRefused, match=rf"the table {table}LOCK is not that of .* \(7 or later\): it lacks a column"
            ):
                await locks.lock("x").acquire(timeout=5)

    harness.run(body)


def test_init_prints_and_makes_the_table_that_spring_documents(sql_server, namespace):
    url = sql_server.url("spring", prefix=f"I{namespace.rpartition('-')[2]}_")
    script = tables.script(url)
    assert re.match(r"CREATE TABLE I\w+_LOCK  \(\n    LOCK_KEY CHAR\(36\) NOT NULL,", script)
    assert tables.create(url)
    assert not tables.create(url)


@both
@pytest.mark.parametrize(
    ("skew", "margin", "remedy"),
    [
        (3, 1, r"run NTP on its host; until then use margin=(5|6) or more"),
        (3, 20, r"run NTP on its host; until then use margin=20 or more"),
        (3600, 1, r"its clock or its time zone is wrong"),
    ],
)
def test_doctor_names_a_margin_that_is_large_enough(sql_server, namespace, harness, skew, margin, remedy):
    ahead = Spring(sql_server, skew=skew)

    async def body(harness):
        async with harness.client(sql_server.url("spring", margin=str(margin)), namespace=namespace) as locks:
            assert ahead.lock(name_in(namespace))
            one = {one.subject: one for one in await locks.diagnose()}["clocks of other programs"]
            assert re.fullmatch(remedy, one.remedy), one.remedy
            assert ahead.unlock(name_in(namespace))

    harness.run(body)


@both
def test_doctor_compares_the_clocks(sql_server, namespace, harness):
    ahead = Spring(sql_server, skew=30)

    async def body(harness):
        async with harness.client(sql_server.url("spring"), namespace=namespace) as locks:
            found = {one.subject: one for one in await locks.diagnose()}
            assert found["clock"].severity is Severity.OK
            assert ahead.lock(name_in(namespace))
            one = {one.subject: one for one in await locks.diagnose()}["clocks of other programs"]
            assert one.severity is Severity.ERROR
            assert re.search(r"a row is (29|30)\.\d s in the future", one.found)
            assert ahead.unlock(name_in(namespace))

    harness.run(body)
