"""When a keep-alive counts: when the cluster has confirmed, after it was sent, that its leader was still the leader.

A keep-alive does not go through Raft: the leader sets the lease anew in a table of its own. One that was stopped and
replaced answers from its old table when it goes on, and the new leader never hears of it (seen on etcd 3.4 and 3.5).
It is the same with a member that cannot reach the others, or whose disk stands still.

So each keep-alive is followed by a transaction that goes through Raft's log. Both answers tell a Raft term:

1. The member fills in the term of a keep-alive's answer before it asks the leader: it is the term of the last entry
   that the member has applied, so it is not later than the term of the leader that renews.
2. A transaction is an entry of the log. A member that answers it has applied all entries before it. If another leader
   was elected before the keep-alive was sent, and came to anything, then the first entry of its term is among those.
   So the answer tells that later term.

If both tell the same term, nobody had replaced the leader when the keep-alive was sent. Whoever replaces it after that
counts all leases anew from then, so the lease lasts as long as the keep-alive said, from when it was sent.

If they do not, nothing is known. Mostly there is another leader, so the next keep-alive finds it.

A transaction that only reads will not do, though it costs etcd less: it is not in the log. Until the fixes of 2026
(etcd issue 20418) it may return old values, and a member that has just installed a snapshot tells an old term until
its next entry. So `through_log` puts a deletion into the branch that is not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.keys import Json, Keys, deleted, only, txn

NO_TERM = 0
"""Raft begins with term 1."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The answer to a keep-alive, from whichever leader.

    Attributes:
        sent: boot-time clock before it was sent.
        length: seconds for which the lease was renewed; 0 if it has ended.
        term: the Raft term that the answer tells.

    """

    sent: float
    length: float
    term: int = NO_TERM

    def is_confirmed_by(self, answer: Json) -> bool:
        """Say whether the answer to a transaction shows that the leader was not replaced before the keep-alive.

        The transaction was sent after the keep-alive, and went through Raft's log.
        """
        return self.term == term_of(answer) != NO_TERM


async def keep_alive(
    runtime: Runtime, gateway: Gateway, lease: int, until: float, *, urgent: bool = False
) -> KeepAlive:
    """Ask for a lease to be set to its full length.

    Raises:
        StoreUnavailable: no answer.

    """
    sent = runtime.now()
    body = {"ID": str(lease)}
    said = await gateway.call("/v3/lease/keepalive", body, within=max(until - sent, 0.001), urgent=urgent)
    return KeepAlive(sent, max(float(said.get("TTL", 0)), 0.0), term_of(said))


def through_log(keys: Keys, reads: Sequence[Json] = ()) -> Json:
    """Make a transaction that reads, and goes through Raft's log all the same. It writes nothing."""
    return txn([], list(reads), [deleted(only(keys.unused))])


def term_of(answer: Json) -> int:
    """Return the Raft term that an answer tells."""
    return int(answer.get("header", {}).get("raft_term", NO_TERM))
