"""The doctor on Sentinel, Cluster and replicas."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold import Client, StoreUnavailable
from leasehold._model import Severity
from leasehold._runtimes.base import Flavor
from leasehold.stores.redis.openers import adopt
from leasehold_lab.runtimes.harnesses import BlockingHarness, Harness
from leasehold_lab.servers import RedisCluster, RedisSentinel
from support.flavors import both


def findings(url: str, **options: Any) -> dict[str, tuple[Severity, str]]:
    with Client.from_url(url, **options) as locks:
        return {each.subject: (each.severity, f"{each.found} | {each.meaning}") for each in locks.diagnose()}


def test_doctor_on_sentinels() -> None:
    with RedisSentinel(replicas=1, down_after=3.0) as group:
        found = findings(group.url)
        assert found["sentinels"][0] is Severity.OK
        assert found["quorum"][0] is Severity.OK
        assert found["successors"] == (Severity.OK, "1 replicas known to the sentinels | ")
        assert found["split brain"][0] is Severity.WARNING
        assert "0.0" in found["clocks of the servers"][1]
        primary = group.primary
        primary.command("CONFIG", "SET", "min-replicas-to-write", "1")
        primary.command("CONFIG", "SET", "min-replicas-max-lag", "9")
        assert "may grant for 8 s alongside its successor" in findings(group.url)["split brain"][1]
        primary.command("CONFIG", "SET", "min-replicas-max-lag", "1")
        assert findings(group.url)["split brain"][0] is Severity.OK
        group.sentinels[0].kill()
        severity, text = findings(group.url)["sentinels"]
        assert severity is Severity.WARNING
        assert "2 of 3" in text
        group.sentinels[1].kill()
        assert findings(group.url)["sentinels"][0] is Severity.ERROR


WATCHER = ("ON", ">secret", "RESETKEYS", "RESETCHANNELS", "&+switch-master", "-@all")
"""A user for clients at the sentinels, without its commands."""


def test_doctor_names_a_missing_right_at_sentinels() -> None:
    """Clients serve without it, but follow some failovers late."""
    with RedisSentinel(replicas=1) as group:
        rights = ["+sentinel|master", "+sentinel|replicas", "+subscribe", "+sentinel|get-master-addr-by-name"]
        for sentinel in group.sentinels:
            sentinel.command("ACL", "SETUSER", "watcher", *WATCHER, *rights)
        url = f"{group.url}?sentinel_username=watcher&sentinel_password=secret"
        assert "rights at the sentinels" not in findings(url)
        for sentinel in group.sentinels[:2]:
            sentinel.command("ACL", "SETUSER", "watcher", "-sentinel|get-master-addr-by-name")
        with Client.from_url(url) as locks:
            (found,) = (each for each in locks.diagnose() if each.subject == "rights at the sentinels")
        assert found.severity is Severity.NOTE
        assert "+sentinel|get-master-addr-by-name" in found.found
        assert [f":{each.port}" in found.found for each in group.sentinels] == [True, True, False]


@both
def test_doctor_speaks_tls_to_sentinels_that_have_users_of_their_own(harness: Harness) -> None:
    """By a URL, and by an adopted client; without the sentinels' password the error names the option."""
    with RedisSentinel(replicas=1, tls=True, password="a b", sentinel_password="c d") as group:
        assert group.certificates is not None
        blocking = isinstance(harness, BlockingHarness)
        authority = str(group.certificates.authority)
        tls = {"ssl": True, "ssl_ca_certs": authority, "ssl_check_hostname": True}  # redis-py 5 has to be told
        mine = (redis if blocking else redis.asyncio).Sentinel(
            [("127.0.0.1", each.port) for each in group.sentinels],
            sentinel_kwargs={"password": "c d", **tls},
            password="a b",
            **tls,
        )
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in group.sentinels)
        files = f"ssl_ca_certs={group.certificates.authority}"
        url = f"rediss+sentinel://:a%20b@{hosts}/{group.name}?sentinel_password=c%20d&{files}"

        async def body(harness: Harness) -> None:
            for where in (url, adopt(mine, Flavor.SYNC if blocking else Flavor.ASYNC)):
                locks = harness.client(where)
                found = {each.subject: each for each in await locks.diagnose()}
                assert found["sentinels"].severity is Severity.OK
                assert found["transport"].severity is Severity.OK
                assert "TLS" in found["transport"].found
                async with locks.lock("a", timeout=5.0):
                    pass
            with pytest.raises(StoreUnavailable, match="sentinel_password="):
                await harness.client(url.replace("sentinel_password=c%20d&", "")).diagnose()

        harness.run(body)


def test_doctor_on_a_cluster() -> None:
    with RedisCluster(replicas=1) as cluster:

        def replicas_known() -> bool:  # a node lists a replica when it has heard how far that has come
            return findings(cluster.url)["replicas per shard"][0] is Severity.OK

        cluster.wait_until(replicas_known, 10.0, "each shard has a replica that can take over")
        found = findings(cluster.url)
        assert found["slots"][0] is Severity.OK
        assert found["replicas per shard"][0] is Severity.OK
        assert found["coverage"][0] is Severity.WARNING
        assert "(all 3 nodes)" in found["persistence"][1]
        assert "of 6 servers" in found["clocks of the servers"][1]
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        node = cluster.primaries[0]
        node.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        node.command("CONFIG", "SET", "maxmemory", "100mb")
        found = findings(cluster.url)
        assert found["coverage"][0] is Severity.OK
        with Client.from_url(cluster.url) as locks:
            evictions = [each for each in locks.diagnose() if each.subject == "eviction"]
        assert {each.severity for each in evictions} == {Severity.OK, Severity.ERROR}
        assert f"(127.0.0.1:{node.port})" in max(evictions, key=lambda each: each.severity).found


def test_doctor_reports_a_dead_primary_of_a_cluster() -> None:
    """The findings on all others, on slots and replicas are wanted just then."""
    with RedisCluster(replicas=0, full_coverage=False) as cluster:
        dead, *others = cluster.primaries
        dead.kill()
        found = findings(cluster.url)
        assert found["primary"][0] is Severity.ERROR
        assert f"127.0.0.1:{dead.port}" in found["primary"][1]
        assert "(all 2 nodes)" in found["persistence"][1]
        assert found["coverage"][0] is Severity.OK
        assert found["replicas per shard"][0] is Severity.WARNING
        for node in others:
            node.kill()
        with pytest.raises(StoreUnavailable):
            findings(cluster.url)


def test_doctor_names_missing_rights_on_a_cluster() -> None:
    rules = "app on >w0rd resetkeys ~leasehold:{default:* resetchannels &leasehold:{default:* -@all +eval +evalsha"
    with RedisCluster(replicas=0, users=[rules]) as cluster:
        url = cluster.url.replace("//", "//app:w0rd@")
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", "app", "+cluster|slots")
        with pytest.raises(StoreUnavailable, match=r"lacks the rights .*\+spublish"), Client.from_url(url) as locks:
            locks.lock("a").acquire(timeout=0)
        severity, text = findings(url)["rights"]
        assert severity is Severity.ERROR
        assert "+spublish" in text
        assert "+subscribe" in text


def test_doctor_reports_clocks_that_differ() -> None:
    from leasehold.stores.redis.doctor import group_checks

    def check(**offsets: float) -> Severity:
        found = group_checks.clocks(offsets, [])
        assert found is not None
        return found.severity

    assert check(a=0.0, b=0.05) is Severity.OK
    assert check(a=0.0, b=-0.5) is Severity.NOTE
    assert check(a=1.0, b=-0.5) is Severity.WARNING
    assert group_checks.clocks({"a": 0.0}, []) is None


@pytest.mark.parametrize(
    ("lag", "detection", "severity", "remedy"),
    [
        (1, 3.0, Severity.OK, ""),
        (3, 5.0, Severity.OK, ""),
        (1, 5, Severity.OK, ""),
        (5, 5.0, Severity.WARNING, "min-replicas-max-lag at most 3"),
        (2, 3.9, Severity.WARNING, "min-replicas-max-lag at most 1"),
        (1, 2.0, Severity.WARNING, "min-replicas-max-lag 1, and down-after of 3 s or more"),
        (0, 10.0, Severity.WARNING, "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 8 on all servers"),
    ],
)
def test_a_primary_counts_its_lag_two_seconds_late_at_worst(
    lag: int, detection: float, severity: Severity, remedy: str
) -> None:
    """It counts acknowledgements of whole seconds, and looks once a second."""
    from leasehold.stores.redis.doctor.group_checks import cut_off

    found = cut_off(1, lag, detection, "down-after")
    assert found is not None
    assert (found.severity, found.remedy) == (severity, remedy)
