"""Three members of ZooKeeper."""

from __future__ import annotations

from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System
from models.systems.redis import AWAY, LOCKS
from models.zookeeper.ensemble import TICK, Ensemble
from models.zookeeper.transport import SimulatedZooKeeper

TIMEOUT = 4.0
"""Seconds of a session without news. Six tenths of it are longer than the leases of the histories."""

LONGER = TIMEOUT + 2 * TICK - 2.0
"""Seconds by which a session outlives a lease."""


class ZooKeeperSystem(System):
    """The word is kept while a majority has its data, whatever happens to one member or to the leader."""

    name = "zookeeper"
    menu = Menu(LOCKS, (*OF_CLIENTS, Kind.RESTART, Kind.LEADER, Kind.COMPACT), (Kind.REVOKE,))
    expiry_delay = LONGER
    reconnects = 2.7
    """A member that does not answer is given up after a second, and another tried after a pause of up to one."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.ensemble = Ensemble(harness.scheduler, ("z0", "z1", "z2"), rate=rate)
        self.members = self.hosts = self.ensemble.members
        self.opener = SimulatedZooKeeper(self.ensemble.members, TIMEOUT)

    def foresee(self, one: Strike) -> None:
        """Know that a change of leader makes sessions longer."""
        if one.kind is Kind.LEADER:
            self.expiry_delay += TIMEOUT + AWAY

    def restart(self, one: Strike) -> float:
        """Restart a member."""
        seconds = 0.05 + one.luck * AWAY
        self.host(one).restart(seconds)
        return seconds

    def leader(self, one: Strike) -> float:
        """Be without a leader for a while."""
        seconds = 0.05 + one.luck * AWAY
        self.harness.scheduler.note("leader", f"is gone for {seconds:.6f} s")
        self.ensemble.elect(self.harness.scheduler.time + seconds)
        return seconds

    def compact(self, one: Strike) -> float:
        """Remove containers that are empty."""
        self.harness.scheduler.note("leader", "removes empty containers")
        self.ensemble.sweep()
        return 0.0

    def revoke(self, one: Strike) -> float:
        """End one of the sessions, if there is any."""
        sessions = list(self.ensemble.sessions)
        if sessions:
            self.harness.scheduler.note("leader", "an operator ends a session")
            self.ensemble.end(sessions[one.victim % len(sessions)])
        return 0.0
