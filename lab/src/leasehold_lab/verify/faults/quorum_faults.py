"""Faults of ZooKeeper ensembles and etcd clusters: leaders that die or stall, a quorum that is gone, lost history."""

from __future__ import annotations

from leasehold_lab.servers import EtcdCluster, EtcdError, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer
from leasehold_lab.verify.faults.actions import ServerFault, Spell, all_down, all_frozen, down, frozen

TWO_TERMS = 2.0
"""Leases until a dead holder's lock is free after a change of leaders, which begins each session or lease anew."""

# --- ZooKeeper ---------------------------------------------------------------------------------------------------


def _follower(group: ZooKeeperEnsemble, spell: Spell) -> ZooKeeperServer:
    return spell.random.choice(group.followers() or [group.wait(2)])


def _zk_leader_killed(group: ZooKeeperEnsemble, spell: Spell) -> None:
    down(group.wait(2), spell)
    group.wait()


def _zk_leader_frozen(group: ZooKeeperEnsemble, spell: Spell) -> None:
    frozen(group.wait(2), spell, 0.8)
    group.wait()


def _zk_follower_killed(group: ZooKeeperEnsemble, spell: Spell) -> None:
    down(_follower(group, spell), spell)
    group.wait()


def _zk_follower_frozen(group: ZooKeeperEnsemble, spell: Spell) -> None:
    frozen(_follower(group, spell), spell, 1.2)
    group.wait()


def _zk_no_quorum(group: ZooKeeperEnsemble, spell: Spell) -> None:
    all_down(spell.random.sample(group.members, 2), spell, 0.5)
    group.wait()


ZOOKEEPER = (
    ServerFault("server-leader", "the leader is killed and comes back", ("F5",), _zk_leader_killed, settles=TWO_TERMS),
    ServerFault(
        "server-leader-freeze", "the leader stands still for most of a lease", ("F1", "F5"), _zk_leader_frozen,
        settles=TWO_TERMS,
    ),
    ServerFault(
        "server-follower", "a follower is killed and comes back", ("F1", "F2", "F4"), _zk_follower_killed,
        settles=TWO_TERMS,
    ),
    ServerFault(
        "server-follower-freeze", "a follower stands still for more than a lease", ("F1", "F10"), _zk_follower_frozen,
        settles=TWO_TERMS,
    ),
    ServerFault("server-quorum", "two of three are killed and come back", ("F1", "F5"), _zk_no_quorum,
                settles=TWO_TERMS),
)  # fmt: skip

# --- etcd --------------------------------------------------------------------------------------------------------


def _etcd_leader_killed(group: EtcdCluster, spell: Spell) -> None:
    down(group.leader(), spell)
    group.leader()


def _etcd_leader_frozen(group: EtcdCluster, spell: Spell) -> None:
    frozen(group.leader(), spell, 0.8)
    group.leader()


def _etcd_follower(group: EtcdCluster, spell: Spell) -> EtcdServer:
    leader = group.leader()
    return spell.random.choice([member for member in group.members if member is not leader])


def _etcd_follower_killed(group: EtcdCluster, spell: Spell) -> None:
    down(_etcd_follower(group, spell), spell)


def _etcd_follower_frozen(group: EtcdCluster, spell: Spell) -> None:
    frozen(_etcd_follower(group, spell), spell, 1.2)


def _etcd_no_quorum(group: EtcdCluster, spell: Spell) -> None:
    all_frozen(spell.random.sample(group.members, 2), spell, 0.6)
    group.leader()


def _etcd_compacted(group: EtcdCluster, spell: Spell) -> None:
    for _ in range(5):
        try:
            group.leader().compact()
        except EtcdError as error:
            if "has been compacted" not in str(error):  # nothing was written since the last time
                raise
        spell.sleep(0.2 * spell.lease)


def _etcd_leases_revoked(group: EtcdCluster, spell: Spell) -> None:
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
    ServerFault("server-leader-freeze", "the leader stands still for most of a lease", ("G3", "G5"),
                _etcd_leader_frozen, settles=TWO_TERMS),
    ServerFault("server-follower", "a follower is killed and comes back", ("G4",), _etcd_follower_killed,
                settles=TWO_TERMS),
    ServerFault("server-follower-freeze", "a follower stands still for more than a lease", ("G4", "G5"),
                _etcd_follower_frozen, settles=TWO_TERMS),
    ServerFault("server-quorum", "two of three stand still for a part of a lease", ("G5",), _etcd_no_quorum,
                settles=TWO_TERMS),
    ServerFault("server-compact", "history is compacted again and again", ("G6",), _etcd_compacted),
    ServerFault("server-revoke", "all leases are revoked", ("G1", "C18"), _etcd_leases_revoked, loses=True),
)  # fmt: skip
