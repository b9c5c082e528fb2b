"""What all tests share: the servers, the check for leaks, and the table at the end that says what ran."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import itertools
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import tables
from leasehold.stores.postgres.statements import script
from leasehold_lab.servers import (
    EtcdCluster,
    EtcdServer,
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisCluster,
    RedisReplicas,
    RedisSentinel,
    RedisServer,
    RedlockNodes,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)
from leasehold_lab.servers.base import ROOTS, started
from leasehold_lab.verify.report.figures import Spread
from releases.archive import fetch
from releases.catalogue import RELEASES
from support import background, reruns, run_alone
from support.background import in_the_background
from support.leaks import alive, lasting

pytest.register_assert_rewrite("leasehold_lab.conformance")

__all__ = ["in_the_background"]  # pytest finds its fixtures here

PROGRAMS = {
    "redis-server": "redis-server or valkey-server",
    "postgresql": "pg_ctl",
    "mariadb-server": "mariadbd or mysqld",
    "galera-4": "/usr/lib/galera/libgalera_smm.so",
    "zookeeper": "zkServer.sh",
    "libcurator-recipes-java": "/usr/share/java/curator-recipes.jar",
    "default-jdk-headless": "javac",
    "etcd-server": "etcd",
    "etcd-client": "etcdctl",
    "pgbouncer": "pgbouncer",
    "iptables": "iptables",
    "nginx": "nginx",
    "openssl": "openssl",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/time.h",
}
"""Programs that tests start, and files that they need, by the Debian package that has them."""

PLACES = ("/usr/sbin", "/usr/share/zookeeper/bin", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))
"""Where Debian puts programs that are not for everybody."""

DRIVERS = {
    "redis": "redis",
    "hiredis": "redis",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "asyncmy": "mysql",
    "kazoo": "zookeeper",
    "h11": "etcd",
    "click": "cli",
}
"""Modules that tests need, by the extra that installs them."""

LINGER = 3.0
"""Seconds that a test's threads, children and sockets have to end after it."""

FAILED = pytest.StashKey[bool]()
"""Set on a test that failed: its traceback keeps alive what it had, so it is not asked for leaks."""

in_ci = os.environ.get("CI", "").lower() in ("true", "1")
used: Counter[str] = Counter()
sums: Counter[str] = Counter()
"""What tests counted by themselves, as properties called ``sum:…``."""

spreads: defaultdict[str, list[float]] = defaultdict(list)
"""What tests measured by themselves, in seconds, as properties called ``spread:…`` with a list of them."""

left_out: set[str] = set()


# --- the switch --------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the long tests, too")
    named = f"one of {', '.join(RELEASES)}"
    parser.addoption(
        "--servers-of", action="append", default=[], metavar="RELEASE", choices=RELEASES,
        help=f"run on this release of a server, fetched from Debian's archive if need be ({named}); may be repeated",
    )  # fmt: skip


def heed_signals() -> None:
    """Heed what a script's background jobs ignore, and all that they start: tests send it to processes of theirs."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(trylast=True)  # when other plugins are ready
def pytest_configure(config: pytest.Config) -> None:
    run_alone.join(config)
    run_alone.hurry(config)
    heed_signals()
    if roots := [str(fetch(name)) for name in config.getoption("--servers-of")]:
        os.environ[ROOTS] = os.pathsep.join(roots)
    config.addinivalue_line("markers", "nightly: takes long; runs with --nightly only")
    config.addinivalue_line("markers", "leaks(why): leaves threads, children or sockets behind on purpose")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    background.give_time(items)
    background.put_first(items)
    if not config.getoption("--nightly"):
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason="nightly: run it with --nightly"))


# --- what ran, and what could not --------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn a missing server into a skip, which is a failure in CI, and note what a test ran on."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, MissingServer):
        left_out.add(str(call.excinfo.value))
        if not in_ci:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.reportinfo()[1], f"Skipped: {call.excinfo.value}")
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    if report.when == "call" and report.passed:
        used.update(name for name, value in item.user_properties if name.startswith("store:") and value)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test counted, here or in a worker, and write down why one is run again."""
    reruns.note(report)
    if report.when == "call" and report.passed:
        for name, value in report.user_properties:
            if name.startswith("sum:"):
                sums[name.removeprefix("sum:")] += int(str(value))
            if name.startswith("spread:") and isinstance(value, list):
                spreads[name.removeprefix("spread:")] += value


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist did."""
    output = getattr(node, "workeroutput", {})
    used.update(output.get("used", {}))
    started.update(output.get("started", {}))
    left_out.update(output.get("left_out", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(used=dict(used), started=dict(started), left_out=sorted(left_out))
    elif in_ci and missing() and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("stores and servers")
    for name, version in versions().items():
        tests = used[f"store:{name}"]
        terminalreporter.line(
            f"{name:<10} {version:<24} {tests} tests of the store" if tests else f"{name:<10} {version}"
        )
    for server, times in sorted(started.items()):
        terminalreporter.line(f"{'server':<10} {server:<24} started {times} times")
    for name, count in sums.items():
        terminalreporter.line(f"{'counted':<10} {name:<24} {count:,}")
    for name, values in sorted(spreads.items()):
        if (spread := Spread.of(values)) is not None:
            terminalreporter.line(f"{'measured':<10} {name:<34} {spread}")
    for line in reruns.reasons:
        terminalreporter.line(f"run again  {line}")
    gone = missing()
    for line in gone:
        terminalreporter.line(f"LEFT OUT: {line}", yellow=not in_ci, red=in_ci)
    if gone and in_ci:
        terminalreporter.line("CI=true: nothing may be left out for want of a server, so this run has failed", red=True)


def versions() -> dict[str, str]:
    """Return what the tests run on, by name."""
    found = {"memory": "in process", "sqlite": sqlite3.sqlite_version}
    for driver in DRIVERS:
        if importlib.util.find_spec(driver):
            found[f"{driver}-py" if driver == "redis" else driver] = importlib.metadata.version(driver)
    if path := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        said = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
        found["nginx"] = said.strip().rpartition("/")[2]
    return found


def missing() -> list[str]:
    """Return what is not installed, and what tests missed."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *PLACES))
    lines = sorted(left_out)
    for package, names in PROGRAMS.items():
        if not any(shutil.which(name, path=path) or _is_file(name) for name in names.split(" or ")):
            lines.append(f"no {names}; install it, on Debian with: apt-get install {package}")
    for module, extra in DRIVERS.items():
        if not importlib.util.find_spec(module):
            lines.append(f"no module {module}; install it with: pip install 'leasehold[{extra}]'")
    return lines


def _is_file(name: str) -> bool:
    return name.startswith("/") and Path(name).exists()


# --- fixtures ----------------------------------------------------------------------------------------------------
#
# Servers that take long to start and do nothing while idle serve all tests of a worker. Those that are quick to start,
# and talk to each other or look at their clocks all the time, serve the tests of a module: kept by every worker to the
# end, they took one core of two.


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a worker, with the tables made."""
    with PostgresServer() as server:
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


# --- leaks -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that no thread of ours, no child process and no socket outlives a test."""
    if request.node.get_closest_marker("leaks"):
        yield
        return
    request.node.stash[FAILED] = False  # it may be run again
    before = alive()
    yield
    if request.node.stash.get(FAILED, False):
        return
    until = time.monotonic() + LINGER
    while leaked := alive() - before:
        if time.monotonic() > until:
            pytest.fail("the test leaves behind: " + ", ".join(sorted(leaked)), pytrace=False)
        gc.collect()
        time.sleep(0.02)
