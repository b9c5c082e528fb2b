"""The systems of servers that there are models of, by name."""

from __future__ import annotations

from leasehold.testing.models.system import System
from leasehold.testing.models.systems.cluster import ClusterSystem
from leasehold.testing.models.systems.etcd import EtcdSystem
from leasehold.testing.models.systems.mysql import MySQLSessionSystem, MySQLSystem
from leasehold.testing.models.systems.postgres import PostgresSessionSystem, PostgresSystem
from leasehold.testing.models.systems.redis import RedisSystem
from leasehold.testing.models.systems.redlock import RedlockSystem
from leasehold.testing.models.systems.sentinel import SentinelSystem
from leasehold.testing.models.systems.zookeeper import ZooKeeperSystem

SYSTEMS: dict[str, type[System]] = {
    each.name: each
    for each in (
        RedisSystem,
        SentinelSystem,
        ClusterSystem,
        RedlockSystem,
        PostgresSystem,
        PostgresSessionSystem,
        MySQLSystem,
        MySQLSessionSystem,
        EtcdSystem,
        ZooKeeperSystem,
    )
}
