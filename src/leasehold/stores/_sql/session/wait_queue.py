"""The local queues of session locks: all waiters of a client for a name share one session in the server's queue.

Theory of operation
-------------------
A lock of ``mode=session`` belongs to a session of the server. A holder needs a session of its own; a waiter does not.
So the waiters of a client for one name form a local queue, in order of arrival:

1. The first waiter takes a session and tries the lock.
2. If the lock is taken, the session is *parked*: a job waits with it in the server's queue.
3. When the server grants the lock, the session goes to the present first waiter.
4. The next waiter tries.

So a client has at most one parked session and one that tries for each name, however many wait. The order between
clients is that of their sessions in the server's queue.

* A waiter that gives up leaves the queue, and the session stays parked for the others. A lock that was granted for a
  waiter that has just given up goes to the next waiter, not back to the server: it is this client's turn.
* A session that breaks while it waits has lost its place in the server's queue. The first waiter gets the error and
  tries again; the local queue keeps its order.
* The last waiter to leave ends the parked session, which would otherwise get a lock that has no waiter.
* A fair ticket has a queue to itself, so that the order of arrival holds between clients, too. That costs a session.
* A waiter that was silent for a lease is removed: its thread or task is gone.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.waiter import ParkResult, Waiter, WaitingSessions, WaitQueue
from leasehold.stores._sql.transport import Permit

S = TypeVar("S")

PARK = "leasehold-wait"  # the name of the job

END_WITHIN = 1.0
"""Seconds that releasing a lock that no waiter wants may take; then its session is closed."""


class WaitQueues(Generic[S]):
    """The queues of one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, sessions: WaitingSessions[S]) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._mutex = runtime.recursive_mutex()
        self._wait_queues: dict[str, WaitQueue[S]] = {}
        self._waiters: dict[str, Waiter[S]] = {}

    def get(self, ticket: str) -> Waiter[S] | None:
        """Return the waiter of a ticket, if it waits."""
        return self._waiters.get(ticket)

    def enter(self, name: str, ticket: Ticket) -> Waiter[S]:
        """Return the waiter of a ticket; a new one is appended to its queue."""
        with self._mutex:
            waiter = self._waiters.get(ticket.id)
            if waiter is None:
                waiter = Waiter[S](name, ticket, self._runtime.signal(), 0.0)
                self._waiters[ticket.id] = waiter
                self._wait_queues.setdefault(waiter.key, WaitQueue(waiter.key, name)).waiters.append(waiter)
            waiter.last_seen = self._runtime.now()
            return waiter

    def has_waiters(self, name: str) -> bool:
        """Return whether the shared queue of a name has waiters that are not silent."""
        with self._mutex:
            wait_queue = self._wait_queues.get(f"name {name}")
            if wait_queue is not None:
                self._remove_silent(wait_queue)
            return wait_queue is not None and len(wait_queue.waiters) > 0

    def parked(self, waiter: Waiter[S]) -> S | None:
        """Return the session that is parked for this waiter; None unless it is the first."""
        wait_queue = self._wait_queues.get(waiter.key)
        return wait_queue.parked if wait_queue is not None and wait_queue.waiters[:1] == [waiter] else None

    async def session_for(self, waiter: Waiter[S], until: float) -> S | None:
        """Return a session with the lock if the waiter's turn has come; if it is the first, try the lock and park.

        Raises:
            StoreUnavailable: there is no session, or the parked one broke. The waiter keeps its place.
        """
        mine: list[Permit] = []
        wait_queue: WaitQueue[S] | None = None
        try:
            wait_queue = self._begin(waiter, mine)
            if wait_queue is not None:
                await self._try_lock(wait_queue, waiter, until)
        finally:
            mine.clear()  # one step of the interpreter, as for a `Semaphore`
            if wait_queue is not None:
                self._attempt_over(wait_queue, waiter)
        with self._mutex:
            return self._taken(waiter)

    async def wait_for_session(self, waiter: Waiter[S], until: float) -> S | None:
        """Return the session that has the lock; its answer is on the way. Raises as `session_for`."""
        while waiter.session is None and waiter.failed is None and (left := until - self._runtime.now()) > 0:
            waiter.signal.clear()
            if waiter.session is None and waiter.failed is None:
                await waiter.signal.wait(left)
        return await self.session_for(waiter, until)

    async def wait(self, ticket: str, timeout: float) -> None:
        """Sleep until a retry may succeed, at most ``timeout`` seconds."""
        waiter = self._waiters.get(ticket)
        if waiter is not None and await waiter.signal.wait(timeout):
            waiter.signal.clear()

    def renewed(self, tickets: list[str]) -> list[Waiter[S]]:
        """Record that the clients of these tickets are alive; return the waiters that have a row."""
        with self._mutex:
            found = [self._waiters[ticket] for ticket in tickets if ticket in self._waiters]
            for waiter in found:
                waiter.last_seen = self._runtime.now()
            return [waiter for waiter in found if waiter.stored_at is not None]

    def granted(self, waiter: Waiter[S]) -> None:
        """Remove a waiter that holds the lock now; the next one may try."""
        with self._mutex:
            waiter.session, waiter.taking = None, False
            self._remove(waiter)

    def session_lost(self, waiter: Waiter[S]) -> None:
        """Record that the session with the lock for this waiter is gone: it must try again."""
        with self._mutex:
            waiter.session, waiter.taking = None, False

    async def leave(self, waiter: Waiter[S], until: float) -> None:
        """Remove a waiter that gives up; its lock goes to the next waiter, or back to the server.

        If another call takes the token just now (a cancellation, or the close of the client, came in between), that
        call keeps the session. Its caller releases what it was granted.
        """
        with self._mutex:
            waiter.left = True
            session: S | None = None
            if not waiter.taking:
                session, waiter.session = waiter.session, None
            wait_queue = self._remove(waiter)
            parked: S | None = None
            if wait_queue is not None and wait_queue.waiters:
                if session is not None:
                    wait_queue.waiters[0].session, session = session, None
                    wait_queue.notify()  # once more: it may have looked before it had the session
            elif wait_queue is not None:
                parked, wait_queue.parked = wait_queue.parked, None
        waiter.signal.set()
        if session is not None:
            await self._sessions.free(session, waiter.name, until, has=True)
        if parked is not None:
            await self._sessions.end(parked, waiter.name, until)

    def close(self) -> None:
        """Close the sessions of all waiters, and wake these."""
        with self._mutex:
            wait_queues, waiters = list(self._wait_queues.values()), list(self._waiters.values())
            self._wait_queues, self._waiters = {}, {}
            sessions = [wait_queue.parked for wait_queue in wait_queues] + [waiter.session for waiter in waiters]
            for wait_queue in wait_queues:
                wait_queue.parked = None
                wait_queue.waiters.clear()
        for session in filter(None, sessions):
            self._sessions.close(session)
        for waiter in waiters:
            waiter.session = None
            waiter.signal.set()

    # --- inside ------------------------------------------------------------------------------------------------

    def _taken(self, waiter: Waiter[S]) -> S | None:
        """Return the session of a waiter to the call that takes its token."""
        waiter.taking = waiter.session is not None
        return waiter.session

    def _begin(self, waiter: Waiter[S], mine: list[Permit]) -> WaitQueue[S] | None:
        """Return the queue whose lock a waiter may try now, for as long as the permit in ``mine`` exists."""
        with self._mutex:
            wait_queue = self._wait_queues.get(waiter.key)
            if waiter.session is not None or wait_queue is None or waiter not in wait_queue.waiters:
                return None
            waiter.last_seen = self._runtime.now()  # this process may have been stopped since it entered
            self._remove_silent(wait_queue)
            failed, waiter.failed = waiter.failed, None
            if failed is not None:
                waiter.stored_at = None  # the session that wrote the row is gone
                raise failed
            if wait_queue.waiters[0] is not waiter:
                return None
            self._close_orphan(wait_queue)
            if wait_queue.parked is not None or wait_queue.trying:
                return None
            mine.append(Permit())
            wait_queue.trier = ref(mine[0])
            return wait_queue

    def _attempt_over(self, wait_queue: WaitQueue[S], waiter: Waiter[S]) -> None:
        with self._mutex:
            if wait_queue.waiters[:1] != [waiter]:
                wait_queue.notify()  # it left meanwhile, when the next one found that it was trying

    async def _try_lock(self, wait_queue: WaitQueue[S], waiter: Waiter[S], until: float) -> None:
        """Give a session with the lock to the first waiter, maybe another by now; park one without the lock."""
        session: S | None = None
        given = False
        try:
            session, has = await self._sessions.try_lock(waiter.name, waiter.ticket, until)
            with self._mutex:
                wanted = bool(wait_queue.waiters)
                if wanted and has:
                    wait_queue.waiters[0].session = session
                elif wanted:
                    wait_queue.parked = session
                given = wanted
                wait_queue.notify()
            if not wanted:
                await self._free(wait_queue, session, has=has)
            elif not has:
                wait_queue.job = ref(self._runtime.spawn_loop(partial(self._park, wait_queue, session), PARK))
        except BaseException:
            # Also reached if no thread can start. Unpark the session, so that the next waiter tries.
            taken_back = session is not None and self._take_back(wait_queue, session)
            if session is not None and (taken_back or not given):
                self._sessions.close(session)
            raise

    def _take_back(self, wait_queue: WaitQueue[S], session: S) -> bool:
        """Return whether a session was still parked; now it is not, and another waiter may try."""
        with self._mutex:
            if wait_queue.parked is not session:
                return False
            wait_queue.parked = None
            wait_queue.notify()
            return True

    async def _park(self, wait_queue: WaitQueue[S], session: S) -> None:
        if await self._runtime.attempt(self._wait_parked(wait_queue, session), PARK, True):  # it was cancelled
            self._unparked(wait_queue, session, ParkResult.CLOSED, None)
            self._sessions.close(session)
            await self._runtime.attempt(self._end(wait_queue, session), PARK, None)  # as in `_wait_parked`

    async def _wait_parked(self, wait_queue: WaitQueue[S], session: S) -> None:
        """Wait with the session in the server's queue, and give it to the first waiter."""
        failed: StoreUnavailable | None = None
        result = ParkResult.CLOSED
        try:
            await self._sessions.wait(session, wait_queue.name, lambda: self._last_deadline(wait_queue))
            result = ParkResult.GRANTED
        except StoreUnavailable as error:
            failed = error
        finally:
            result = self._unparked(wait_queue, session, result, failed)
            if result is ParkResult.CLOSED:
                self._sessions.close(session)
        if result is ParkResult.NOT_WANTED:
            await self._free(wait_queue, session, has=True)
        elif failed is not None:
            await self._end(wait_queue, session)  # the server may not have noticed, and may grant it the lock

    def _unparked(
        self, wait_queue: WaitQueue[S], session: S, result: ParkResult, failed: StoreUnavailable | None
    ) -> ParkResult:
        """Give a session whose wait ended to the first waiter; return how it ended."""
        if self._mutex._is_owned():  # by a frame that the collector interrupted, to close a coroutine of a closed loop
            return ParkResult.CLOSED  # `_begin` notices that its job is gone
        with self._mutex:
            if wait_queue.parked is not session:
                return ParkResult.CLOSED  # the last waiter to leave ended it
            wait_queue.parked = None
            self._remove_silent(wait_queue)
            if not wait_queue.waiters:
                return result if result is ParkResult.CLOSED else ParkResult.NOT_WANTED
            if result is ParkResult.GRANTED:
                wait_queue.waiters[0].session = session
            else:
                wait_queue.waiters[0].failed = failed
            wait_queue.notify()  # after that: `wait_for_session` looks without the mutex, and clears the signal before
            return result

    async def _free(self, wait_queue: WaitQueue[S], session: S, *, has: bool) -> None:
        with suppress(StoreUnavailable):  # it is closed, and the lock free
            await self._sessions.free(session, wait_queue.name, self._runtime.now() + END_WITHIN, has=has)

    async def _end(self, wait_queue: WaitQueue[S], session: S) -> None:
        with suppress(StoreUnavailable):  # the server will notice by itself
            await self._sessions.end(session, wait_queue.name, self._runtime.now() + END_WITHIN)

    def _last_deadline(self, wait_queue: WaitQueue[S]) -> float:
        with self._mutex:
            return max((waiter.deadline for waiter in wait_queue.waiters), default=0.0)

    def _remove_silent(self, wait_queue: WaitQueue[S]) -> None:
        """Remove waiters that were silent for a lease; one that is alive after all enters again."""
        now = self._runtime.now()
        silent = [one for one in wait_queue.waiters if one.deadline < now and not one.taking]
        for waiter in silent:
            session, waiter.session = waiter.session, None
            wait_queue.waiters.remove(waiter)
            self._waiters.pop(waiter.ticket.id, None)
            waiter.signal.set()
            if session is not None and wait_queue.waiters:
                wait_queue.waiters[0].session = session
            elif session is not None:
                self._sessions.close(session)
        if silent:
            wait_queue.notify()
        if not wait_queue.waiters and self._wait_queues.get(wait_queue.key) is wait_queue:
            del self._wait_queues[wait_queue.key]
            self._close_orphan(wait_queue)

    def _close_orphan(self, wait_queue: WaitQueue[S]) -> None:
        if (orphan := wait_queue.orphan) is not None:
            wait_queue.parked = None
            self._sessions.close(orphan)

    def _remove(self, waiter: Waiter[S]) -> WaitQueue[S] | None:
        self._waiters.pop(waiter.ticket.id, None)
        wait_queue = self._wait_queues.get(waiter.key)
        if wait_queue is None or waiter not in wait_queue.waiters:
            return None
        wait_queue.waiters.remove(waiter)
        if not wait_queue.waiters:
            del self._wait_queues[wait_queue.key]
        wait_queue.notify()
        return wait_queue
