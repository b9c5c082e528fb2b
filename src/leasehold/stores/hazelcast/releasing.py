"""Releases a ticket, whatever its claims take meanwhile.

A member handles requests at the same time, so a release may overtake a claim that was sent before it. The claim would
then take the lock for nobody, or wait for it. So a release waits a moment for the answers of such claims. It is sent
again if one of them took the lock, or has no answer: a request that waits is answered when a later release ends it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.hazelcast import inspecting
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Driver
from leasehold.stores.hazelcast.connection.errors import NotOwner, SessionEnded
from leasehold.stores.hazelcast.sessions import Sessions
from leasehold.stores.hazelcast.tickets import TicketState, took_lock

OVERTAKE = (0.02, 0.1, 0.4)
"""Seconds for which a release waits for the answers to claims that were sent before it, before it is sent again."""

LATE_WITHIN = 5.0
"""Seconds that a release in the background may take."""


class Forget(Protocol):
    """Forgets a ticket; its owner's number is used again if ``reuse``."""

    def __call__(self, state: TicketState, *, reuse: bool) -> None: ...


class Releaser:
    """Releases the tickets of one client, and by force those of others."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        sessions: Sessions,
        forget: Forget,
        again: Callable[[TicketState], None],
    ) -> None:
        """Make one; ``again`` repeats the release of a ticket later."""
        self._runtime = runtime
        self._driver = driver
        self._sessions = sessions
        self._forget = forget
        self._again = again

    async def leave(self, state: TicketState, until: float) -> bool:
        """Release a ticket of this client, and what its claims take meanwhile; return whether it held."""
        pending = [call for call in state.calls if not call.done()]
        found = await self._unlock(state, state.leave_uid, until)
        for pause in OVERTAKE:
            ends = min(self._runtime.now() + pause, until)
            for call in pending:
                await call.signal.wait(max(0.0, ends - self._runtime.now()))
            if all(call.done() and not took_lock(call) for call in pending):
                break
            pending = [call for call in pending if not call.done()]  # one that waits is only ended by a later release
            state.leave_uid = uuid.uuid4()
            found = await self._unlock(state, state.leave_uid, until) or found
        state.settle()
        clear = state.session.ended or not (state.calls or state.unsure)
        self._forget(state, reuse=clear)
        if not clear:
            self._again(state)
        return found

    async def leave_late(self, state: TicketState, *, known: bool) -> None:
        """Release a ticket in the background: it was not renewed, or was released before its claim had an answer."""
        state.over = True
        until = self._runtime.now() + LATE_WITHIN
        if known:
            await self.leave(state, until)
        else:
            await self._unlock(state, uuid.uuid4(), until)

    async def _unlock(self, state: TicketState, uid: uuid.UUID, until: float) -> bool:
        try:
            while await self._driver.ask(*requests.unlock(*state.owner, uid), until):
                uid = uuid.uuid4()  # two claims took it
        except NotOwner:
            return False
        except SessionEnded:
            self._sessions.end(state.session)
            return False
        except StoreUnavailable as error:
            state.unsure = state.unsure or error.unknown  # it may arrive when its owner's number is used again
            raise
        return True

    async def release_other(self, lock: str, ticket: str, until: float) -> bool:
        """Release a lock of another client: that of the owner whom `inspect` named."""
        owner = inspecting.owner_in(ticket)
        group = await self._sessions.group(until)
        if owner is None:  # of nobody
            await self._driver.ask(*requests.ownership(group, lock), until)
            return False
        try:
            while await self._driver.ask(*requests.unlock(group, lock, *owner, uuid.uuid4()), until):
                pass
        except (NotOwner, SessionEnded):
            return False
        return True
