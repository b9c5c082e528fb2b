"""What the tests of Redisson's locks on a cluster share: the kinds of lock, a holder in Java, and who listens."""

from __future__ import annotations

import secrets
import time

import redis
from layout_keys import LOCKS

from leasehold_lab.servers import Node, RedisCluster

JAVA = "6b7b6e8c-7ad5-4e0c-a2ae-18cd1f5b2b60:37"

SHAPES = {name: shape.make for name, shape in LOCKS.items() if shape.layout == "redisson"}

CHANNELS = {"redisson-write": "redisson_rwlock:", "redisson-permits": "redisson_sc:"}


class Java:
    """A holder in Java of the lock ``key``, alone or with both of two permits, by what Redisson was seen to send."""

    def __init__(self, cluster: RedisCluster, key: str, shape: str) -> None:
        self.cluster, self.key, self.shape = cluster, key, shape
        self.out = f"{{{key}}}:timeout"
        self.channel = CHANNELS.get(shape, "redisson_lock__channel:") + f"{{{key}}}"

    def holds(self) -> None:
        with redis.Redis(port=self.cluster.primary_of(self.key).port) as client:
            if self.shape == "redisson-permits":
                client.set(self.key, 0)
                ends = round(time.time() * 1000 + 60_000)
                client.zadd(self.out, {secrets.token_bytes(16): ends, secrets.token_bytes(16): ends})
                return
            fields = {"mode": "write", f"{JAVA}:write": 1} if self.shape == "redisson-write" else {JAVA: 1}
            client.hset(self.key, mapping=fields)
            client.pexpire(self.key, 60_000)

    def releases(self, node: Node | None = None) -> None:
        """Release at a node, which has the lock by now; one waiter gets the message."""
        node = node or self.cluster.primary_of(self.key)
        with redis.Redis(port=node.port) as client:
            if self.shape == "redisson-permits":
                client.delete(self.out)
                client.set(self.key, 2)
            else:
                client.delete(self.key)
            head = client.lindex(f"redisson_lock_queue:{{{self.key}}}", 0)
            to = f"{self.channel}:{head.decode()}" if head else self.channel
            assert client.execute_command("SPUBLISH", to, "0") == 1


def followed(node, key):
    """Return the channels of a lock that somebody follows at a node."""
    return [channel for channel in node.command("PUBSUB", "SHARDCHANNELS") if f"{{{key}}}" in channel]
