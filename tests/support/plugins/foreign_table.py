"""The table of what programs of other libraries and ours have measured together, in ``docs/interop.md``.

Each test notes what it has measured (`support.lock_peers.noted`), and its report takes that to the controlling process.
With ``--foreign --write-table`` that writes the table between its two marks, if all tests have passed. A row is a kind
of lock of a layout on one kind of server.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FIGURES = "figures:foreign"
"""The property of a test's report with what it noted."""

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "interop.md"
PEERS = ROOT / "tests" / "foreign" / "peers"

MAVEN = ("redisson", "spring", "hazelcast")
"""Folders of programs in Java."""

BEGIN, END = "<!-- written by ./try test --foreign --write-table -->\n", "<!-- until here -->\n"

HEAD = (
    "lock",
    "other program",
    "server",
    "visits: other program + leasehold",
    "lost updates",
    "overlaps",
    "served after the other's release: other program, leasehold",
    "free after kill -9 of: other program, leasehold",
)


class Row(NamedTuple):
    """A kind of lock that a foreign program shares, as tests call it, on a server; and how people call both."""

    kind: str
    server: str
    lock: str
    library: str


def _rows(server: str, **locks: str) -> list[Row]:
    return [
        Row(kind.replace("_", "-"), server, lock, LIBRARIES[kind.partition("_")[0]]) for kind, lock in locks.items()
    ]


LIBRARIES = {
    "redis": "redis-py",
    "redsync": "redsync",
    "node": "node-redlock",
    "redisson": "Redisson",
    "spring": "Spring Integration",
    "shedlock": "ShedLock",
    "hazelcast": "Hazelcast",
}

REDISSON = {
    "redisson": "`getLock`",
    "redisson_fenced": "`getFencedLock`",
    "redisson_fair": "`getFairLock`",
    "redisson_read": "`getReadWriteLock`, readers",
    "redisson_write": "`getReadWriteLock`, writers",
    "redisson_permit": "`getPermitExpirableSemaphore`",
}

ROWS = [
    *_rows("redis", redis_py="plain key", redsync="plain key", node_redlock="plain key"),
    *_rows(
        "redis",
        **REDISSON,
        spring_redis="`RedisLockRegistry`, `SPIN_LOCK`",
        spring_redis_pubsub="`RedisLockRegistry`, `PUB_SUB_LOCK`",
    ),
    *_rows("redis+cluster", **REDISSON),
    *_rows("postgresql", spring_jdbc="`JdbcLockRegistry`"),
    *_rows("mysql", spring_jdbc="`JdbcLockRegistry`"),
    *_rows("postgresql", shedlock="`usingDbTime`", shedlock_clock="the host's clock"),
    *_rows("mysql", shedlock="`usingDbTime`", shedlock_clock="the host's clock"),
    *_rows("zookeeper", spring_zookeeper="`ZookeeperLockRegistry`"),
    *_rows("hazelcast", hazelcast="`FencedLock`", spring_hazelcast="`HazelcastLockRegistry`"),
]

SERVERS = {
    "redis": "Redis",
    "redis+cluster": "Redis Cluster",
    "postgresql": "PostgreSQL",
    "mysql": "MariaDB",
    "zookeeper": "ZooKeeper",
    "hazelcast": "Hazelcast",
}


def versions() -> Mapping[str, str]:
    """Return the versions of the foreign programs, by kind of lock or library, as they are built."""
    java = "".join((PEERS / name / "pom.xml").read_text(encoding="utf-8") for name in MAVEN)
    maven = dict(re.findall(r"<artifactId>([\w-]+)</artifactId>\s*<version>([^<]+)</version>", java))
    node = json.loads((PEERS / "node-redlock" / "package.json").read_text(encoding="utf-8"))
    go = (PEERS / "redsync" / "go.mod").read_text(encoding="utf-8")
    return {
        "Redisson": maven["redisson"],
        "spring-jdbc": maven["spring-integration-jdbc"],
        "spring-redis": maven["spring-integration-redis"],
        "spring-redis-pubsub": maven["spring-integration-redis"],
        "spring-zookeeper": maven["spring-integration-zookeeper"],
        "spring-hazelcast": maven["spring-integration-hazelcast"],
        "Hazelcast": maven["hazelcast"],
        "ShedLock": maven["shedlock-provider-jdbc-template"],
        "node-redlock": node["dependencies"]["redlock"],
        "redsync": re.findall(r"redsync/v4 v(\S+)", go)[0],
        "redis-py": version("redis"),
    }


def named(row: Row) -> list[str]:
    """Return the first cells of a row, which depend on no measurement."""
    known = versions()
    return [row.lock, f"{row.library} {known.get(row.kind) or known[row.library]}", SERVERS[row.server]]


def table(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of what tests noted; a cell without a measurement is empty."""
    found = defaultdict[tuple[str, str], list[Mapping[str, Any]]](list)
    for one in figures:
        found[one["kind"], one["server"].replace("mariadb", "mysql")].append(one)
    lines = [HEAD, ["---"] * len(HEAD), *([*named(row), *_cells(found[row.kind, row.server])] for row in ROWS)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(noted: Sequence[Mapping[str, Any]]) -> list[str]:
    visits = [one for one in noted if one["what"] == "visits"]
    most = max(visits, key=lambda one: one["theirs"] + one["ours"], default=None)
    woken = {side: [one["ms"] for one in noted if one["what"] == "woken" and one["side"] == side] for side in SIDES}
    killed = {side: [one["ms"] for one in noted if one["what"] == "killed" and one["side"] == side] for side in SIDES}
    leases = {one["lease"] for one in noted if one["what"] == "killed"}
    return [
        f"{most['theirs']} + {most['ours']}" if most else "",
        "0" if most else "",  # else a test has failed, and nothing is written
        "0" if most else "",
        ", ".join(f"{statistics.median(times):.0f} ms" for times in woken.values() if times),
        ", ".join(f"{max(times) / 1000:.2f} s" for times in killed.values() if times)
        + (f" (lease: {min(leases):g} s)" if leases else ""),
    ]


SIDES = ("theirs", "ours")


def written(page: str) -> str:
    """Return the table in a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


class Writer:
    """Collects what tests noted, and writes the table at the end."""

    def __init__(self) -> None:
        self.figures: list[Mapping[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and report.passed:
            self.figures += [value for name, value in report.user_properties if name == FIGURES]  # type: ignore[misc]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            page = PAGE.read_text(encoding="utf-8")
            before, begin, rest = page.partition(BEGIN)
            _, end, after = rest.partition(END)
            PAGE.write_text(f"{before}{begin}{table(self.figures)}{end}{after}", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that controls the run."""
    if config.getoption("--write-table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(), "foreign table writer")
