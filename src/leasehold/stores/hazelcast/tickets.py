"""What a client knows of one ticket: its owner on the servers, and the requests that may still reach them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from leasehold._model import Ticket
from leasehold._runtimes.base import Signal
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
        until: when the ticket ends if it is not renewed.
        token: its fence, while it holds.
        waiting: the request that waits for the lock.
        calls: claims without an answer so far.
        unsure: whether a claim had no answer, and may still arrive.
        over: whether it was released.
    """

    name: str
    lock: str
    ticket: Ticket
    session: Session
    thread: int
    wake: Signal
    until: float = 0.0
    token: int | None = None
    waiting: Call | None = None
    calls: list[Call] = field(default_factory=list[Call])
    unsure: bool = False
    over: bool = False
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

    def settle(self) -> None:
        """Forget the claims that have answers; one that failed without an answer may still arrive."""
        for call in [call for call in self.calls if call.done()]:
            self.calls.remove(call)
            self.unsure = self.unsure or not call.answered()


def took_lock(call: Call) -> bool:
    """Return whether the answer to a claim is a fence."""
    return call.done() and call.succeeded() and bool(call.result())
