"""Confirmed keep-alives: a keep-alive counts when the cluster confirms that its leader was still the leader.

A keep-alive does not go through Raft: the leader renews the lease in a table of its own. A leader that was stopped and
replaced answers from its old table when it continues, and the new leader never learns of it (seen on etcd 3.4 and 3.5).
The same happens with a member that cannot reach the others, or whose disk is stalled.

So each keep-alive is followed by a transaction that goes through Raft's log. Both responses contain a Raft term:

1. The member sets the term of a keep-alive's response before it asks the leader. It is the term of the last entry that
   the member has applied, so it is not later than the term of the leader that renews.
2. A transaction is an entry of the log. A member that answers it has applied all entries before it. If another leader
   was elected before the keep-alive was sent, and took effect, then the first entry of its term is among those. So the
   response contains that later term.

If both terms are the same, no other leader had been elected when the keep-alive was sent. A later leader restarts all
leases at its election. So the lease lasts as long as the keep-alive said, counted from when it was sent.

If the terms differ, nothing is known. Usually there is another leader, and the next keep-alive reaches it.

A transaction that only reads will not do, though it costs etcd less: it is not in the log. Until the fixes of 2026
(etcd issue 20418) it may return old values, and a member that has just installed a snapshot reports an old term until
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
    """The response to a keep-alive, from the present or a former leader.

    Attributes:
        sent: boot-time clock before it was sent.
        length: seconds for which the lease was renewed; 0 if it has ended.
        term: the Raft term in the response.

    """

    sent: float
    length: float
    term: int = NO_TERM

    def is_confirmed_by(self, answer: Json) -> bool:
        """Return whether the response to a transaction shows that the leader was not replaced before the keep-alive.

        The transaction was sent after the keep-alive, and went through Raft's log.
        """
        return self.term == term_of(answer) != NO_TERM


async def keep_alive(
    runtime: Runtime, gateway: Gateway, lease: int, until: float, *, urgent: bool = False
) -> KeepAlive:
    """Renew a lease to its full length.

    Raises:
        StoreUnavailable: no response.

    """
    sent = runtime.now()
    response = await gateway.call("/v3/lease/keepalive", {"ID": str(lease)}, until, urgent=urgent)
    return KeepAlive(sent, max(float(response.get("TTL", 0)), 0.0), term_of(response))


def through_log(keys: Keys, reads: Sequence[Json] = ()) -> Json:
    """Build a transaction that goes through Raft's log although it only reads."""
    return txn([], list(reads), [deleted(only(keys.unused))])


def term_of(answer: Json) -> int:
    """Return the Raft term in a response."""
    return int(answer.get("header", {}).get("raft_term", NO_TERM))
