"""Faults of several Redis servers: failovers, servers that lag or are cut off, slots that move, nodes that forget."""

from __future__ import annotations

from dataclasses import replace

from leasehold_lab.servers import RedisCluster, RedisReplicas, RedisSentinel, RedlockNodes
from leasehold_lab.servers.group import Node
from leasehold_lab.verify.faults import redis_faults
from leasehold_lab.verify.faults.actions import (
    FaultContext,
    ServerFault,
    freeze,
    freeze_all,
    restart_after,
    restart_all_after,
)

# --- replicas ----------------------------------------------------------------------------------------------------


def _replica_frozen(group: RedisReplicas, context: FaultContext) -> None:
    freeze(context.random.choice(group.replicas), context, 1.0)


def _replica_down(group: RedisReplicas, context: FaultContext) -> None:
    restart_after(context.random.choice(group.replicas), context)
    group.wait_healthy()


def _primary_frozen(group: RedisReplicas, context: FaultContext) -> None:
    freeze(group.primary, context, 0.6)


def _demoted(group: RedisReplicas, context: FaultContext) -> None:
    """Make the server of the URL a replica for a while, and then the primary again."""
    first, other = group.nodes[0], group.nodes[1]
    group.promote(other)
    context.sleep(0.6 * context.lease)
    group.promote(first)
    group.wait_healthy()


def _on_primary(fault: ServerFault) -> ServerFault:
    """Return a fault of one server as a fault of the primary."""

    def action(group: RedisReplicas, context: FaultContext) -> None:
        fault.action(group.primary, context)

    return replace(fault, action=action)


REPLICAS = (
    *map(_on_primary, redis_faults.COMMANDS[:8]),
    ServerFault("server-replica-freeze", "a replica is paused for a lease", ("C19",), _replica_frozen),
    ServerFault("server-replica-crash", "a replica is killed and restarted", ("C19",), _replica_down),
    ServerFault("server-freeze", "the primary is paused for a part of a lease", ("C15",), _primary_frozen),
    ServerFault(
        "server-demote", "the primary is made a replica and back again: READONLY", ("C7", "C8"), _demoted, loses=True
    ),
)

# --- Sentinel ----------------------------------------------------------------------------------------------------


def _primary_killed(group: RedisSentinel, context: FaultContext) -> None:
    old = group.primary
    old.kill()
    group.wait_failover(old)
    old.start()
    group.wait_healthy()


def _lagging(group: RedisSentinel, context: FaultContext) -> None:
    """Kill the primary when no replica has received its last grants."""
    old, replicas = group.primary, group.replicas
    for replica in replicas:
        replica.pause()
    context.sleep(0.4 * context.lease)
    old.kill()
    for replica in replicas:
        replica.resume()
    group.wait_failover(old)
    old.start()
    group.wait_healthy()


def _handed_over(group: RedisSentinel, context: FaultContext) -> None:
    old = group.primary
    group.sentinels[0].command("SENTINEL", "FAILOVER", group.name)
    group.wait_failover(old)
    group.wait_healthy()


def _split(group: RedisSentinel, context: FaultContext) -> None:
    old = group.primary
    old.cut_off()
    group.wait_failover(old)
    context.sleep(0.5 * context.lease)
    old.rejoin()
    group.wait_healthy()


def _stalled_primary(group: RedisSentinel, context: FaultContext) -> None:
    old = group.primary
    old.pause()
    try:
        group.wait_failover(old)
    finally:
        old.resume()
    group.wait_healthy()


def _sentinel_down(group: RedisSentinel, context: FaultContext) -> None:
    restart_after(context.random.choice(group.sentinels), context, 0.5)
    group.wait_healthy()


SENTINEL = (
    ServerFault(
        "server-failover", "the primary is killed; a replica takes over", ("C3", "C8"), _primary_killed, loses=True
    ),
    ServerFault(
        "server-lag", "the primary is killed when no replica has its last grants", ("C3",), _lagging, loses=True
    ),
    ServerFault("server-hand-over", "the sentinels fail over on command", ("C7", "C8"), _handed_over, loses=True),
    ServerFault("server-split", "the primary is cut off and goes on serving; another is elected", ("C4", "C9", "D9"),
                _split, loses=True),
    ServerFault(
        "server-stall", "the primary is paused until it is replaced", ("C3", "C15"), _stalled_primary, loses=True
    ),
    ServerFault("server-sentinel", "a sentinel is killed and restarted", ("C9",), _sentinel_down),
    ServerFault("server-replica-freeze", "a replica is paused for a lease", ("C19",), _replica_frozen),
)  # fmt: skip

# --- Cluster -----------------------------------------------------------------------------------------------------

REPLACED = 4.0
"""Seconds within which a silent primary is replaced: the node timeout, an election, and a margin."""


def _shard_killed(cluster: RedisCluster, context: FaultContext) -> None:
    old = context.random.choice(cluster.primaries)
    old.kill()
    cluster.wait_failover(old)
    old.start()
    cluster.wait_healthy()


def _shard_stalled(cluster: RedisCluster, context: FaultContext) -> None:
    old = context.random.choice(cluster.primaries)
    old.pause()
    try:
        context.sleep(REPLACED)  # it cannot answer meanwhile
    finally:
        old.resume()
    cluster.wait_healthy()


def _shard_handed_over(cluster: RedisCluster, context: FaultContext) -> None:
    old = context.random.choice(cluster.primaries)
    cluster.ask_to_take_over(cluster.replicas_of(old)[0])
    cluster.wait_failover(old)
    cluster.wait_healthy()


def _slot_moved(cluster: RedisCluster, context: FaultContext) -> None:
    key = f"leasehold:{{{context.namespace}:lock-0}}:lock"
    source = cluster.primary_of(key)
    target: Node = context.random.choice([node for node in cluster.primaries if node is not source])
    migration = cluster.migrate(key, target)
    context.sleep(0.2 * context.lease)
    migration.move()
    context.sleep(0.2 * context.lease)
    migration.finish()


def _majority_frozen(cluster: RedisCluster, context: FaultContext) -> None:
    """Pause most primaries, for less time than their replicas need to take over."""
    freeze_all(cluster.primaries[:2], context, min(1.0 / context.lease, 0.8))
    cluster.wait_healthy()


CLUSTER = (
    ServerFault(
        "server-failover", "a primary is killed; its replica takes over", ("C3", "C11"), _shard_killed, loses=True
    ),
    ServerFault("server-stall", "a primary is paused until it is replaced", ("C3", "C15"), _shard_stalled, loses=True),
    ServerFault("server-hand-over", "a replica takes over on command", ("C7", "C10"), _shard_handed_over, loses=True),
    ServerFault("server-move-slot", "a slot in use moves to another server", ("C10",), _slot_moved),
    ServerFault("server-freeze-most", "most primaries are paused for a while", ("C11",), _majority_frozen, loses=True),
)

# --- Redlock -----------------------------------------------------------------------------------------------------


def _node_frozen(nodes: RedlockNodes, context: FaultContext) -> None:
    freeze(context.random.choice(nodes.nodes), context, 1.0)


def _node_down(nodes: RedlockNodes, context: FaultContext) -> None:
    restart_after(context.random.choice(nodes.nodes), context, 0.5)


def _node_forgets(nodes: RedlockNodes, context: FaultContext) -> None:
    context.random.choice(nodes.nodes).restart(keep_data=False)


def _minority_down(nodes: RedlockNodes, context: FaultContext) -> None:
    restart_all_after(context.random.sample(nodes.nodes, 2), context, 1.0)


def _majority_down(nodes: RedlockNodes, context: FaultContext) -> None:
    freeze_all(context.random.sample(nodes.nodes, 3), context, 1.3)


def _node_clock(nodes: RedlockNodes, context: FaultContext) -> None:
    """Let all keys of the run on one server expire at once, as a step of its clock does."""
    node = context.random.choice(nodes.nodes)
    found = node.command("KEYS", f"*{context.namespace}*")
    for key in found if isinstance(found, list) else []:
        node.command("PEXPIRE", str(key), 1)


REDLOCK = (
    ServerFault("server-freeze", "one of five servers is paused for a lease", ("K7",), _node_frozen),
    ServerFault("server-crash", "one of five servers is killed and comes back with its data", ("K7",), _node_down),
    ServerFault("server-minority", "two of five servers are down for a lease", ("K7",), _minority_down),
    ServerFault("server-majority", "three of five are paused for more than a lease", ("K4", "K5"), _majority_down),
    ServerFault("server-amnesia", "one of five servers restarts empty, and votes", ("K1",), _node_forgets, loses=True),
    ServerFault("server-clock", "all leases expire early on one of five servers", ("K2",), _node_clock, loses=True),
)
