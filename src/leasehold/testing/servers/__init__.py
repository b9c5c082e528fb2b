"""Real servers for tests: one class is one kind of server, a child process on a free port of the loopback interface.

Example:
    ```python
    with RedisServer() as server:
        client = Client.from_url(server.url)
    ```

"""

from leasehold.testing.servers.base import MissingServer, Server
from leasehold.testing.servers.certificates import Certificates
from leasehold.testing.servers.cluster import Migration, RedisCluster
from leasehold.testing.servers.etcd import EtcdCluster, EtcdError, EtcdServer
from leasehold.testing.servers.galera import GaleraServer
from leasehold.testing.servers.group import Group, Node
from leasehold.testing.servers.mariadb import MariaDBServer
from leasehold.testing.servers.pgbouncer import PgBouncerServer
from leasehold.testing.servers.postgres import PostgresServer
from leasehold.testing.servers.redis import RedisServer
from leasehold.testing.servers.redlock import RedlockNodes
from leasehold.testing.servers.replicas import RedisReplicas
from leasehold.testing.servers.sentinel import RedisSentinel, SentinelServer
from leasehold.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

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
