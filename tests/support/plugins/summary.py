"""The summary at the end of a run: what ran on which servers, what tests counted and measured, what was left out.

A test whose server is not installed is skipped, and the summary says what to install. In CI that is a failure.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from leasehold_lab.servers import MissingServer
from leasehold_lab.servers.base import started
from leasehold_lab.verify.report.figures import Spread
from support.plugins import reruns, tiers

REDIS = {"redis-server": "redis-server or valkey-server"}
"""The program that the default tier needs, by the Debian package that has it."""

PROGRAMS = REDIS | {
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
"""Where Debian puts programs for administrators."""

DRIVERS = {
    "redis": "redis",
    "hiredis": "redis",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "asyncmy": "mysql",
    "kazoo": "zookeeper",
    "hazelcast": "hazelcast",
    "h11": "etcd",
    "click": "cli",
}
"""Modules that tests need, by the extra that installs them."""

PACKAGES = {"hazelcast": "hazelcast-python-client"}
"""The package of a module that is called otherwise."""

in_ci = os.environ.get("CI", "").lower() in ("true", "1")
used: Counter[str] = Counter()
sums: Counter[str] = Counter()
"""What tests counted by themselves, as properties called ``sum:…``."""

spreads: defaultdict[str, list[float]] = defaultdict(list)
"""What tests measured by themselves, in seconds, as properties called ``spread:…`` with a list of them."""

left_out: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn a missing server into a skip, which is a failure in CI, and note what a test ran on."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, MissingServer):
        left_out.add(str(call.excinfo.value))
        if not in_ci:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.reportinfo()[1], f"Skipped: {call.excinfo.value}")
    if report.when == "call" and report.passed:
        used.update(name for name, value in item.user_properties if name.startswith("store:") and value)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test counted, here or in a worker."""
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
    elif in_ci and missing(session.config) and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
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
    gone = missing(config)
    for line in gone:
        terminalreporter.line(f"LEFT OUT: {line}", yellow=not in_ci, red=in_ci)
    if gone and in_ci:
        terminalreporter.line("CI=true: nothing may be left out for want of a server, so this run has failed", red=True)


def versions() -> dict[str, str]:
    """Return what the tests run on, by name."""
    found = {"memory": "in process", "sqlite": sqlite3.sqlite_version}
    for driver in DRIVERS:
        if importlib.util.find_spec(driver):
            package = PACKAGES.get(driver, driver)
            found[f"{driver}-py" if driver == "redis" else driver] = importlib.metadata.version(package)
    if path := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        said = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr
        found["nginx"] = said.strip().rpartition("/")[2]
    return found


def missing(config: pytest.Config) -> list[str]:
    """Return what is not installed and needed by this run, and what tests missed."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *PLACES))
    lines = sorted(left_out)
    for package, names in (PROGRAMS if tiers.whole(config) else REDIS).items():
        if not any(shutil.which(name, path=path) or _is_file(name) for name in names.split(" or ")):
            lines.append(f"no {names}; install it, on Debian with: apt-get install {package}")
    for module, extra in DRIVERS.items():
        if not importlib.util.find_spec(module):
            lines.append(f"no module {module}; install it with: pip install 'leasehold[{extra}]'")
    return lines


def _is_file(name: str) -> bool:
    return name.startswith("/") and Path(name).exists()
