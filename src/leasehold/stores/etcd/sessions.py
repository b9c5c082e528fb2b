"""The etcd leases of one client: one for each length in use, renewed for the tickets under it.

Theory of operation
-------------------
Tickets of the same length share a lease of etcd, the *session*. So an acquire is one request, however many locks a
client has, and one keep-alive renews them all. A ticket that is not renewed (a fixed lease, or one with a cap) has a
lease of its own; else it would live as long as the others.

etcd counts whole seconds and has a minimum of its own. So the length is what etcd grants, not what was asked for. The
client chooses the id of the lease, so a grant whose reply was lost is not granted twice.

A session counts from before a keep-alive was sent, if a later transaction confirms that the true leader answered.
Usually that is a transaction which is sent anyway. An idle session is not renewed: it ends by itself, and the next
ticket begins another. `revoke_all` ends all sessions, and so deletes the keys under them.

Why a keep-alive needs a confirmation
-------------------------------------
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

A leader that was replaced does not know a lease that the new one granted, either. So if a keep-alive finds no lease
whose time has not passed, a write under it decides, which goes through the log: etcd refuses it if the lease has ended.

A transaction that only reads will not do, though it costs etcd less: it is not in the log. Until the fixes of 2026
(etcd issue 20418) it may return old values, and a member that has just installed a snapshot reports an old term until
its next entry. So `through_log` puts a deletion into the branch that is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.etcd.at_once import for_each
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import TOO_SLOW, Gateway
from leasehold.stores.etcd.keys import Json, Keys, deleted, only, put, txn

NO_TERM = 0
"""Raft begins with term 1."""

FRESH = 1 / 3
"""An acquire uses a session without a renewal if less than this part of its length has passed."""

KEPT = 8
"""Leases of single tickets that are kept for the next such ticket, at most."""

MOST_GRAVES = 64
"""Tombstones under a shared session, after which new tickets begin another: they stay as long as its tickets do."""

ATTEMPTS = 3
"""Attempts to renew a lease until that is confirmed: during an election the first may fail."""

REVOKE_WITHIN = 1.0
"""Seconds in which a closing client revokes its leases."""

LEADER_CHANGES = "etcd changes its leader again and again, so no renewal can be confirmed; look at its members"


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


@dataclass(eq=False)
class Session:
    """A lease of etcd.

    Attributes:
        id: its id.
        asked: requested seconds.
        length: granted seconds.
        confirmed: boot-time clock before the last confirmed grant or keep-alive was sent.
        shared: whether all tickets of its length use it.
        over: whether etcd reported that it has ended.
        graves: tombstones that were written under it, or may have been.
    """

    id: int
    asked: int
    length: float
    confirmed: float
    shared: bool = True
    over: bool = False
    graves: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it takes no more tickets."""
        return self.over or self.graves >= MOST_GRAVES

    @property
    def until(self) -> float:
        """Boot-time clock at which it may have ended, unless it was renewed since."""
        return self.confirmed + self.length

    @property
    def result(self) -> KeepAlive:
        """What is known without a new keep-alive."""
        return KeepAlive(self.confirmed, self.length)

    def confirm(self, renewal: KeepAlive, answer: Json) -> bool:
        """Count a keep-alive if the response to a later transaction confirms it; return whether it counts.

        The transaction was sent after the keep-alive, and went through Raft's log.
        """
        if renewal.term == term_of(answer) != NO_TERM:
            self.length = renewal.length
            self.confirmed = max(self.confirmed, renewal.sent)
        return self.believes(renewal)

    def believes(self, renewal: KeepAlive) -> bool:
        """Return whether this keep-alive counts, or a later one."""
        return self.confirmed >= renewal.sent


class Sessions:
    """All sessions of a client. Safe to use from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self.forget()

    def forget(self) -> None:
        """Forget all sessions in a forked child: they are the parent's."""
        self._locks = KeyedLock(self._runtime, TOO_SLOW)
        self._shared: dict[int, Session] = {}
        self._spare: list[Session] = []
        self._uncertain: dict[int, Session] = {}  # by length: a shared one that may exist, if its grant had no answer
        self._all: dict[Session, None] = {}

    async def shared(self, length: float, until: float) -> tuple[Session, KeepAlive]:
        """Return the session for tickets of this length, and its latest keep-alive, which may need a confirmation."""
        ttl = whole(length)
        while True:
            session = self._shared.get(ttl)
            if session is None or session.is_full:
                async with self._locks.hold(f"{ttl}", until):
                    session = self._shared.get(ttl)
                    if session is None or session.is_full:
                        session = self._shared[ttl] = await self._granted(ttl, until, shared=True)
            if (renewal := await self.fresh(session, until)) is not None:
                return session, renewal

    async def own(self, length: float, until: float) -> tuple[Session, KeepAlive]:
        """Return a lease for one ticket alone, and its keep-alive from now, which may need a confirmation."""
        ttl = whole(length)
        while (session := self._take_spare(ttl)) is not None:
            if (renewal := await self.renew(session, until)) is not None:
                self._all[session] = None
                return session, renewal
        session = await self._granted(ttl, until, shared=False)
        return session, session.result

    def give_back(self, session: Session) -> None:
        """Keep a lease for the next such ticket. Its own ticket must certainly be released."""
        if session.shared or session.over:
            return
        if len(self._spare) < KEPT and self._runtime.now() < session.until:
            self._spare.append(session)  # it is not renewed: it ends by itself unless a ticket takes it before
        else:
            self._all.pop(session, None)  # nothing is stored under it

    def forget_ended(self, now: float) -> None:
        """Forget the leases that have ended since nobody renewed them, except those for the next tickets."""
        for session in list(self._all):
            if self._shared.get(session.asked) is not session and _has_ended(session, now):
                self._all.pop(session, None)

    async def fresh(self, session: Session, until: float) -> KeepAlive | None:
        """Renew a session, a shared one only if that is due; return None if it has ended."""
        if session.shared and self._runtime.now() - session.confirmed < FRESH * session.length:
            return None if session.over else session.result
        return await self.renew(session, until)

    async def renew(self, session: Session, until: float, *, urgent: bool = False) -> KeepAlive | None:
        """Renew a session to its full length; return the keep-alive to confirm, None if the session has ended.

        Raises:
            StoreUnavailable: no response, or one of a leader that was replaced.
        """
        for _ in range(ATTEMPTS):
            if session.over:
                return None
            sent = self._runtime.now()
            response = await self._gateway.call("/v3/lease/keepalive", {"ID": str(session.id)}, until, urgent=urgent)
            length = max(float(response.get("TTL", 0)), 0.0)
            if length:
                return KeepAlive(sent, length, term_of(response))
            if self._runtime.now() >= session.until or not await self._exists(session, until, urgent=urgent):
                self.ended(session)
                return None
        raise StoreUnavailable(LEADER_CHANGES, unknown=True)

    async def _exists(self, session: Session, until: float, *, urgent: bool) -> bool:
        """Return whether the lease exists, by a write under it; the member that answers it knows the leader by then."""
        write = put(self._keys.tombstone(f"{session.id:x}"), b"", session.id)
        try:
            await self._gateway.call("/v3/kv/txn", txn([], [write]), until, urgent=urgent)
        except Refused:
            return False
        return True

    async def settle(self, session: Session, renewal: KeepAlive, until: float) -> bool:
        """Confirm the keep-alive of a lease in use, by another one if needed; return whether the lease lives.

        Raises:
            StoreUnavailable: it could not be confirmed.
        """
        for _ in range(ATTEMPTS):
            if session.believes(renewal):
                return True
            again = await self.renew(session, until)
            if again is None:
                return False
            renewal = again
            session.confirm(renewal, await self._gateway.call("/v3/kv/txn", through_log(self._keys), until))
        if session.believes(renewal):
            return True
        raise StoreUnavailable(LEADER_CHANGES, unknown=True)

    def ended(self, session: Session) -> None:
        """Record that etcd does not know a session any more."""
        session.over = True
        self._all.pop(session, None)
        self.retire(session)

    def retire(self, session: Session) -> None:
        """Let the next ticket begin another shared session; this one lives on for its own tickets."""
        if self._shared.get(session.asked) is session:
            self._shared.pop(session.asked, None)

    async def revoke_all(self) -> None:
        """Revoke all leases, and so delete all keys under them."""
        now = self._runtime.now()
        living = [session for session in list(self._all) if not _has_ended(session, now)]
        await for_each(self._runtime, living, lambda session: self._revoke(session, now + REVOKE_WITHIN))
        self.forget()

    def _take_spare(self, ttl: int) -> Session | None:
        for session in self._spare.copy():
            if session.asked == ttl:
                try:
                    self._spare.remove(session)
                except ValueError:  # another thread has it
                    continue
                return session
        return None

    async def _granted(self, ttl: int, until: float, *, shared: bool) -> Session:
        sent = self._runtime.now()
        session = self._uncertain.get(ttl) if shared else None
        if session is None:
            session = Session(new_id(self._runtime), ttl, float(ttl), sent, shared)
        if shared:
            self._uncertain[ttl] = session  # the next attempt finds it if it was granted without an answer
        self._all[session] = None  # before the request: `close` revokes it even if no response came
        try:
            response = await self._gateway.call("/v3/lease/grant", {"TTL": str(ttl), "ID": str(session.id)}, until)
        except StoreUnavailable as error:
            if not shared and not error.unknown:
                self._all.pop(session, None)
            raise
        except Refused:
            pass  # it exists, and counts from before its first request; a caller that needs more renews it
        else:
            session.confirmed = sent
            session.length = float(response["TTL"])
        if shared:
            self._uncertain.pop(ttl, None)
        return session

    async def _revoke(self, session: Session, until: float) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(session.id)}, until)
        except Refused:
            pass  # it has ended
        except StoreUnavailable:
            return  # it ends by itself
        self.ended(session)


def _has_ended(session: Session, now: float) -> bool:
    return session.over or now >= session.until + session.length  # etcd may notice late


def new_id(runtime: Runtime) -> int:
    """Choose the id of a lease: a grant whose reply was lost is then not granted twice."""
    return int.from_bytes(runtime.random_bytes(8)) >> 1 or 1


def whole(length: float) -> int:
    """Return the seconds to request: etcd counts whole ones."""
    return max(1, math.ceil(length))


def through_log(keys: Keys, reads: Sequence[Json] = ()) -> Json:
    """Build a transaction that goes through Raft's log although it only reads."""
    return txn([], list(reads), [deleted(only(keys.unused))])


def term_of(answer: Json) -> int:
    """Return the Raft term in a response."""
    return int(answer.get("header", {}).get("raft_term", NO_TERM))
