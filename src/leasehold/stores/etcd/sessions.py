"""The etcd leases of one client: one for each length in use, kept alive by the tickets that live under it.

Theory of operation
-------------------
Tickets of the same length share a lease of etcd, the *session*: so a claim is one request, however many locks a
client has, and one keep-alive renews them all. A ticket that will not be renewed (a fixed lease, or one with a cap) has
a lease of its own, or else it would live on with the others.

etcd counts whole seconds and has a least length of its own, so the length is what etcd grants and not what was asked
for. The lease is granted under an id that we chose: a grant whose reply was lost is not granted twice.

A session counts from before the keep-alive was sent that etcd confirmed. Nobody keeps an idle session alive: it ends
by itself, and the next ticket begins another. `revoke_all` ends all of them, and so deletes what still stands there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leasehold.errors import StoreUnavailable
from leasehold.runtimes.base import Runtime
from leasehold.wires.etcd.faults import Meaning, Refused
from leasehold.wires.etcd.gateway import Gateway
from leasehold.wires.etcd.turns import Turns

FRESH = 1 / 3
"""A claim is granted under a session as it stands if less than this part of it has passed, else it is renewed first."""

KEPT = 8
"""Leases of tickets with a lease of their own that are kept for the next such ticket."""

REVOKE_WITHIN = 1.0
"""Seconds in which a closing client revokes its leases."""


@dataclass(eq=False)
class Session:
    """A lease of etcd.

    Attributes:
        id: its id.
        asked: seconds that were asked for.
        length: seconds, as etcd granted them.
        confirmed: boot-time clock before the last request was sent that etcd confirmed.
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


class Sessions:
    """All of a client. Used from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, gateway: Gateway) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child: they are the parent's."""
        self._turns = Turns(self._runtime)
        self._shared: dict[int, Session] = {}
        self._spare: list[Session] = []
        self._tried: dict[int, int] = {}
        self._all: dict[Session, None] = {}

    async def shared(self, length: float, until: float) -> Session:
        """Return the session for tickets of this length, renewed lately."""
        ttl = whole(length)
        while True:
            session = self._shared.get(ttl)
            if session is None or session.over:
                async with self._turns.turn(f"{ttl}", until):
                    session = self._shared.get(ttl)
                    if session is None or session.over:
                        session = self._shared[ttl] = await self._granted(ttl, until, shared=True)
            if await self.fresh(session, until):
                return session

    async def own(self, length: float, until: float) -> Session:
        """Return a lease for one ticket alone, renewed just now."""
        ttl = whole(length)
        while (session := self._taken(ttl)) is not None:
            if await self.renew(session, until):
                return session
        return await self._granted(ttl, until, shared=False)

    def give_back(self, session: Session) -> None:
        """Take back the lease of a ticket that has surely left."""
        if session.shared or session.over:
            return
        if len(self._spare) < KEPT and self._runtime.now() < session.until:
            self._spare.append(session)  # nobody renews it: it ends by itself, if nobody takes it before

    async def fresh(self, session: Session, until: float) -> bool:
        """Renew a session if that is due; return whether it lives."""
        if self._runtime.now() - session.confirmed < FRESH * session.length:
            return not session.over
        return await self.renew(session, until)

    async def renew(self, session: Session, until: float, *, urgent: bool = False) -> bool:
        """Set a session to its full length; return whether it lives.

        Raises:
            StoreUnavailable: no answer.

        """
        if session.over:
            return False
        sent = self._runtime.now()
        body = {"ID": str(session.id)}
        said = await self._gateway.call("/v3/lease/keepalive", body, within=max(until - sent, 0.001), urgent=urgent)
        ttl = int(said.get("TTL", 0))
        if ttl <= 0:
            self._ended(session)
            return False
        session.length = float(ttl)
        session.confirmed = max(session.confirmed, sent)
        return True

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
        lease = self._tried.get(ttl) if shared else None
        lease = lease or int.from_bytes(self._runtime.random_bytes(8)) >> 1 or 1
        sent = self._runtime.now()
        session = Session(lease, ttl, float(ttl), sent, shared)
        self._all[session] = None  # before it is asked for: `close` revokes it even if no answer came
        body = {"TTL": str(ttl), "ID": str(lease)}
        try:
            said = await self._gateway.call("/v3/lease/grant", body, within=max(until - sent, 0.001))
        except StoreUnavailable as error:
            if error.unknown and shared:
                self._tried[ttl] = lease  # the next attempt finds it, if it was granted
            raise
        except Refused as refused:
            if refused.meaning is not Meaning.EXISTS:
                raise
            self._tried.pop(ttl, None)
            if not await self.renew(session, until):
                raise StoreUnavailable("the lease that etcd granted has ended before its reply came") from None
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
