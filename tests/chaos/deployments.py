"""Stores that can be paused: the fixture `deployment` is one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class System:
    """A store: the fixture of its server, the URL options, and the lease, in seconds."""

    fixture: str
    options: str = ""
    lease: float = 1.0


SYSTEMS = {
    "redis": System("redis_server"),
    "replicas": System("redis_replicas"),
    "sentinel": System("redis_sentinel"),
    "cluster": System("redis_cluster"),
    "redlock": System("redlock_nodes"),
    "postgresql": System("postgres_server"),
    "postgresql-session": System("postgres_server", "?mode=session"),
    "mariadb": System("mariadb_server"),
    "mariadb-session": System("mariadb_server", "?mode=session"),
    "etcd": System("etcd_server", lease=2.0),
    "zookeeper": System("zookeeper_server", "/loss?session_timeout=1.5", 1.5),
    "sqlite": System(""),
}

systems = pytest.mark.parametrize("name", list(SYSTEMS))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A store: its URL, and the functions that pause and resume it."""

    url: str
    pause: Callable[[], None]
    resume: Callable[[], None]
