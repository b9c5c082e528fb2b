"""Three members of etcd."""

from __future__ import annotations

import math

from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.etcd.http import SimulatedEtcd
from models.etcd.members import Member, cluster_of
from models.etcd.state import LATE, LEAST_TTL
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System
from models.systems.redis import AWAY, LOCKS

UNAWARE = 0.1
"""Seconds for which a leader that goes on may not know that it was replaced; real ones are quicker, mostly."""

LEADERLESS = 2 * LEAST_TTL
"""Further seconds for which there may be no leader: a release that fails is repeated for a lease, and then no more."""

SERVES = 0.2
"""Seconds for which it serves before it is stopped again."""


class EtcdSystem(System):
    """The word is kept while a majority has its data, whatever happens to one member or to the leader."""

    name = "etcd"
    menu = Menu(
        LOCKS,
        (*OF_CLIENTS, Kind.DEAF, Kind.DEAF, Kind.RESTART, Kind.LEADER, *4 * (Kind.REPLACED,), Kind.COMPACT),
        (Kind.REVOKE,),
    )
    expiry_delay = 0.1 + LATE
    reconnects = 1.7
    """A broken watch is opened again after up to a second, a member that cannot do it asked again after up to half."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.members = cluster_of(harness.scheduler, ("e0", "e1", "e2"), rate=rate)
        self.cluster = self.members[0].cluster
        self.hosts = self.members
        self.opener = SimulatedEtcd(self.members)

    def foresee(self, one: Strike) -> None:
        """Know that a change of leader makes leases longer."""
        if one.kind in (Kind.LEADER, Kind.REPLACED):
            self.expiry_delay += LEAST_TTL + AWAY
        if one.kind is Kind.LEADER and _lasts(one):
            self.expiry_delay += LEADERLESS

    def restart(self, one: Strike) -> float:
        """Restart a member."""
        seconds = 0.05 + one.luck * AWAY
        self.host(one).restart(seconds)
        return seconds

    def leader(self, one: Strike) -> float:
        """Be without a leader for a while, sometimes for longer than clients repeat what failed."""
        seconds = 0.05 + one.luck * AWAY + (LEADERLESS if _lasts(one) else 0.0)
        self.harness.scheduler.note("etcd", f"has no leader for {seconds:.6f} s")
        self.cluster.elect(self.harness.scheduler.time + seconds)
        for member in self.members:
            for watcher in list(member.watchers.values()):
                watcher.line.end()
        return seconds

    def replaced(self, one: Strike) -> float | None:
        """Stop the leader until another has its place, and longer; when it goes on, it does not know that at once.

        Often that comes with more: some clients reach no other member meanwhile, and it is soon stopped once more.
        """
        member, scheduler = self.members[one.victim % len(self.members)], self.harness.scheduler
        if member.replaced is not None or member.is_down:
            return None
        election, rest = 0.05 + one.luck * AWAY / 4, one.luck * 1000 % 1.0
        stopped = election + math.sqrt(rest) * LEAST_TTL  # beyond that, it knows itself that the leases have run out
        unaware = rest * 1000 % 1 * UNAWARE
        lasts: float = stopped + unaware
        member.is_replaced(stopped, unaware)
        self.cluster.elect(scheduler.time + election)
        if one.victim % 4:
            lasts += rest * 100 % 1 * SERVES
            scheduler.at(scheduler.time + lasts, self.harness.fate, lambda: member.stop(AWAY + one.seconds))
            lasts += AWAY + one.seconds
            self._leave_them(member, one.victim % 2, scheduler.time + lasts)
        return lasts

    def _leave_them(self, member: Member, which: int, until: float) -> None:
        """Let every other client reach this member only."""
        names = sorted({name for one in self.members for name in one.links})[which::2]
        for other in self.members:
            if other is not member:
                for name in names:
                    other.link(name).refused = max(other.link(name).refused, until)
                for line in list(other.lines.values()):
                    if line.client.name in names:
                        line.end()

    def compact(self, one: Strike) -> float:
        """Forget old revisions."""
        self.harness.scheduler.note("etcd", "forgets old revisions")
        self.cluster.compact()
        return 0.0

    def revoke(self, one: Strike) -> float:
        """Revoke one of the leases, if there is any."""
        leases = list(self.cluster.leases)
        if leases:
            self.harness.scheduler.note("etcd", "revokes a lease")
            self.cluster.revoke(leases[one.victim % len(leases)])
        return 0.0


def _lasts(one: Strike) -> bool:
    """Return whether there is no leader for long."""
    return one.victim % 4 == 0
