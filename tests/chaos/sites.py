"""Stores that can be silenced: the fixture `site` is one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class System:
    """A store: the fixture of its server, what follows the URL, and the lease, in seconds."""

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
    "zookeeper": System("zookeeper_server", "/told?session_timeout=1.5", 1.5),
    "sqlite": System(""),
}

systems = pytest.mark.parametrize("name", list(SYSTEMS))


@dataclass(frozen=True, slots=True)
class Site:
    """Where the store is: its URL, and what silences it and lets it speak again."""

    url: str
    silence: Callable[[], None]
    go_on: Callable[[], None]
