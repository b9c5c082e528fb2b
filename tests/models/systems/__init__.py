"""The systems of servers that there are models of, by name."""

from __future__ import annotations

from models.system import System
from models.systems.cluster import ClusterSystem
from models.systems.etcd import EtcdSystem
from models.systems.mysql import MySQLSessionSystem, MySQLSystem
from models.systems.postgres import PostgresSessionSystem, PostgresSystem
from models.systems.redis import RedisSystem
from models.systems.redlock import RedlockSystem
from models.systems.sentinel import SentinelSystem
from models.systems.zookeeper import ZooKeeperSystem

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
