"""Faults of ZooKeeper ensembles and etcd clusters: leaders that die or stall, a quorum that is gone, lost history."""

from __future__ import annotations

from leasehold_lab.servers import EtcdCluster, EtcdError, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer
from leasehold_lab.verify.faults.actions import (
    FaultContext,
    ServerFault,
    freeze,
    freeze_all,
    restart_after,
    restart_all_after,
)

TWO_TERMS = 2.0
"""Leases until a dead holder's lock is free after a change of leaders, which begins each session or lease anew."""

# --- ZooKeeper ---------------------------------------------------------------------------------------------------


def _follower(group: ZooKeeperEnsemble, context: FaultContext) -> ZooKeeperServer:
    return context.random.choice(group.followers() or [group.wait(2)])


def _zk_leader_killed(group: ZooKeeperEnsemble, context: FaultContext) -> None:
    restart_after(group.wait(2), context)
    group.wait()


def _zk_leader_frozen(group: ZooKeeperEnsemble, context: FaultContext) -> None:
    freeze(group.wait(2), context, 0.8)
    group.wait()


def _zk_follower_killed(group: ZooKeeperEnsemble, context: FaultContext) -> None:
    restart_after(_follower(group, context), context)
    group.wait()


def _zk_follower_frozen(group: ZooKeeperEnsemble, context: FaultContext) -> None:
    freeze(_follower(group, context), context, 1.2)
    group.wait()


def _zk_no_quorum(group: ZooKeeperEnsemble, context: FaultContext) -> None:
    restart_all_after(context.random.sample(group.members, 2), context, 0.5)
    group.wait()


ZOOKEEPER = (
    ServerFault("server-leader", "the leader is killed and comes back", ("F5",), _zk_leader_killed, settles=TWO_TERMS),
    ServerFault(
        "server-leader-freeze", "the leader is paused for most of a lease", ("F1", "F5"), _zk_leader_frozen,
        settles=TWO_TERMS,
    ),
    ServerFault(
        "server-follower", "a follower is killed and comes back", ("F1", "F2", "F4"), _zk_follower_killed,
        settles=TWO_TERMS,
    ),
    ServerFault(
        "server-follower-freeze", "a follower is paused for more than a lease", ("F1", "F10"), _zk_follower_frozen,
        settles=TWO_TERMS,
    ),
    ServerFault("server-quorum", "two of three are killed and come back", ("F1", "F5"), _zk_no_quorum,
                settles=TWO_TERMS),
)  # fmt: skip

# --- etcd --------------------------------------------------------------------------------------------------------


def _etcd_leader_killed(group: EtcdCluster, context: FaultContext) -> None:
    restart_after(group.leader(), context)
    group.leader()


def _etcd_leader_frozen(group: EtcdCluster, context: FaultContext) -> None:
    freeze(group.leader(), context, 0.8)
    group.leader()


def _etcd_follower(group: EtcdCluster, context: FaultContext) -> EtcdServer:
    leader = group.leader()
    return context.random.choice([member for member in group.members if member is not leader])


def _etcd_follower_killed(group: EtcdCluster, context: FaultContext) -> None:
    restart_after(_etcd_follower(group, context), context)


def _etcd_follower_frozen(group: EtcdCluster, context: FaultContext) -> None:
    freeze(_etcd_follower(group, context), context, 1.2)


def _etcd_no_quorum(group: EtcdCluster, context: FaultContext) -> None:
    freeze_all(context.random.sample(group.members, 2), context, 0.6)
    group.leader()


def _etcd_compacted(group: EtcdCluster, context: FaultContext) -> None:
    for _ in range(5):
        try:
            group.leader().compact()
        except EtcdError as error:
            if "has been compacted" not in str(error):  # nothing was written since the last time
                raise
        context.sleep(0.2 * context.lease)


def _etcd_leases_revoked(group: EtcdCluster, context: FaultContext) -> None:
    """Take away every lease, as an administrator may."""
    leader = group.leader()
    for lease in leader.leases():
        try:
            leader.ask("/v3/lease/revoke", {"ID": str(lease)})
        except EtcdError:  # it ended meanwhile
            continue


ETCD = (
    ServerFault("server-leader", "the leader is killed and comes back", ("G3",), _etcd_leader_killed,
                settles=TWO_TERMS),
    ServerFault("server-leader-freeze", "the leader is paused for most of a lease", ("G3", "G5"),
                _etcd_leader_frozen, settles=TWO_TERMS),
    ServerFault("server-follower", "a follower is killed and comes back", ("G4",), _etcd_follower_killed,
                settles=TWO_TERMS),
    ServerFault("server-follower-freeze", "a follower is paused for more than a lease", ("G4", "G5"),
                _etcd_follower_frozen, settles=TWO_TERMS),
    ServerFault("server-quorum", "two of three stand still for a part of a lease", ("G5",), _etcd_no_quorum,
                settles=TWO_TERMS),
    ServerFault("server-compact", "history is compacted again and again", ("G6",), _etcd_compacted),
    ServerFault("server-revoke", "all leases are revoked", ("G1", "C18"), _etcd_leases_revoked, loses=True),
)  # fmt: skip
