"""Where on a cluster a name is: its key, names of each node, and the migration of a name to another node."""

from __future__ import annotations

from typing import Any

from leasehold.stores.redis import keys
from leasehold_lab.servers import Node, RedisCluster


def lock_key(namespace: str, name: str) -> str:
    return keys.mutex_keys(namespace, name)[0].decode()


def moving(cluster: RedisCluster, namespace: str, name: str) -> Any:
    """Begin the migration of a name to the next node."""
    source = cluster.primary_of(lock_key(namespace, name))
    target = next(node for node in cluster.primaries if node is not source)
    return cluster.migrate(lock_key(namespace, name), target)


def names_on(cluster: RedisCluster, namespace: str, count: int) -> dict[Node, list[str]]:
    """Return so many names of each node, by node."""
    found: dict[Node, list[str]] = {node: [] for node in cluster.primaries}
    number = 0
    while any(len(names) < count for names in found.values()):
        node = cluster.primary_of(lock_key(namespace, f"n{number}"))
        if len(found[node]) < count:
            found[node].append(f"n{number}")
        number += 1
    return found
