"""Each release of a server that leasehold supports: its store's tests, the doctor and the demo, on the real thing.

This runs pytest again with ``--servers-of RELEASE``, which is also the way to run any other tests on one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold_lab.servers import EtcdServer, MariaDBServer, PostgresServer, RedisServer, ZooKeeperServer
from leasehold_lab.servers.base import ROOTS
from releases.archive import fetch
from releases.catalogue import RELEASES

TESTS = Path(__file__).parents[1]

SUITES: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "redis": (RedisServer, "redis or replicas or sentinel or cluster or redlock", ("redis_", "redlock")),
    "valkey": (RedisServer, "redis or replicas or sentinel or cluster or redlock", ("redis_", "redlock")),
    "postgresql": (PostgresServer, "postgresql", ("postgres_",)),
    "mariadb": (MariaDBServer, "mariadb", ("mysql_",)),
    "mysql": (MariaDBServer, "mariadb", ("mysql_",)),
    "etcd": (EtcdServer, "etcd", ("etcd",)),
    "zookeeper": (ZooKeeperServer, "zookeeper", ("zookeeper_setup", "zookeeper_faults", "zookeeper_ensemble")),
}
"""By what a release's name begins with: a server, stores of the conformance kit, and files of `tests/stores`."""

SUPPORTED = [name for name, release in RELEASES.items() if not release.too_old]

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("release", SUPPORTED)]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("suite", ["conformance", "stores"])
def test_its_store_does_what_it_does_on_the_installed_one(release: str, suite: str) -> None:
    _, kit, files = SUITES[release.partition("-")[0]]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--servers-of", release, "--reruns", "1"]
    if suite == "conformance":
        command += [str(TESTS / "conformance"), "-k", kit]
    else:
        for each in files:
            found = sorted((TESTS / "stores").rglob(f"test_{each}*.py"))
            assert found, f"no file of tests is named test_{each}*.py"
            command += [str(path) for path in found]
    named = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")
    environment = {key: value for key, value in os.environ.items() if key not in named}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert RELEASES[release].version in done.stdout, "another release was started"


@pytest.mark.timeout(600)
def test_doctor_and_demo(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor finds no error, and of the demo's requests none is lost with the lock."""
    monkeypatch.setenv(ROOTS, str(fetch(release)))
    with SUITES[release.partition("-")[0]][0]() as server:
        assert f" {RELEASES[release].version}" in server.version
        url: str = server.url
        opener: Any = registry.opener(url)
        if hasattr(opener, "prepare"):
            finish(opener.prepare(BlockingRuntime()))
        told = said("doctor", url, "--json")
        findings = json.loads(told.stdout)["findings"]
        assert not [one for one in findings if one["severity"] == "error"]
        assert any(RELEASES[release].version in one["found"] for one in findings), findings
        counted = said("demo", "--url", url, "--requests", "66", "--json")
        assert counted.returncode == 0, counted.stdout[-2000:] + counted.stderr[-2000:]
        rows = {row["row"]: row for row in json.loads(counted.stdout)["rows"]}
        assert rows["leasehold"]["final"] == 66


def said(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leasehold", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
