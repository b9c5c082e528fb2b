"""Acquiring in ``mode=session``: a ticket enters the local queue, is shown to people, and takes the lock in turn.

This part is the same for all servers. `Sessions` knows how a session tries and waits. The store knows how a session
with the lock takes its token, and how waiters are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from leasehold._model import Granted, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.wait_queue import WaitQueues
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.session.waiter_table import WaiterTable, Write

S = TypeVar("S")

Grant = Callable[[S], Awaitable[Granted]]
"""Takes the token of the lock that a session has; a failure closes the session, which frees the lock."""

HasLock = Callable[[str, S, float], Awaitable[bool]]
"""Asks on another connection whether a waiting session has the lock: its own answer may be on the way."""

RenewEntries = Callable[[Sequence[str], float], Awaitable[None]]
"""Renews the rows of these waiting tickets, before a deadline on the boot-time clock."""


class Claims(Generic[S]):
    """The attempts of one client to acquire. Used by many threads or tasks at once."""

    def __init__(
        self,
        runtime: Runtime,
        wait_queues: WaitQueues[S],
        store_waiters: Write[S],
        renew_entries: RenewEntries,
        has_lock: HasLock[S] | None = None,
    ) -> None:
        self._runtime = runtime
        self._wait_queues = wait_queues
        self._waiter_table = WaiterTable(runtime, store_waiters)
        self._renew_entries = renew_entries
        self._has_lock = has_lock

    async def try_acquire(self, name: str, ticket: Ticket, until: float, grant: Grant[S]) -> Granted | Wait:
        """Enter the queue, and take the lock if the turn has come.

        Raises:
            StoreUnavailable: the server does not answer. A ticket of which it cannot know has left the queue.

        """
        waiter = self._wait_queues.enter(name, ticket)
        try:
            session = await self._session(waiter, until)
            answer = await (self._queued(waiter, until) if session is None else self._grant(waiter, session, grant))
        except StoreUnavailable as error:
            if not waiter.answered and not error.unknown:
                await self._wait_queues.leave(waiter, until)  # its client will not release it
            raise
        waiter.answered = True
        return answer

    async def renewed(self, tickets: Sequence[Ticket], until: float) -> None:
        """Record that the clients of these tickets are alive, and renew the rows of their waiters."""
        waiters = self._wait_queues.renewed([ticket.id for ticket in tickets])
        if not waiters:
            return
        try:
            await self._renew_entries([waiter.ticket.id for waiter in waiters], until)
        except StoreUnavailable:  # the rows decide nothing
            pass

    async def _session(self, waiter: Waiter[S], until: float) -> S | None:
        """Return the session with the lock, if the turn has come."""
        session = await self._wait_queues.session_for(waiter, until)
        if session is not None or self._has_lock is None or not waiter.answered:
            return session
        parked = self._wait_queues.parked(waiter)
        if parked is None or not await self._has_lock(waiter.name, parked, until):
            return None
        return await self._wait_queues.wait_for_session(waiter, until)

    async def _grant(self, waiter: Waiter[S], session: S, grant: Grant[S]) -> Granted:
        """Let the first waiter take the token of the lock that its session has."""
        try:
            granted = await grant(session)
        except BaseException:
            self._wait_queues.session_lost(waiter)
            raise
        self._wait_queues.granted(waiter)
        return granted

    async def _queued(self, waiter: Waiter[S], until: float) -> Wait:
        """Store the waiter for people to see, again each half lease: this also detects a silent server."""
        now, lease = self._runtime.now(), waiter.ticket.terms.lease
        if waiter.stored_at is None or waiter.stored_at + lease / 2 < now:
            waiter.stored_at = now  # before it is stored: it may be, whatever the answer
            waiter.held_by = await self._waiter_table.show(waiter, until)
        return Wait(None, lease, waiter.held_by)
