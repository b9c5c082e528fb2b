"""What all tests share: the options, what is chosen by them, and the servers."""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from leasehold import tables
from leasehold.stores.postgres.statements import script
from leasehold_lab.servers import (
    EtcdCluster,
    EtcdServer,
    MariaDBServer,
    PostgresServer,
    RedisCluster,
    RedisReplicas,
    RedisSentinel,
    RedisServer,
    RedlockNodes,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)
from leasehold_lab.servers.base import ROOTS
from releases.archive import fetch
from releases.catalogue import RELEASES
from support.plugins import background, foreign_table, leaks, reruns, run_alone, stalls, summary, tiers
from support.plugins.leaks import lasting

pytest.register_assert_rewrite("leasehold_lab.conformance")


# --- options and collection --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests, not only those of the default tier")
    parser.addoption("--nightly", action="store_true", help="run the long tests, too; implies --all")
    parser.addoption("--foreign", action="store_true", help="run only the tests with programs of other libraries")
    parser.addoption("--write-table", action="store_true", help="with --foreign: write what it measured to the docs")
    parser.addoption("--stalls", type=float, metavar="SECONDS", help="stop each worker at random, for up to so long")
    named = f"one of {', '.join(RELEASES)}"
    parser.addoption(
        "--servers-of", action="append", default=[], metavar="RELEASE", choices=RELEASES,
        help=f"run on this release of a server, fetched from Debian's archive if need be ({named}); may be repeated",
    )  # fmt: skip


def heed_signals() -> None:
    """Restore the signal handlers that a shell or nohup disables: tests send these signals to children."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(trylast=True)  # when other plugins are ready
def pytest_configure(config: pytest.Config) -> None:
    for plugin in (background, foreign_table, leaks, reruns, stalls, summary, tiers):  # each has hooks or fixtures
        config.pluginmanager.register(plugin, plugin.__name__)
    run_alone.join(config)
    run_alone.send_at_once(config)
    heed_signals()
    if roots := [str(fetch(name)) for name in config.getoption("--servers-of")]:
        os.environ[ROOTS] = os.pathsep.join(roots)
    config.addinivalue_line("markers", "nightly: takes long; runs with --nightly only")
    config.addinivalue_line(
        "markers",
        'timing(beside="few"): measures wall-clock time, beside "nobody", a "few" such tests, or "all"; not by default',
    )
    config.addinivalue_line("markers", "real_time: real leases of about a second; given in a run with all tests")
    config.addinivalue_line("markers", "leaks(why): leaves threads, children or sockets behind on purpose")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Let no garbage collection look at what is there to stay: a million objects, which take each of them 0.4 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.mark_timing(items, whole_run=tiers.whole(config))
    tiers.select(config, items)
    background.give_time(items)
    run_alone.arrange(items, getattr(config, "workerinput", {}).get("workercount", 1))


# --- fixtures ----------------------------------------------------------------------------------------------------
#
# Servers that take long to start and do nothing while idle serve all tests of a worker. Those that are quick to start,
# and talk to each other or look at their clocks all the time, serve the tests of a module: kept by every worker to the
# end, they took one core of two.


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a worker, with the tables made."""
    with PostgresServer(config={"autovacuum_naptime": "60s"}) as server:  # every 5 s, idle servers take time
        lasting.add(server.pid)
        server.execute(script())
        yield server


@pytest.fixture(scope="session")
def outlive() -> set[int]:
    """Process ids of servers that outlive a test: add those that a fixture of yours starts for several."""
    return lasting


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests of a worker: use a `namespace` of your own, and start another to break it."""
    with RedisServer() as server:
        lasting.add(server.pid)
        yield server


@pytest.fixture(scope="module")
def redis_replicas() -> Iterator[RedisReplicas]:
    """A primary with two replicas for all tests of a module, which must not break it."""
    with RedisReplicas(2) as group:
        lasting.update(server.pid for server in group.servers)
        yield group


@pytest.fixture(scope="module")
def redis_sentinel() -> Iterator[RedisSentinel]:
    """Servers under Sentinel for all tests of a module, which must not break them."""
    with RedisSentinel() as group:
        lasting.update(server.pid for server in group.servers)
        yield group


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[RedisCluster]:
    """A cluster for all tests of a module, which must not break it."""
    with RedisCluster() as group:
        lasting.update(server.pid for server in group.servers)
        yield group


@pytest.fixture(scope="module")
def redlock_nodes() -> Iterator[RedlockNodes]:
    """Five independent servers for all tests of a module, which must not break them."""
    with RedlockNodes(5) as group:
        lasting.update(server.pid for server in group.servers)
        yield group


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """One server for all tests of a worker: use a `namespace` of your own, and start another to break it."""
    with MariaDBServer(config={"innodb-flush-log-at-trx-commit": "0"}) as server:  # it never loses power
        lasting.add(server.pid)
        yield server


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[EtcdServer]:
    """One etcd for all tests of a module: use a `namespace` of your own, and start another to break it."""
    with EtcdServer() as server:
        lasting.add(server.pid)
        yield server


@pytest.fixture(scope="module")
def etcd_cluster() -> Iterator[EtcdCluster]:
    """Three members of etcd for all tests of a module, which must not break them."""
    with EtcdCluster() as cluster:
        lasting.update(server.pid for server in cluster.members)
        yield cluster


@pytest.fixture(scope="module")
def zookeeper_ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three members of ZooKeeper for all tests of a module, which must not break them."""
    with ZooKeeperEnsemble() as ensemble:
        lasting.update(server.pid for server in ensemble.members)
        yield ensemble


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """One server for all tests of a worker: use a namespace of your own, and start another to break it."""
    with ZooKeeperServer() as server:
        lasting.add(server.pid)
        yield server


@pytest.fixture(scope="session")
def mariadb_url(mariadb_server: MariaDBServer) -> str:
    """Return the URL of that server, with the tables made."""
    tables.create(mariadb_server.url)
    return mariadb_server.url


_count = itertools.count(1)


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has, on a server that they share."""
    return f"test-{next(_count)}-{secrets.token_hex(4)}"
