"""A former leader of the model of etcd, stopped and replaced without knowing it, and its answers.

It answers keep-alives from its own table of leases, of which the new leader knows nothing. Until the fixes of 2026
(etcd issue 20418) it may also answer a transaction that only reads. Everything else goes through Raft's log, where it
hears of the new leader: that waits until then. It says the old Raft term for as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.etcd.state import Cluster, Json

STALE_READ = 0.8
"""How often a transaction that only reads is answered from what a replaced leader knows."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What the leader knew when it was stopped."""

    knew: Cluster

    @classmethod
    def of(cls, cluster: Cluster) -> Replaced:
        """Keep what the leader knows now."""
        leases = {number: replace(lease) for number, lease in cluster.leases.items()}
        return cls(
            Cluster(cluster.clock, cluster.revision, cluster.compacted, dict(cluster.pairs), leases, term=cluster.term)
        )

    def answer(self, path: str, body: Json) -> Json | None:
        """Answer by itself; None if it must hear from the others first."""
        if path == "/v3/lease/keepalive":
            lease = self.knew.leases.get(int(body["ID"]))
            if lease is not None and lease.ends <= self.knew.now():
                return None  # it waits for the end of a lease that has run out, or for its own as a leader
            return self.knew.keep_alive(int(body["ID"]))
        if path == "/v3/kv/txn" and only_reads(body) and self.knew.scheduler.random.random() < STALE_READ:
            return self.knew.transact(body)
        return None


def only_reads(body: Json) -> bool:
    """Say whether etcd sees at once that a transaction writes nothing, whichever branch it takes."""
    return all("request_range" in one for one in (*body["success"], *body["failure"]))
