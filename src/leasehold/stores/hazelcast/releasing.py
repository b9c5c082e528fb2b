"""Releases a ticket, and what its claims take meanwhile.

A member handles requests at the same time, so a release may overtake a claim that was sent before it. The claim would
then take it for no ticket, or wait for it. So a release waits a moment for the answers to such claims, and is sent
again if one of them took the lock, or has no answer yet: a claim that waits gets its answer from a later release.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.hazelcast import inspecting
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Call, Driver
from leasehold.stores.hazelcast.connection.errors import NotOwner, SessionEnded
from leasehold.stores.hazelcast.sessions import Sessions
from leasehold.stores.hazelcast.tickets import TicketState, took_lock

OVERTAKE = (0.02, 0.1, 0.4)
"""Seconds for which a release waits for the answers to claims that were sent before it, before it is sent again."""


class Releaser:
    """Releases the tickets of one client, and by force those of others."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        sessions: Sessions,
        forget: Callable[[TicketState], bool],
    ) -> None:
        """Make one; ``forget`` returns whether a claim may still arrive, and `again` repeats the release then."""
        self._runtime = runtime
        self._driver = driver
        self._sessions = sessions
        self._forget = forget
        self.again: Callable[[TicketState], None]

    async def leave(self, state: TicketState, until: float) -> bool:
        """Release a ticket of this client, and what its claims take meanwhile; return whether it held.

        Raises:
            StoreUnavailable: no answer, and it is still known; or a refusal that lasts, and it is forgotten.
        """
        pending = state.begin_leave()
        if pending is None:
            return False
        try:
            found = await self._unlock_until_clear(state, pending, until)
        except StoreUnavailable as error:
            if error.lasting:
                state.unsure = True  # it may still have the lock: its session is closed after its last ticket
                self._forget(state)
            raise
        finally:
            state.end_leave()
        if self._forget(state):
            self.again(state)
        return found

    async def _unlock_until_clear(self, state: TicketState, pending: list[Call], until: float) -> bool:
        if state.session.ended:
            return False
        found = await self._unlock(state, state.leave_uid, until)
        for pause in OVERTAKE:
            ends = min(self._runtime.now() + pause, until)
            for call in pending:
                await call.wait(ends - self._runtime.now())
            if all(call.done() and not took_lock(call) for call in pending):
                break
            pending = [call for call in pending if not call.done()]  # one that waits is only ended by a later release
            state.leave_uid = uuid.uuid4()
            found = await self._unlock(state, state.leave_uid, until) or found
        else:
            # One of them may have taken the lock after the last release, and have its answer by now.
            state.unsure = state.unsure or any(not call.done() or took_lock(call) for call in pending)
        return found

    async def undo(self, state: TicketState, until: float) -> None:
        """Release what a late claim of a ticket that is gone has taken; its owner's number is not used again."""
        if not state.session.ended:
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
        except BaseException:  # a cancellation: the same
            state.unsure = True
            raise
        return True

    async def release_other(self, lock: str, ticket: str, until: float) -> bool:
        """Release a lock of another client: that of the owner whom `inspect` named."""
        return await self._sessions.in_group(lambda group: self._release_other(group, lock, ticket, until), until)

    async def _release_other(self, group: Any, lock: str, ticket: str, until: float) -> bool:
        owner = inspecting.owner_in(ticket)
        if owner is None:  # not the id of an owner
            await self._driver.ask(*requests.ownership(group, lock), until)
            return False
        try:
            while await self._driver.ask(*requests.unlock(group, lock, *owner, uuid.uuid4()), until):
                pass
        except (NotOwner, SessionEnded):
            return False
        return True
