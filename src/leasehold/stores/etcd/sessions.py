"""The etcd leases of one client: one for each length in use, kept alive by the tickets that live under it.

Theory of operation
-------------------
Tickets of the same length share a lease of etcd, the *session*: so a claim is one request, however many locks a
client has, and one keep-alive renews them all. A ticket that will not be renewed (a fixed lease, or one with a cap) has
a lease of its own, or else it would live on with the others.

etcd counts whole seconds and has a least length of its own, so the length is what etcd grants and not what was asked
for. The lease is granted under an id that we chose: a grant whose reply was lost is not granted twice.

A session counts from before a keep-alive was sent, if a transaction after it shows that it came from the true leader
(``confirming.py``); mostly that is one which is sent anyway. Nobody keeps an idle session alive: it ends by itself, and
the next ticket begins another. `revoke_all` ends all of them, and so deletes what still stands there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.etcd.confirming import KeepAlive, keep_alive, through_log
from leasehold.stores.etcd.connection.errors import Meaning, Refused
from leasehold.stores.etcd.connection.gateway import TOO_SLOW, Gateway
from leasehold.stores.etcd.keys import Json, Keys

FRESH = 1 / 3
"""A claim is granted under a session as it stands if less than this part of it has passed, else it is renewed first."""

KEPT = 8
"""Leases of tickets with a lease of their own that are kept for the next such ticket."""

ATTEMPTS = 3
"""How often a claim's lease is renewed until that is confirmed: while etcd changes its leader, once may not do."""

REVOKE_WITHIN = 1.0
"""Seconds in which a closing client revokes its leases."""


@dataclass(eq=False)
class Session:
    """A lease of etcd.

    Attributes:
        id: its id.
        asked: seconds that were asked for.
        length: seconds, as etcd granted them.
        confirmed: boot-time clock before the last grant or keep-alive was sent that counts.
        shared: whether it is for all tickets of its length.
        over: whether etcd said that it has ended.

    """

    id: int
    asked: int
    length: float
    confirmed: float
    shared: bool = True
    over: bool = field(default=False)

    @property
    def until(self) -> float:
        """Boot-time clock at which it may have ended, if nobody renewed it since."""
        return self.confirmed + self.length

    @property
    def result(self) -> KeepAlive:
        """What is known without a new keep-alive."""
        return KeepAlive(self.confirmed, self.length)

    def confirm(self, kept: KeepAlive, answer: Json) -> bool:
        """Believe a keep-alive if the answer to a later transaction confirms it; return whether it is believed."""
        if kept.is_confirmed_by(answer):
            self.length = kept.length
            self.confirmed = max(self.confirmed, kept.sent)
        return self.believes(kept)

    def believes(self, kept: KeepAlive) -> bool:
        """Return whether it counts from this keep-alive, or from a later one."""
        return self.confirmed >= kept.sent


class Sessions:
    """All of a client. Used from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child: they are the parent's."""
        self._turns = KeyedLock(self._runtime, TOO_SLOW)
        self._shared: dict[int, Session] = {}
        self._spare: list[Session] = []
        self._tried: dict[int, tuple[int, float]] = {}  # by length: a lease that may have been granted, and since when
        self._all: dict[Session, None] = {}

    async def shared(self, length: float, until: float) -> tuple[Session, KeepAlive]:
        """Return the session for tickets of this length, and a late keep-alive, which may have to be confirmed."""
        ttl = whole(length)
        while True:
            session = self._shared.get(ttl)
            if session is None or session.over:
                async with self._turns.turn(f"{ttl}", until):
                    session = self._shared.get(ttl)
                    if session is None or session.over:
                        session = self._shared[ttl] = await self._granted(ttl, until, shared=True)
            if (kept := await self.fresh(session, until)) is not None:
                return session, kept

    async def own(self, length: float, until: float) -> tuple[Session, KeepAlive]:
        """Return a lease for one ticket alone, renewed just now, which may have to be confirmed."""
        ttl = whole(length)
        while (session := self._taken(ttl)) is not None:
            if (kept := await self.renew(session, until)) is not None:
                return session, kept
        session = await self._granted(ttl, until, shared=False)
        return session, session.result

    def give_back(self, session: Session) -> None:
        """Take back the lease of a ticket that has surely left."""
        if session.shared or session.over:
            return
        if len(self._spare) < KEPT and self._runtime.now() < session.until:
            self._spare.append(session)  # nobody renews it: it ends by itself, if nobody takes it before

    async def fresh(self, session: Session, until: float) -> KeepAlive | None:
        """Renew a session if that is due; return None if it has ended."""
        if self._runtime.now() - session.confirmed < FRESH * session.length:
            return None if session.over else session.result
        return await self.renew(session, until)

    async def renew(self, session: Session, until: float, *, urgent: bool = False) -> KeepAlive | None:
        """Ask for a session's full length; return what is to be confirmed, None if the session has ended.

        Raises:
            StoreUnavailable: no answer.

        """
        if session.over:
            return None
        kept = await keep_alive(self._runtime, self._gateway, session.id, until, urgent=urgent)
        if not kept.length:
            self._ended(session)
            return None
        return kept

    async def settle(self, session: Session, kept: KeepAlive, until: float) -> bool:
        """See that a keep-alive counts that a claim needs, with another one if need be; return whether the lease lives.

        Raises:
            StoreUnavailable: it does not count.

        """
        for _ in range(ATTEMPTS):
            if session.believes(kept):
                return True
            again = await self.renew(session, until)
            if again is None:
                return False
            kept, left = again, max(until - self._runtime.now(), 0.001)
            session.confirm(kept, await self._gateway.call("/v3/kv/txn", through_log(self._keys), within=left))
        if session.believes(kept):
            return True
        raise StoreUnavailable("etcd changes its leader again and again, so no lease can be renewed", unknown=True)

    def ended(self, session: Session) -> None:
        """Take note that etcd does not know a session any more."""
        self._ended(session)

    async def revoke_all(self) -> None:
        """End all of them, and with them all keys that still stand under them."""
        until = self._runtime.now() + REVOKE_WITHIN
        now = self._runtime.now()
        living = [session for session in self._all if not session.over and now < session.until + session.length]
        await self._runtime.gather(*(self._revoke(session, until) for session in living))
        self.forget()

    def _taken(self, ttl: int) -> Session | None:
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
        new = int.from_bytes(self._runtime.random_bytes(8)) >> 1 or 1, sent
        lease, first = self._tried.get(ttl, new) if shared else new
        session = Session(lease, ttl, float(ttl), sent, shared)
        self._all[session] = None  # before it is asked for: `close` revokes it even if no answer came
        body = {"TTL": str(ttl), "ID": str(lease)}
        try:
            said = await self._gateway.call("/v3/lease/grant", body, within=max(until - sent, 0.001))
        except StoreUnavailable as error:
            if error.unknown and shared:
                self._tried[ttl] = lease, first  # the next attempt finds it, if it was granted
            raise
        except Refused as refused:
            if refused.meaning is not Meaning.EXISTS:
                raise
            self._tried.pop(ttl, None)
            session.confirmed = first  # it was granted after that; whoever needs more renews it
            return session
        self._tried.pop(ttl, None)
        session.length = float(said["TTL"])
        return session

    async def _revoke(self, session: Session, until: float) -> None:
        try:
            left = max(until - self._runtime.now(), 0.01)
            await self._gateway.call("/v3/lease/revoke", {"ID": str(session.id)}, within=left)
        except Refused as refused:
            if refused.meaning is not Meaning.LEASE:
                return
        except StoreUnavailable:
            return  # it ends by itself
        self._ended(session)

    def _ended(self, session: Session) -> None:
        session.over = True
        self._all.pop(session, None)
        for ttl, other in list(self._shared.items()):
            if other is session:
                del self._shared[ttl]


def whole(length: float) -> int:
    """Return the seconds to ask for: etcd counts whole ones."""
    return max(1, math.ceil(length))
