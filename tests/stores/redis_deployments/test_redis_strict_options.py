"""The options of strict mode, the rights that it needs, and what doctor reports on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
from strict_mode import LONGEST, url_of

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported
from leasehold._model import Severity
from leasehold.stores.redis.doctor.group_checks import cut_off
from leasehold.stores.redis.doctor.strict import adjusted, state_finding
from leasehold.stores.redis.openers import Strict
from leasehold_lab.servers import RedisReplicas, RedisServer

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
