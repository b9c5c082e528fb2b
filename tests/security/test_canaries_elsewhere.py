"""etcd, ZooKeeper and Redlock: a password is looked for in all that leaves the library, as on the other systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import canary
import pytest
from canary import CANARY, FLAVORS, WRONG, Record, awaited, record, run, use

from leasehold._url import Secret
from leasehold.stores import registry
from leasehold.stores.zookeeper import store as zookeeper_store
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdServer, RedisServer, ZooKeeperServer
from leasehold_lab.servers.base import free_port

__all__ = ["record"]  # pytest finds the fixture here


@pytest.fixture(scope="module")
def etcd(outlive: set[int]) -> Iterator[int]:
    with EtcdServer() as server:
        outlive.add(server.pid)
        server.enable_auth("root-s3cret", {"locks": ["leasehold/"]}, {"app": (CANARY, "locks")})
        yield server.port


@pytest.fixture(scope="module")
def zookeeper(outlive: set[int]) -> Iterator[int]:
    with ZooKeeperServer() as server:
        outlive.add(server.pid)
        yield server.port


@pytest.fixture(scope="module")
def nodes(outlive: set[int]) -> Iterator[list[int]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(password=CANARY)) for _ in range(3)]
        outlive.update(server.pid for server in servers)
        yield [server.port for server in servers]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show what these stores are made of: whatever of them has attributes, three levels deep."""

    def shown(record: Record, client: Any) -> None:
        things, level = [client, client.owner, client.lock("x")], [client.store]
        for _ in range(3):
            things += level
            level = [part for one in level for part in attributes(one) if type(part).__module__.startswith("leasehold")]
        record.objects(*things)
        for one in things:
            record.objects(*attributes(one))
            record.pickled(one)

    monkeypatch.setattr(canary, "shown", shown)


def attributes(thing: object) -> list[Any]:
    if isinstance(thing, Secret):  # what it keeps is the password, and asked for by name only
        return []
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(thing, name) for name in [*getattr(thing, "__dict__", ()), *slots] if hasattr(thing, name)]


async def fail(record: Record, client: Any) -> None:
    """Do not get a lock; what is found by a look at the servers' settings is shown."""
    try:
        assert await awaited(client.lock("x").acquire(timeout=0.2)) is None
    except Exception as error:
        record.error(error)
    else:
        pytest.fail("it was not acquired, and no error gave the reason")
    try:
        record.objects(*await awaited(client.diagnose()))
    except Exception as error:
        record.error(error)
    canary.shown(record, client)


def works(system: str, request: pytest.FixtureRequest) -> list[str]:
    """Return URLs that lead to a lock."""
    if system == "redlock":
        hosts = ",".join(f"127.0.0.1:{port}" for port in request.getfixturevalue("nodes"))
        each = "|".join(f"redis://:{CANARY}@127.0.0.1:{port}" for port in request.getfixturevalue("nodes"))
        return [f"redlock://:{CANARY}@{hosts}", f"redlock:{each}"]
    port = request.getfixturevalue(system)
    if system == "etcd":
        return [f"etcd://app:{CANARY}@127.0.0.1:{port}"]
    return [
        f"zookeeper://app:{CANARY}@127.0.0.1:{port}/canary",
        f"zookeeper://app:{CANARY}@127.0.0.1:{port}/c?acl=creator",
    ]


def fails(system: str, request: pytest.FixtureRequest) -> list[str]:
    """Return URLs that are read, and do not lead to a lock."""
    dead = free_port()
    if system == "redlock":
        first, second, third = request.getfixturevalue("nodes")
        return [
            f"redlock://:{WRONG}@127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}",
            f"redlock://:{CANARY}@127.0.0.1:{dead},127.0.0.1:{free_port()},127.0.0.1:{third}",
            f"redlocks://:{CANARY}@127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}",
            f"redlock:redis://:{CANARY}@127.0.0.1:{dead}|nosuch://:{CANARY}@127.0.0.1|redis://:{CANARY}@127.0.0.1:1",
        ]
    port = request.getfixturevalue(system)
    if system == "etcd":
        return [
            f"etcd://app:{WRONG}@127.0.0.1:{port}",
            f"etcd://nobody:{CANARY}@127.0.0.1:{port}",
            f"etcd://app:{CANARY}@127.0.0.1:{dead}",
            f"etcds://app:{CANARY}@127.0.0.1:{port}",
            f"etcds://app:{CANARY}@127.0.0.1:{port}?ssl_ca_certs=/no/such/file",
        ]
    return [
        f"zookeeper://app:{CANARY}@127.0.0.1:{dead}/x",
        f"zookeepers://app:{CANARY}@127.0.0.1:{dead}/x",
        f"zookeepers://app:{CANARY}@127.0.0.1:{dead}/x?ssl_ca_certs=/no/such/file",
        f"zookeeper://app:{CANARY}@127.0.0.1:{dead}/x?auth=sasl",
    ]


REFUSED = [
    *(f"{scheme}://app:{CANARY}@h?nosuch=1" for scheme in ("etcd", "zookeeper", "redlock")),
    *(f"{scheme}://app:{CANARY}@h:port" for scheme in ("etcd", "zookeeper", "redlock")),
    f"etcd://h?password={CANARY}",
    f"etcd://app:{CANARY} @h",
    f"etcd://app:1/{CANARY}@h",
    f"hazelcast://app:{CANARY}@h?nosuch=1",
    f"hazelcast://:{CANARY}@h",
    f"hazelcast://app:{CANARY}@h/a/b",
    f"zookeeper://:{CANARY}@h",
    f"zookeeper://b%3Ab:{CANARY}@h",
    f"redlock://:{CANARY}@a,b",
    f"redlock:redis://:{CANARY}@a",
]

systems = pytest.mark.parametrize("system", ["etcd", "zookeeper", "redlock"])


@systems
@FLAVORS
def test_what_works_shows_no_password(kind: Any, system: str, request: pytest.FixtureRequest, record: Record) -> None:
    for url in works(system, request):
        run(lambda client: use(record, client), kind.from_url, url)
        record.objects(registry.opener(url), registry.opener(Secret(url)))
        record.pickled(registry.opener(url))
    assert len(record.texts) > 20


@systems
@FLAVORS
def test_what_fails_shows_no_password(
    kind: Any, system: str, request: pytest.FixtureRequest, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_store, "PATIENCE", 1.0)  # with servers that are not there
    for url in fails(system, request):
        try:
            run(lambda client: fail(record, client), kind.from_url, url, response_timeout=0.5)
        except (ValueError, OSError, ImportError) as error:  # as a file that is missing, when the client is made
            record.error(error)
    assert len(record.texts) > 20


@FLAVORS
def test_a_refused_url_shows_no_password(kind: Any, record: Record) -> None:
    for url in REFUSED:
        with pytest.raises(ValueError, match=r".") as caught:
            kind.from_url(url)
        record.error(caught.value)


@systems
@FLAVORS
def test_a_connection_that_breaks_shows_no_password(
    kind: Any, system: str, request: pytest.FixtureRequest, record: Record
) -> None:
    (url, *_) = works(system, request)
    port = (request.getfixturevalue("nodes") if system == "redlock" else [request.getfixturevalue(system)])[0]
    for verb in ("cut_at", "drop_reply"):
        for nth in (1, 2, 3):
            with FaultProxy(port) as proxy:
                getattr(proxy, verb)(nth=nth)
                broken = url.replace(f":{port}", f":{proxy.port}")
                if system == "redlock":  # one of three does not count
                    broken = (
                        f"redlock://:{CANARY}@127.0.0.1:{proxy.port},127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
                    )
                run(lambda client: tries(record, client), kind.from_url, broken, response_timeout=0.5)


async def tries(record: Record, client: Any) -> None:
    """Try to hold, and show how that ends."""
    try:
        hold = await awaited(client.lock("y", lease=2.0).acquire(timeout=1.0))
        record.objects(hold)
        if hold is not None:
            await awaited(hold.release())
    except Exception as error:
        record.error(error)
