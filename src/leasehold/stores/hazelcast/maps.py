"""Locks of a Hazelcast ``IMap``, without the CP subsystem: only where the URL says ``without_cp=true``.

Theory of operation
-------------------
Each key of a map can be locked, for a time. Its owner is a client of the driver and a thread's number, of which each
ticket has one of its own. The member that owns the key's partition decides, and one other member has a copy. So there
is no majority: while the cluster is split, each part gives the lock to a holder of its own.

* A waiter waits on the servers, for a third of its lease at a time: the lock's time begins when it is granted, and a
  grant is counted from when the request was sent. The servers cannot end a wait early. So a wait that was given up may
  still take the lock, and then gives it back.
* To renew, the holder takes the lock once more, for its full time, and gives that back.
* The servers end leases once a second, and one that was renewed together with an older one: up to a second early. So
  they are asked for a second more.
* The servers free the locks of a client that is gone. So a client that has lost all connections counts its holds as
  lost.
* There is no fence. Tokens are readings of the client's clock, for people.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leasehold._model import (
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    LeaseTerms,
    LockMode,
    Owner,
    QueueEntry,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.store_api import LossCallback
from leasehold.stores._common.answers import answered
from leasehold.stores.hazelcast.capabilities import WITHOUT_CP
from leasehold.stores.hazelcast.connection import map_requests as requests
from leasehold.stores.hazelcast.connection.driver import Call, Driver
from leasehold.stores.hazelcast.connection.errors import NotOwner
from leasehold.stores.hazelcast.connection.map_requests import Key
from leasehold.stores.hazelcast.connection.requests import Message
from leasehold.stores.hazelcast.connection.settings import Settings
from leasehold.stores.hazelcast.doctor import diagnose_maps

EARLY = 1.0
"""Seconds by which the servers may end a lease that was renewed too early."""

LONGEST_WAIT = 5.0
"""Seconds for which one request waits on the servers, at most."""

OVERTAKE = 0.5
"""Seconds for which a release waits for the answer to a claim that was sent before it."""

PATIENCE = 10.0
"""Seconds that an operation without a limit of its own may take."""

MOST_TAKEN = 16
"""Times that a release gives a lock back, at most: lost answers of renewals leave it taken more than once."""

OTHER = "other"
"""The ticket that is shown for a lock of another client."""


@dataclass(eq=False, slots=True)
class MapTicket:
    """One ticket: its key, its owner's number, and the claims that may still take the key."""

    ticket: Ticket
    name: str
    client: Any
    key: Key
    thread: int
    reference: int
    waiting: Call | None = None
    sent: float = 0.0
    token: int = 0
    until: float = 0.0
    over: bool = False


class MapLockStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = WITHOUT_CP

    def __init__(self, runtime: Runtime, settings: Settings, before: str) -> None:
        """Make a store; ``before`` precedes each name in the map."""
        self._runtime = runtime
        self._settings = settings
        self._before = before
        self._on_loss: LossCallback | None = None
        self._driver = Driver(runtime, settings, self._disconnected)
        self._states: dict[str, MapTicket] = {}

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until, lease = self._runtime.now() + within, ticket.terms.lease
        state = await self._state_for(name, ticket, until)
        if state.token:
            if (await self.renew([(name, ticket)], within=within))[0] is RenewalResult.HELD:
                return Granted(state.token, state.until - lease, lease)
            self._states.pop(ticket.id, None)
            raise StoreUnavailable(f"Hazelcast did not confirm the hold of {name!r}", unknown=True)
        call = state.waiting
        if call is not None and call.done():
            state.waiting = None
            if call.result():
                return self._granted(state, state.sent)
            call = None
        elif call is None:
            since = self._runtime.now()
            if await self._ask(state, self._claim(state, 0.0, state.reference), until):
                return self._granted(state, since)
        if not join:
            self._states.pop(ticket.id, None)
            return Wait(None, lease)
        slice_ = min(lease / 3, LONGEST_WAIT)
        if call is None:
            state.sent = self._runtime.now()
            claim = self._claim(state, slice_, state.reference)
            state.waiting = self._driver.post(state.client, *claim, state.key.partition)
        return Wait(None, slice_ + 1.0)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until the servers answer the request that waits."""
        state = self._states.get(ticket.id)
        call = None if state is None else state.waiting
        if call is not None:
            await call.signal.wait(timeout)
        return None

    def _granted(self, state: MapTicket, since: float) -> Granted:
        lease = state.ticket.terms.lease
        state.token, state.until = state.token or self._runtime.wall_us(), since + lease
        return Granted(state.token, since, lease)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until = self._runtime.now() + within
        return answered([await self._renew(self._states.get(ticket.id), until) for _, ticket in tickets])

    async def _renew(self, state: MapTicket | None, until: float) -> RenewalResult | BaseException:
        if state is None or state.over:
            return RenewalResult.GONE
        if not state.token:
            return RenewalResult.QUEUED
        since, lease = self._runtime.now(), state.ticket.terms.lease
        try:
            if not await self._ask(state, self._claim(state, 0.0, _number()), until):
                return RenewalResult.GONE
            await self._ask(state, requests.unlock(state.key, state.thread, _number()), until)
        except NotOwner:
            return RenewalResult.GONE
        except StoreUnavailable as error:
            return error
        state.until = since + lease
        return RenewalResult.HELD

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        until = self._runtime.now() + within
        state = self._states.get(ticket.id)
        if state is None:
            return reason is ReleaseReason.BREAK and await self._release_other(name, ticket.id, until)
        state.over = True
        call, waited = state.waiting, state.waiting is not None
        if call is not None and not await call.signal.wait(min(OVERTAKE, within / 2)):
            call.when_done(lambda: self._give_back(state))
        found = False
        for _ in range(MOST_TAKEN):
            try:
                await self._ask(state, requests.unlock(state.key, state.thread, _number()), until)
            except NotOwner:
                break
            found = True
        self._states.pop(ticket.id, None)
        return found or waited

    def _give_back(self, state: MapTicket) -> None:
        """Give back, from a thread of the driver, what a wait that was given up has taken."""
        call = state.waiting
        if call is not None and call.succeeded() and call.result():
            try:
                self._driver.post(
                    state.client, *requests.unlock(state.key, state.thread, _number()), state.key.partition
                )
            except StoreUnavailable:
                pass  # it ends with its lease

    async def _release_other(self, name: str, ticket: str, until: float) -> bool:
        client = await self._driver.connected(until)
        key = requests.key_of(client, self._settings.map, self._before + name)
        locked = bool(
            await self._driver.answer(self._driver.post(client, *requests.is_locked(key), key.partition), until)
        )
        if locked and ticket == OTHER:
            forced = self._driver.post(client, *requests.force_unlock(key, _number()), key.partition)
            await self._driver.answer(forced, until)
        return locked and ticket == OTHER

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        """Show the locks of this client; of another one only whether somebody has it, and only by its exact name."""
        now = self._runtime.now()
        until = now + PATIENCE
        views = [
            View(state.name, Kind.MUTEX, 0, (QueueEntry(state.ticket, 0, state.until - now, state.token),))
            for state in list(self._states.values())
            if state.token and (state.name == prefix if exact else state.name.startswith(prefix))
        ]
        if views or not exact:
            return views
        client = await self._driver.connected(until)
        key = requests.key_of(client, self._settings.map, self._before + prefix)
        if not await self._driver.answer(self._driver.post(client, *requests.is_locked(key), key.partition), until):
            return []
        terms = LeaseTerms(LockMode(), Owner("another client", 0, ""), lease=0.0)
        return [View(prefix, Kind.MUTEX, 0, (QueueEntry(Ticket(OTHER, terms), 0, float("inf")),))]

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; use another store for them")

    async def diagnose(self) -> list[Finding]:
        """Say what these locks are worth."""
        return await diagnose_maps(self._driver, self._settings.map, self._runtime.now() + PATIENCE)

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` with all holds when no member can be reached any more: the servers may free them."""
        self._on_loss = callback

    def _disconnected(self) -> None:
        if self._on_loss is not None:
            self._on_loss(RenewalResult.GONE, None)

    async def _state_for(self, name: str, ticket: Ticket, until: float) -> MapTicket:
        client = await self._driver.connected(until)
        state = self._states.get(ticket.id)
        if state is None or state.client is not client:
            key = requests.key_of(client, self._settings.map, self._before + name)
            state = self._states[ticket.id] = MapTicket(ticket, name, client, key, _number(), _number())
        return state

    def _claim(self, state: MapTicket, wait: float, reference: int) -> Message:
        return requests.try_lock(state.key, state.thread, state.ticket.terms.lease + EARLY, wait, reference)

    async def _ask(self, state: MapTicket, message: Message, until: float) -> Any:
        return await self._driver.answer(self._driver.post(state.client, *message, state.key.partition), until)

    async def close(self) -> None:
        await self._driver.close()

    def after_fork(self) -> None:
        """Forget, in a forked child, the connections and the tickets: they are the parent's."""
        self._driver.after_fork()
        self._states = {}

    def __repr__(self) -> str:
        return f"<MapLockStore {self._settings.where} map={self._settings.map!r}>"


def _number() -> int:
    """Return a random positive number of 63 bits."""
    return (uuid.uuid4().int >> 65) or 1
