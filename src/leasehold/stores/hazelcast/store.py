"""Locks in Hazelcast's CP subsystem: each is a ``FencedLock``, shared with Java and others, its fence our token.

Theory of operation
-------------------
A ``FencedLock`` belongs to an owner: a CP session and a thread's number. A client has one session, and each ticket a
number of its own, so that its threads and tasks exclude each other. All locks of a session are free when it ends.

1. A claim tries the lock. If it is held, a second request waits for it on the servers; its answer is the grant.
   So a release wakes the next waiter by a message, and nothing polls. The servers hand over in order of arrival, but
   Hazelcast does not promise that.
2. Each request has an id: it is repeated with it after a lost answer, and has the same result.
3. A release also ends a wait. A claim that has no answer yet may arrive after the release of its ticket. So a release
   waits a moment for it, and is repeated if there was none.
4. Once a release has begun, its ticket sends no claim and takes no grant: all three steps are made under one mutex.
   A new claim of the same ticket waits until the ticket is gone.

The lease of a ticket is kept by the client: the servers know sessions only, which the client keeps alive with
heartbeats. A ticket that is not renewed is released by the client. A client that dies or stalls blocks others until its
session ends. A hold is valid for a part of the session's time to live at most, counted from before the last confirmed
heartbeat was sent. So its holder is notified before the servers can grant the lock to another.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress

from leasehold._model import Cell, Change, Finding, Granted, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.store_api import RESPONSE_TIMEOUT, LossCallback
from leasehold.stores._common.answers import answered
from leasehold.stores._common.drivers import Answer
from leasehold.stores.hazelcast import inspecting
from leasehold.stores.hazelcast.capabilities import CAPABILITIES
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Call, Driver
from leasehold.stores.hazelcast.connection.errors import SessionEnded, WaitCancelled
from leasehold.stores.hazelcast.connection.settings import Settings
from leasehold.stores.hazelcast.releasing import Releaser
from leasehold.stores.hazelcast.sessions import Session, Sessions
from leasehold.stores.hazelcast.tickets import TicketState
from leasehold.stores.hazelcast.upkeep import Upkeep

ASK_AGAIN = 60.0
"""Seconds after which a waiter retries without an event; a backstop."""

PATIENCE = 10.0
"""Seconds that an operation without a limit of its own may take."""


class FencedLockStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = CAPABILITIES

    def __init__(self, runtime: Runtime, settings: Settings, name_prefix: str) -> None:
        """Make a store; ``name_prefix`` precedes each name in Hazelcast."""
        self._runtime = runtime
        self._settings = settings
        self._name_prefix = name_prefix
        self._on_loss: LossCallback | None = None
        self._driver = Driver(runtime, settings, self._disconnected)
        self._start()

    def _start(self) -> None:
        self._mutex = self._runtime.mutex()
        self._states: dict[str, TicketState] = {}
        self._sessions = Sessions(self._runtime, self._driver, self._settings.group, self._mutex, self._session_ended)
        self._releaser = Releaser(self._runtime, self._driver, self._sessions, self._forget)
        self._upkeep = Upkeep(self._runtime, self._states, self._sessions, self._releaser)

    # --- acquire -------------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until = self._runtime.now() + within
        while True:
            state = await self._state_for(name, ticket, until)
            try:
                answer = None if state.over else await self._step(state, join=join, until=until)
            except SessionEnded:
                answer = None
                self._sessions.end(state.session)  # the next iteration begins a new session
                if self._runtime.now() >= until:
                    raise StoreUnavailable(f"Hazelcast ended the CP session while {name!r} was acquired") from None
            if answer is not None:
                return answer
            if state.over:
                return Wait(None, ASK_AGAIN)  # it is woken when its release is done

    async def _step(self, state: TicketState, *, join: bool, until: float) -> Granted | Wait | None:
        """Make one step; None if another is needed."""
        if state.token is not None:
            return await self._confirm(state, until)
        if (waiting := state.waiting) is not None:  # a renewal may set it to None at any moment
            return self._read_wait(state) if waiting.done() else await self._check_owner(state, waiting, until)
        if state.wait_uid is None:
            since = self._runtime.now()
            self._extend(state, since)
            state.try_uid = state.try_uid or uuid.uuid4()
            call = await self._send_claim(state, requests.try_lock(*state.owner, state.try_uid), until)
            if call is None:
                return None
            try:
                fence = int(await self._driver.answer(call, until))
            finally:
                state.settle()
            state.session.alive_at(since)
            if fence:
                return self._granted(state, fence, since)
            state.try_uid = None
            self._sessions.failed(state.session)
        if not join:
            self._forget(state)
            return self._wait_for(state)
        self._extend(state, self._runtime.now())
        state.wait_uid = state.wait_uid or uuid.uuid4()
        call = await self._send_claim(state, requests.lock(*state.owner, state.wait_uid), until)
        if call is None:
            return None
        state.wait_for(call, None)
        return self._wait_for(state)

    def _read_wait(self, state: TicketState) -> Granted | Wait | None:
        """Return the result of the request that waits, if there is one by now."""
        with self._mutex:
            call = state.waiting
            if call is None or not call.done():
                return self._wait_for(state)
            state.waiting = None
        state.settle()
        try:
            fence = call.result()
        except WaitCancelled:
            state.wait_uid = None
            return None
        return self._fresh_grant(state, fence)

    async def _check_owner(self, state: TicketState, waiting: Call, until: float) -> Granted | Wait | None:
        """Answer a repeated claim of a waiter: the message with its grant may be on its way, or lost."""
        call = await self._driver.send(*requests.ownership(*state.owner[:2]), until)
        if isinstance(said := await self._read_owner(state, call, waiting, self._runtime.now(), until), BaseException):
            raise said
        return self._wait_for(state) if state.token is None else self._fresh_grant(state, state.token)

    def _wait_for(self, state: TicketState) -> Wait:
        """Return a `Wait`. It names the holder only if that is of this client: the servers do not name others."""
        mine = (one for one in list(self._states.values()) if one.lock == state.lock and one.token)
        return Wait(None, ASK_AGAIN, next((one.ticket.terms.owner for one in mine), None))

    def _fresh_grant(self, state: TicketState, fence: int) -> Granted | None:
        """Return the grant of a holder, if its session certainly lives for at least half of its length from now."""
        state.token = fence
        session, now = state.session, self._runtime.now()
        length = min(self._length(state), session.since + session.valid - now)
        if length < self._length(state) / 2:
            return None
        return self._granted(state, fence, now, length)

    async def _confirm(self, state: TicketState, until: float) -> Granted | None:
        """Answer a repeated claim of a holder: the same grant, from now on."""
        since = self._runtime.now()
        result = (await self.renew([(state.name, state.ticket)], within=until - since))[0]
        if result is RenewalResult.HELD and state.token is not None:
            return self._granted(state, state.token, since)
        if result is RenewalResult.UNKNOWN:
            raise StoreUnavailable(f"Hazelcast did not confirm the hold of {state.name!r}", unknown=True)
        state.token = state.waiting = state.wait_uid = None
        return None

    def _granted(self, state: TicketState, fence: int, since: float, length: float | None = None) -> Granted | None:
        """Return the grant; None if the ticket ends."""
        lease = self._length(state) if length is None else length
        if not state.grant(fence, since + lease):
            return None
        self._upkeep.watch(min(state.until, state.session.beat_at))
        return Granted(fence, since, lease)

    def _length(self, state: TicketState) -> float:
        return min(state.ticket.terms.lease, state.session.valid)

    def _extend(self, state: TicketState, since: float) -> bool:
        goes_on = state.extend(since + (self._length(state) if state.token else state.ticket.terms.lease))
        self._upkeep.watch(min(state.until, state.session.beat_at))
        return goes_on

    async def _send_claim(self, state: TicketState, message: requests.Message, until: float) -> Call | None:
        """Send a claim; None if the ticket or its session has ended meanwhile."""
        client = await self._driver.connected(until)
        return state.claims(lambda: self._driver.post(client, *message))

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until the servers grant the lock, the session ends, or the ticket is released."""
        state = self._states.get(ticket.id)
        if state is None or not await state.wake.wait(timeout):
            return None
        state.wake.clear()
        if state.over or state.session.ended or (waiting := state.waiting) is None or not waiting.done():
            return None
        try:
            answer = self._read_wait(state)
        except SessionEnded:
            self._sessions.end(state.session)
            return None
        return answer if isinstance(answer, Granted) else None

    # --- renew and release ---------------------------------------------------------------------------------------

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Send a heartbeat for each session, and ask for the owner of each lock: it may have been freed by force."""
        since = self._runtime.now()
        until = since + within
        states = [self._states.get(ticket.id) for _, ticket in tickets]
        sessions = list({state.session: None for state in states if state is not None and not state.session.ended})
        heartbeats = await self._runtime.gather(*(self._beat(one, until) for one in sessions))
        beats = dict(zip(sessions, heartbeats, strict=True))
        waits = [None if state is None else state.waiting for state in states]
        asked = {state.lock: state for state in states if state is not None and beats.get(state.session) is True}
        calls = {
            lock: await self._driver.send(*requests.ownership(one.session.group, lock), until)
            for lock, one in asked.items()
        }
        results: list[RenewalResult | BaseException] = []
        for state, waiting in zip(states, waits, strict=True):
            if state is None or state.over or state.session.ended:
                results.append(RenewalResult.GONE)
            elif (beat := beats.get(state.session)) is not True:
                results.append(beat if isinstance(beat, BaseException) else RenewalResult.UNKNOWN)
            else:
                results.append(await self._read_owner(state, calls[state.lock], waiting, since, until))
        return answered(results)

    async def _beat(self, session: Session, until: float) -> bool:
        try:
            await self._sessions.beat(session, until)
        except SessionEnded:
            return False
        return True

    async def _read_owner(
        self, state: TicketState, call: Call, before: Call | None, since: float, until: float
    ) -> RenewalResult | BaseException:
        """Read the owner from a reply; ``before``: the request that waited for the lock when this one was sent."""
        try:
            found: requests.Ownership = await self._driver.answer(call, until)
        except (Answer, StoreUnavailable) as error:
            return error
        mine = (found.session, found.thread) == (state.session.id, state.thread)
        if state.token is None:
            self._extend(state, since)
            waiting = state.waiting
            if mine or waiting is None or waiting.done():
                if mine:
                    state.token, state.waiting = found.fence, None  # the message with the grant is late, or lost
                state.wake.set()
            elif not found.fence and waiting is before:
                await self._wait_again(state, waiting, until)
            return RenewalResult.QUEUED
        if not mine or found.fence != state.token:
            return RenewalResult.GONE
        return RenewalResult.HELD if self._extend(state, since) else RenewalResult.GONE

    async def _wait_again(self, state: TicketState, waiting: Call, until: float) -> None:
        """Repeat a request that waits while the lock is free: it is stuck at a member without contact to the leader."""
        if (uid := state.wait_uid) is not None:
            with suppress(StoreUnavailable):
                call = await self._send_claim(state, requests.lock(*state.owner, uid), until)
                if call is not None:
                    state.wait_for(call, waiting)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove ``ticket``; the servers grant the lock to the next waiter in the same step."""
        until = self._runtime.now() + within
        state = self._states.get(ticket.id)
        if state is None:
            return reason is ReleaseReason.BREAK and await self._releaser.release_other(
                self._name_prefix + name, ticket.id, until
            )
        waited = state.waiting is not None
        return await self._releaser.leave(state, until) or waited

    # --- reading -------------------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        now = self._runtime.now
        mine = {(state.session.id, state.thread): state for state in list(self._states.values())}
        return await self._sessions.in_group(
            lambda group: inspecting.inspect(
                self._driver, group, self._name_prefix, prefix, mine, exact=exact, now=now, within=within
            ),
            now() + within,
        )

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; use another store for them")

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.hazelcast.doctor import diagnose

        return await diagnose(self._driver, self._sessions, self._runtime.now() + PATIENCE)

    # --- its own life --------------------------------------------------------------------------------------------

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` with the tickets of a session that has ended."""
        self._on_loss = callback

    def _disconnected(self) -> None:
        """Put all holds in doubt: they are renewed as soon as a member can be reached."""
        if self._on_loss is not None:
            self._on_loss(RenewalResult.UNKNOWN, None)

    def _session_ended(self, session: Session) -> None:
        ended = [state for state in list(self._states.values()) if state.session is session]
        if self._on_loss is not None and ended:
            self._on_loss(RenewalResult.GONE, [state.id for state in ended])
        for state in ended:
            state.wake.set()

    async def _state_for(self, name: str, ticket: Ticket, until: float) -> TicketState:
        state = self._states.get(ticket.id)
        if state is not None and (state.over or not state.session.ended):
            return state
        entered = await self._sessions.enter(until)  # its session, and its thread number
        state = TicketState(name, self._name_prefix + name, ticket, *entered, self._runtime.signal(), self._mutex)
        state.until = self._runtime.now() + ticket.terms.lease
        self._states[ticket.id] = state
        return state

    def _forget(self, state: TicketState) -> bool:
        """Forget a ticket; return whether one of its claims may still arrive."""
        with self._mutex:
            if self._states.get(state.id) is state:
                del self._states[state.id]
        return state.forget()

    async def close(self) -> None:
        """Close the sessions: the servers free their locks at once."""
        await self._upkeep.close(1.0)
        await self._sessions.close(self._runtime.now() + 2.0)
        await self._driver.close()

    def after_fork(self) -> None:
        """Forget, in a forked child, the session and the tickets: they are the parent's."""
        self._driver.after_fork()
        self._start()

    def __repr__(self) -> str:
        return f"<FencedLockStore {self._settings.where} group={self._settings.group!r}>"
