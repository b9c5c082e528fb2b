"""``mode=session``: an exception at every step of the first waiter's attempt, as a signal handler can raise it.

The next waiter of the client gets the lock, once the first has left or was silent for its lease. No server is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import CodeType

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._sql.session.wait_queue import WaitQueues
from support.striking import Striking, ended_by

SOON = 5.0
"""Seconds in which the next waiter must have its turn."""


class Session:
    """A session that is open until it is closed or freed."""

    def __init__(self) -> None:
        self.open = True


class Sessions:
    """Sessions whose lock is free at the first attempt, or after a wait in the server's queue."""

    def __init__(self, *, free: bool) -> None:
        self.free_at_once = free
        self.made: list[Session] = []

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[Session, bool]:
        self.made.append(Session())
        return self.made[-1], self.free_at_once

    async def wait(self, session: Session, name: str, until: Callable[[], float]) -> None:
        assert session.open

    async def free(self, session: Session, name: str, until: float, *, has: bool) -> None:
        session.open = False

    async def end(self, session: Session, name: str, until: float) -> None:
        session.open = False

    def close(self, session: Session) -> None:
        session.open = False


def ticket(number: str) -> Ticket:
    return Ticket(number, LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=60.0))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("free", [True, False], ids=["a free lock", "a taken lock"])
def test_the_next_waiter_has_its_turn(free: bool) -> None:
    known, where, runtime = dict[CodeType, set[int]](), list[str](), BlockingRuntime()
    for at in itertools.count():
        sessions = Sessions(free=free)
        queues, striking = WaitQueues[Session](runtime, sessions), Striking(at, known)
        first, second = queues.enter("a", ticket("1")), queues.enter("a", ticket("2"))
        with ended_by(striking):
            finish(queues.session_for(first, runtime.now() + SOON))
        first.taking = False  # as the store does after an exception
        finish(queues.leave(first, runtime.now() + SOON))
        until = runtime.now() + SOON
        session = finish(queues.session_for(second, until)) or finish(queues.wait_for_session(second, until))
        assert session is not None, f"{striking.where}: the next waiter never tries"
        assert session.open, striking.where
        assert [one for one in sessions.made if one.open and one is not session] == [], striking.where
        if not striking.where:
            break
        where.append(striking.where)
    assert len(where) > 10
