"""`doctor` on real servers: each setting that breaks a promise is found, with what it means and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from leasehold._model import Finding, Severity
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.doctor.checks import CHECKS, Facts
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from support.flavors import FLAVORS, both

OK, NOTE, WARNING, ERROR = Severity


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(append_only=True) as running:
        yield running


def diagnose(url: str, harness: Harness = FLAVORS[0]) -> dict[str, Finding]:
    async def body(harness: Harness) -> list[Finding]:
        async with harness.client(url) as locks:
            return await locks.diagnose()

    findings = harness.run(body)
    assert all(finding.meaning and finding.remedy for finding in findings if finding.severity >= WARNING)
    found = {finding.subject: finding for finding in findings}
    assert len(found) == len(findings)
    return found


@both
def test_a_well_configured_server_has_no_findings(harness: Harness, server: RedisServer) -> None:
    found = diagnose(server.url, harness)
    assert {finding.severity for finding in found.values()} == {OK}
    assert found["server"].found.startswith(server.version.replace("-server ", " ") + ",")
    expected = {"server", "rights", "eviction", "persistence", "replicas", "transport", "clock", "latency"}
    assert set(found) == {*expected, "layout of the keys"}


SETTINGS: list[tuple[dict[str, str], str, Severity, str]] = [
    ({"maxmemory": "1gb", "maxmemory-policy": "volatile-ttl"}, "eviction", ERROR, "evicted first"),
    ({"maxmemory": "1gb", "maxmemory-policy": "volatile-lru"}, "eviction", ERROR, "timed exclusion"),
    ({"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, "eviction", ERROR, "every lock"),
    ({"maxmemory-policy": "allkeys-lfu"}, "eviction", NOTE, "without a memory limit"),
    ({"maxmemory": "100kb"}, "memory", WARNING, "nobody can acquire"),
    ({"appendfsync": "everysec"}, "persistence", NOTE, "1 to 2 s"),
    ({"appendfsync": "no"}, "persistence", WARNING, "power loss"),
    ({"appendonly": "no"}, "persistence", WARNING, "forgets all locks"),
    ({"appendonly": "no", "save": "3600 1"}, "persistence", WARNING, "last snapshot"),
    ({"timeout": "300"}, "idle connections", NOTE, "opens a new one"),
    ({"tcp-keepalive": "0"}, "dead clients", WARNING, "whose host vanished"),
    ({"tcp-keepalive": "7200"}, "dead clients", WARNING, "whose host vanished"),
    ({"client-output-buffer-limit": "pubsub 32kb 8kb 60"}, "message buffers", WARNING, "wake late"),
]


@pytest.mark.parametrize(("config", "subject", "severity", "words"), SETTINGS, ids=lambda value: str(value)[:40])
def test_a_setting_that_weakens_a_promise_is_found(
    server: RedisServer, config: Mapping[str, str], subject: str, severity: Severity, words: str
) -> None:
    before = {name: server.command("CONFIG", "GET", name)[1] for name in config}  # type: ignore[index]
    for name, value in config.items():
        server.command("CONFIG", "SET", name, value)
    try:
        finding = diagnose(server.url)[subject]
    finally:
        for name, value in before.items():
            server.command("CONFIG", "SET", name, str(value))
    assert (finding.severity, words in finding.meaning) == (severity, True), finding


def test_replicas(server: RedisServer) -> None:
    with RedisServer(config={"replicaof": f"127.0.0.1 {server.port}"}) as replica:
        while "state=online" not in str(server.command("INFO", "replication")):
            pass
        lossy = diagnose(server.url)["replicas"]
        assert (lossy.severity, lossy.found) == (WARNING, "1, min-replicas-to-write 0")
        assert "a failover loses grants" in lossy.meaning
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            bounded = diagnose(server.url)["replicas"]
        finally:
            server.command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert (bounded.severity, "stops granting" in bounded.meaning) == (NOTE, True)
        with pytest.raises(StoreUnavailable, match="is a replica"):
            diagnose(replica.url)


def test_too_many_connections() -> None:
    with RedisServer(config={"maxclients": "10"}) as server:
        taken = [server.connect() for _ in range(8)]
        finding = diagnose(server.url)["connections"]
        for connection in taken:
            connection.close()
    assert (finding.severity, finding.found) == (WARNING, "9 of maxclients 10")


def test_with_few_rights_doctor_names_what_it_could_not_check(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">s", "~*", "&*", "+@all", "-info", "-config")
    url = f"redis://app:s@127.0.0.1:{server.port}"
    for harness in FLAVORS:
        found = diagnose(url, harness)
        assert found["settings"].severity is NOTE
        assert "+info +config|get" in found["settings"].remedy
        assert not {"eviction", "persistence", "replicas"} & set(found)
    server.command("ACL", "SETUSER", "app", "+info")
    found = diagnose(url)
    assert found["settings"].found == "the user may not read them (+config|get)"
    assert found["persistence"].severity == NOTE
    server.command("ACL", "SETUSER", "app", "-time", "-zadd", "-subscribe", "+config|get")
    found = diagnose(url)
    assert found["rights"].severity is ERROR
    assert found["rights"].found == "lacks +time +zadd +subscribe"
    assert "clock" not in found
    server.command("ACL", "DELUSER", "app")


def test_a_disk_that_fails(tmp_path: Any) -> None:
    (tmp_path / "data").mkdir()
    with RedisServer(config={"dir": str(tmp_path / "data"), "save": "3600 1"}) as server:
        (tmp_path / "data").rmdir()
        server.command("BGSAVE")
        while "rdb_last_bgsave_status:err" not in str(server.command("INFO", "persistence")):
            pass
        finding = diagnose(server.url)["disk"]
    assert (finding.severity, finding.found) == (ERROR, "failed: rdb_last_bgsave_status")


BASE = Facts("db.example:6379", {"server": "redis", "version": "7.2.4", "role": "master"}, {}, {})


def one(subject: str, **changes: Any) -> Finding:
    facts = Facts(**{name: getattr(BASE, name) for name in ("where", "hello", "info", "config")} | changes)
    (finding,) = [found for check in CHECKS if (found := check(facts)) is not None and found.subject == subject]
    return finding


def test_findings_on_servers_that_tests_cannot_start() -> None:
    """Facts about servers and networks that do not occur on one host."""
    assert one("transport", local=False).severity is NOTE
    assert one("transport", local=False, encrypted=True, verified=True).severity is OK
    assert one("transport", local=False, encrypted=True).severity is WARNING
    assert one("clock", ahead=-120.0).severity is NOTE
    assert one("clock", ahead=0.5).found == "0.500 s ahead of ours"
    assert one("latency", latency=0.2).severity is NOTE
    assert one("server", info={"valkey_version": "8.0.1"}).found.startswith("valkey 8.0.1")
    evicting = {"maxmemory": "1", "maxmemory_policy": "volatile-ttl", "evicted_keys": "7"}
    assert one("eviction", info=evicting).meaning.endswith("7 keys were evicted so far")
