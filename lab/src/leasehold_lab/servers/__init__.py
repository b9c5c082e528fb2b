"""Real servers for tests: one class is one kind of server, a child process on a free port of the loopback interface.

Example:
    ```python
    with RedisServer() as server:
        client = Client.from_url(server.url)
    ```

"""

from leasehold_lab.servers.base import MissingServer, Server
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.etcd import EtcdCluster, EtcdError, EtcdServer
from leasehold_lab.servers.group import Group, Node
from leasehold_lab.servers.redis.cluster import Migration, RedisCluster
from leasehold_lab.servers.redis.redlock import RedlockNodes
from leasehold_lab.servers.redis.replicas import RedisReplicas
from leasehold_lab.servers.redis.sentinel import RedisSentinel, SentinelServer
from leasehold_lab.servers.redis.server import RedisServer
from leasehold_lab.servers.sql.galera import GaleraServer
from leasehold_lab.servers.sql.mariadb import MariaDBServer
from leasehold_lab.servers.sql.pgbouncer import PgBouncerServer
from leasehold_lab.servers.sql.postgres import PostgresServer
from leasehold_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "Certificates",
    "EtcdCluster",
    "EtcdError",
    "EtcdServer",
    "GaleraServer",
    "Group",
    "MariaDBServer",
    "Migration",
    "MissingServer",
    "Node",
    "PgBouncerServer",
    "PostgresServer",
    "RedisCluster",
    "RedisReplicas",
    "RedisSentinel",
    "RedisServer",
    "RedlockNodes",
    "SentinelServer",
    "Server",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
