"""Local servers for a run that may break them: what each kind starts, and which faults it supports."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from leasehold import tables
from leasehold_lab.servers import (
    EtcdCluster,
    MariaDBServer,
    PostgresServer,
    RedisCluster,
    RedisReplicas,
    RedisSentinel,
    RedisServer,
    RedlockNodes,
    ZooKeeperEnsemble,
)
from leasehold_lab.verify.faults import group_faults, quorum_faults, redis_faults, sql_faults, sqlite_faults
from leasehold_lab.verify.faults.actions import ServerFault
from leasehold_lab.verify.faults.client_faults import KINDS


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind of deployment.

    Attributes:
        description: for people.
        make: makes the servers, which ``with`` starts.
        faults: that can be injected.
        lease: the shortest lease that they can keep, in seconds.
        tables: whether tables must be created first.

    """

    description: str
    make: Callable[[], Any]
    faults: tuple[ServerFault, ...]
    lease: float = 1.0
    tables: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """Servers that are running."""

    kind: str
    servers: Any
    faults: Mapping[str, ServerFault]

    @property
    def url(self) -> str:
        """The URL for clients."""
        return str(self.servers.url)


SESSION = 3.0
"""Seconds of a session with ZooKeeper: ten ticks, so that all promises are in force."""


WRITTEN = {"appendfsync": "no"}
"""Redis writes to its file before it answers, and does not wait for the disk. Such a write survives every end of the
server process. Only a power failure loses it, and no run switches the machine off."""

COMMITTED = {"innodb-flush-log-at-trx-commit": "2"}
"""The same for MariaDB and MySQL. Our PostgreSQL and etcd do not wait for the disk either."""


def _lone_redis() -> RedisServer:
    return RedisServer(append_only=True, config=WRITTEN)


def _replicas() -> RedisReplicas:
    return RedisReplicas(2)


def _sentinel() -> RedisSentinel:
    return RedisSentinel(replicas=2)


class _Ensemble(ZooKeeperEnsemble):
    """An ensemble whose clients have sessions as short as the lease."""

    @property
    def url(self) -> str:
        return f"{super().url}/?session_timeout={SESSION:g}"


def _zookeeper() -> ZooKeeperEnsemble:
    return _Ensemble(tick=SESSION / 10)


def _mariadb() -> MariaDBServer:
    return MariaDBServer(config=COMMITTED)


def _redlock() -> RedlockNodes:
    return RedlockNodes(append_only=True, config=WRITTEN)


PLANS: Mapping[str, Plan] = {
    "redis": Plan("one Redis server, with an append-only file", _lone_redis,
                  redis_faults.PROCESS + redis_faults.COMMANDS),
    "replicas": Plan("a Redis primary with two replicas", _replicas, group_faults.REPLICAS),
    "sentinel": Plan("a Redis primary, two replicas and three sentinels", _sentinel, group_faults.SENTINEL),
    "cluster": Plan("a Redis Cluster: three primaries with a replica each", RedisCluster, group_faults.CLUSTER),
    "redlock": Plan("five Redis servers for Redlock", _redlock, group_faults.REDLOCK),
    "postgresql": Plan("one PostgreSQL server", PostgresServer, sql_faults.POSTGRESQL, tables=True),
    "mariadb": Plan("one MariaDB server", _mariadb, sql_faults.MARIADB, tables=True),
    "zookeeper": Plan("a ZooKeeper ensemble of three", _zookeeper, quorum_faults.ZOOKEEPER, lease=SESSION),
    "etcd": Plan("an etcd cluster of three", EtcdCluster, quorum_faults.ETCD, lease=2.0),
    "sqlite": Plan("one file of SQLite, which other programs use, too", sqlite_faults.File, sqlite_faults.SQLITE),
}  # fmt: skip
"""The deployments, by the value of ``--servers``."""


def known(kind: str | None) -> dict[str, str]:
    """Return the faults of a kind of servers (None: of the user's own), with their descriptions."""
    found = {fault.key: fault.description for fault in KINDS.values()}
    return found if kind is None else found | {fault.key: fault.description for fault in PLANS[kind].faults}


@contextmanager
def deploy(kind: str) -> Generator[Deployment]:
    """Start servers of a kind, and stop them after the block.

    Raises:
        MissingServer: a program is not installed; the message names its package.

    """
    plan = PLANS[kind]
    with plan.make() as servers:
        found = Deployment(kind, servers, {fault.key: fault for fault in plan.faults})
        if plan.tables:
            tables.create(found.url)
        yield found
