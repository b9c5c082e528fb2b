"""What a client knows of one ticket: its owner on the servers, and the requests that may still reach them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from leasehold._model import Ticket
from leasehold._runtimes.base import Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold.stores.hazelcast.sessions import Session


@dataclass(eq=False, slots=True)
class TicketState:
    """One ticket.

    The servers know an owner by its session and a thread's number, and each request by an id: a request that is
    repeated with its id has the same result. A try that failed fails again, so the wait has another id than the try.

    Attributes:
        name: of the lock.
        lock: the name of the lock in Hazelcast.
        ticket: the ticket.
        session: the CP session of the owner.
        thread: the number of the owner in its session.
        wake: set when it is worth asking again.
        mutex: the client's, which guards what follows.
        until: when the ticket ends if it is not renewed; a waiter's renewals are a third of its lease apart.
        token: its fence, while it holds.
        waiting: the request that waits for the lock.
        calls: claims without an answer so far.
        unsure: whether a claim had no answer, and may still arrive.
        over: whether it ends: no claim of it is sent any more, and no grant is taken.
        leaving: how many threads or tasks release it now.
        gone: whether it is forgotten, and its owner's number perhaps that of another ticket.
    """

    name: str
    lock: str
    ticket: Ticket
    session: Session
    thread: int
    wake: Signal
    mutex: AbstractContextManager[Any]
    until: float = 0.0
    token: int | None = None
    waiting: Call | None = None
    calls: list[Call] = field(default_factory=list[Call])
    unsure: bool = False
    over: bool = False
    leaving: int = 0
    gone: bool = False
    try_uid: uuid.UUID | None = None
    wait_uid: uuid.UUID | None = None
    leave_uid: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def owner(self) -> tuple[Any, str, int, int]:
        """What the requests of the lock begin with."""
        return self.session.group, self.lock, self.session.id, self.thread

    def extend(self, until: float) -> bool:
        """Set when it ends, never to an earlier time; return whether it goes on."""
        with self.mutex:
            self.until = max(self.until, until)
            return not self.over

    def grant(self, fence: int, until: float) -> bool:
        """Make it a holder; return False if it ends: then its release gives the lock back."""
        with self.mutex:
            if self.over or self.session.ended:
                return False
            self.token, self.until = fence, until
            return True

    def claims(self, send: Callable[[], Call]) -> Call | None:
        """Send a claim, which is remembered until it is answered; None if the ticket or its session has ended.

        A signal handler may raise after it was sent and before it is remembered: then it may still arrive.
        """
        with self.mutex:
            if self.over or self.session.ended:
                return None
            before, self.unsure = self.unsure, True
            try:
                call = send()
            except StoreUnavailable as error:
                self.unsure = before or error.unknown
                raise
            self.calls.append(call)
            self.unsure = before
            return call

    def wait_for(self, call: Call, instead_of: Call | None) -> None:
        """Set the request that waits, unless a grant or another one came first."""
        with self.mutex:
            if self.waiting is instead_of and self.token is None:
                self.waiting = call
        call.when_done(self.wake.set)

    def overdue(self, now: float, again: float) -> bool:
        """Return whether it must be ended: not renewed, and no release under way. It is checked next at ``again``."""
        with self.mutex:
            if self.until > now:
                return False
            self.until = again
            if self.leaving:
                return False
            self.over = True
            return True

    def begin_leave(self) -> list[Call] | None:
        """End it; return its claims without an answer, or None if it is gone already."""
        with self.mutex:
            self.over = True
            if self.gone:
                return None
            self.leaving += 1
            found = [call for call in self.calls if not call.done()]
        self.wake.set()
        return found

    def end_leave(self) -> None:
        """Count one release less."""
        with self.mutex:
            self.leaving -= 1

    def settle(self) -> None:
        """Forget the claims that have answers; one that failed without an answer may still arrive."""
        with self.mutex:
            for call in [call for call in self.calls if call.done()]:
                self.calls.remove(call)
                self.unsure = self.unsure or not call.answered()

    def forget(self) -> bool:
        """Mark it as gone; return whether one of its claims may still arrive.

        If one may, its session is retired. Else its owner's number is used again, unless a release is under way.
        """
        self.settle()
        with self.mutex:
            late = not self.session.ended and bool(self.calls or self.unsure)
            if not self.gone:
                self.over = self.gone = True
                self.session.leave(self.thread, reuse=not (late or self.leaving))
                self.session.retired = self.session.retired or late
        self.wake.set()
        return late


def took_lock(call: Call) -> bool:
    """Return whether the answer to a claim is a fence."""
    return call.done() and call.succeeded() and bool(call.result())
