"""Hazelcast's store without a server: answers in the place of the members, and tickets and sessions as tests need."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.hazelcast.connection.driver import Call, Driver
from leasehold.stores.hazelcast.connection.modules import module
from leasehold.stores.hazelcast.connection.settings import Settings
from leasehold.stores.hazelcast.sessions import Session
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold.stores.hazelcast.tickets import TicketState

Future: Any = module("future").Future

SETTINGS = Settings((("h", 5701),))

LEASE = 10.0


def driver_of(runtime: Any) -> Driver:
    return Driver(runtime, SETTINGS, lambda: None)


def call_of(runtime: Any = None, result: object = None) -> Call:
    future = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    elif result is not None:
        future.set_result(result)
    return Call(future, runtime or BlockingRuntime(), "h")


class Members:
    """Answers in the place of the members, in this order; the last answer repeats."""

    def __init__(self, store: FencedLockStore, *answers: object) -> None:
        self.asked = 0
        self._answers = list(answers)
        store._driver.ask = self.ask  # type: ignore[method-assign, assignment]

    async def ask(self, *_: object) -> Any:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def store_of(runtime: Any = None) -> FencedLockStore:
    store = registry.opener("hazelcast://h").open(runtime or BlockingRuntime(), "default")
    assert isinstance(store, FencedLockStore)
    store._upkeep.watch = lambda until: None  # type: ignore[method-assign]
    return store


def ticket_of(number: int = 1) -> Ticket:
    return Ticket(f"ticket-{number}", LeaseTerms(LockMode(), Owner("h", 1, "t"), lease=LEASE))


def session_of(store: FencedLockStore) -> Session:
    session = Session(1, None, 300.0, 5.0, store._runtime.now(), float("inf"))
    store._sessions.all.append(session)
    store._sessions._current = session
    return session


def state_of(store: FencedLockStore, session: Session, number: int = 1) -> TicketState:
    one = ticket_of(number)
    state = TicketState("x", "x", one, session, session.enter(), store._runtime.signal(), store._mutex)
    state.until = store._runtime.now() + LEASE
    store._states[one.id] = state
    return state


def without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no bytes of requests: `Members` answers in their order."""
    for name in ("group", "create_session", "close_session", "unlock"):
        monkeypatch.setattr(f"leasehold.stores.hazelcast.connection.requests.{name}", lambda *_: (None, None))
