"""Strict mode with ``fsync=true`` on servers that have `WAITAOF`, as Debian 12's has not: a grant on disks, or none."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import Client, StoreUnavailable
from leasehold._model import Severity
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisReplicas, RedisServer
from support.flavors import both

LONGEST = 20.0
"""Seconds of the leases here: a waiter's claim gets half of its lease for all."""

HALF = 2.5
"""Seconds that disks get: half of ``response_timeout``."""

NOISE = 1.5
"""Seconds that a busy machine may add."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.parametrize("release", ["valkey-8.1", "redis-8.0"]),
]


def url_of(url: str, more: str = "") -> str:
    return f"{url}?strict=true&fsync=true&longest_lease={LONGEST}{more}"


def kept(appendfsync: str = "always") -> dict[str, str]:
    return {"appendonly": "yes", "appendfsync": appendfsync}


def settle(primary: RedisServer) -> None:
    """Wait until the replica's append-only file is in order: after its first copy of all data it writes one anew."""
    connection = primary.connect()
    connection.socket.settimeout(40.0)
    try:
        connection.command("SET", "settled", "1")
        assert connection.command("WAITAOF", 1, 1, 30_000) == [1, 1]
    finally:
        connection.close()


async def opened(harness: Harness, server: RedisServer, namespace: str) -> None:
    """Begin the quarantine of a dataset that is new, and end it before its time."""
    async with harness.client(url_of(server.url), namespace=namespace) as locks:
        assert await locks.lock("a", lease=LONGEST).acquire(timeout=0) is None
    server.command("HSET", f"leasehold:{{{namespace}:}}:marker", "u", "0")


async def refused(harness: Harness, url: str, namespace: str, words: str) -> float:
    """Claim, which raises; return how long it took."""
    async with harness.client(url, namespace=namespace) as locks:
        began = harness.now()
        with pytest.raises(StoreUnavailable, match=words):
            await locks.lock("a", lease=LONGEST).acquire(timeout=20.0)
        return harness.now() - began


def held(server: RedisServer, namespace: str) -> bool:
    return bool(server.command("HEXISTS", f"leasehold:{{{namespace}:a}}:lock", "t"))


@both
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_a_grant_is_on_disk_here_and_there(program: str, appendfsync: str, harness: Harness, namespace: str) -> None:
    """Both are killed at once after the grant; the replica comes back, alone, with it."""
    with RedisReplicas(1, config=kept(appendfsync), binary=program) as group:
        primary, (replica,) = group.primary, group.replicas
        url = url_of(group.url, "&replicas=1")
        settle(primary)

        async def body(harness: Harness) -> None:
            await opened(harness, primary, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                hold = await locks.lock("a", lease=LONGEST, renew=False).acquire(timeout=20.0)
                assert hold is not None
                assert primary.commandstats()["waitaof"] >= 1
                primary.kill()
                replica.kill()
                replica.start()
                found = replica.command("HGET", f"leasehold:{{{namespace}:a}}:lock", "f")
                assert int(str(found)) == hold.token

        harness.run(body)


@both
def test_a_disk_that_is_not_synced_is_no_grant(program: str, harness: Harness, namespace: str) -> None:
    """With ``appendfsync no`` the operating system writes when it likes: the grant is given back, and said so."""
    with RedisServer(config=kept(), binary=program) as server:

        async def body(harness: Harness) -> None:
            url = url_of(server.url)
            await opened(harness, server, namespace)
            server.command("CONFIG", "SET", "appendfsync", "no")
            took = await refused(harness, url, namespace, "only 0 replicas, 0 of 1 disk here did, so it was given back")
            assert HALF - 0.1 < took < HALF + NOISE
            assert not held(server, namespace)
            server.command("CONFIG", "SET", "appendfsync", "always")
            async with harness.client(url, namespace=namespace) as locks, locks.lock("a", lease=LONGEST, timeout=30.0):
                assert held(server, namespace)

        harness.run(body)


@both
def test_a_server_without_an_append_only_file_says_so(program: str, harness: Harness, namespace: str) -> None:
    with RedisServer(config=kept(), binary=program) as server:

        async def body(harness: Harness) -> None:
            url = url_of(server.url)
            await opened(harness, server, namespace)
            server.command("CONFIG", "SET", "appendonly", "no")
            took = await refused(harness, url, namespace, "CONFIG SET appendonly yes, or leave out fsync=true")
            assert took < NOISE
            assert not held(server, namespace)

        harness.run(body)


@both
@pytest.mark.parametrize("fault", ["stopped", "kept in memory"])
def test_a_replica_whose_disk_does_not_have_it_is_no_grant(
    program: str, fault: str, harness: Harness, namespace: str
) -> None:
    with RedisReplicas(1, config=kept(), binary=program) as group:
        primary, (replica,) = group.primary, group.replicas

        async def body(harness: Harness) -> None:
            url = url_of(group.url)
            settle(primary)
            await opened(harness, primary, namespace)
            if fault == "stopped":
                replica.pause()
            else:
                replica.command("CONFIG", "SET", "appendonly", "no")
            try:
                took = await refused(harness, url, namespace, "of 1 replicas .* only 0 replicas, 1 of 1 disk here did")
                assert HALF - 0.1 < took < HALF + NOISE
                assert not held(primary, namespace)
            finally:
                replica.resume()
                replica.command("CONFIG", "SET", "appendonly", "yes")
            async with harness.client(url, namespace=namespace) as locks, locks.lock("a", lease=LONGEST, timeout=30.0):
                assert held(primary, namespace)

        harness.run(body)


@both
def test_who_was_handed_the_lock_holds_when_it_is_on_disk(program: str, harness: Harness, namespace: str) -> None:
    with RedisServer(config=kept(), binary=program) as server:

        async def body(harness: Harness) -> None:
            url = url_of(server.url)
            await opened(harness, server, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                first = await locks.lock("a", lease=LONGEST).acquire(timeout=30.0)
                assert first is not None
                waiting = harness.spawn(lambda: locks.lock("a", lease=LONGEST).acquire(timeout=30.0))
                await harness.sleep(0.5)
                server.command("CONFIG", "SET", "appendfsync", "no")
                await first.release()
                await harness.sleep(1.0)
                assert held(server, namespace)  # put down as the next
                assert not waiting.done()
                server.command("CONFIG", "SET", "appendfsync", "always")
                second = await waiting.result()
                assert second is not None
                assert second.token > first.token
                await second.release()

        harness.run(body)


def test_doctor_says_what_keeps_it_from_being_granted(program: str) -> None:
    with RedisServer(config=kept(), users=["app on >secret ~* &* +@all -waitaof"], binary=program) as server:
        judged: list[tuple[Severity, str]] = []

        def look(subject: str, url: str = "") -> Any:
            with Client.from_url(url or url_of(server.url)) as client:
                return next(each for each in client.diagnose() if each.subject == subject)

        assert look("persistence").severity is Severity.OK
        assert look("strict").severity is Severity.NOTE
        for appendfsync in ("everysec", "no"):
            server.command("CONFIG", "SET", "appendfsync", appendfsync)
            found = look("persistence")
            judged.append((found.severity, found.meaning))
        assert [severity for severity, _ in judged] == [Severity.NOTE, Severity.ERROR]
        assert "waits for the next sync" in judged[0][1]
        assert "nobody can acquire" in judged[1][1]
        server.command("CONFIG", "SET", "appendonly", "no")
        assert look("persistence").severity is Severity.ERROR
        lacking = look("strict", url_of(server.url.replace("redis://", "redis://app:secret@")))
        assert (lacking.severity, lacking.found) == (Severity.ERROR, "lacks +waitaof")
