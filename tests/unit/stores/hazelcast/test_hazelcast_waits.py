"""Hazelcast's waiters without a server: a request that is stuck at a member, and a renewal at the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold._model import Granted, RenewalResult, Wait
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold.stores.hazelcast.connection.requests import Ownership
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold.stores.hazelcast.tickets import TicketState
from support.stores.hazelcast_store import LEASE, Future, call_of, session_of, state_of, store_of, without_messages


@pytest.fixture(autouse=True)
def no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_messages(monkeypatch)
    for name in ("lock", "ownership"):
        monkeypatch.setattr(f"leasehold.stores.hazelcast.connection.requests.{name}", lambda *_: (None, None))


NOBODY = Ownership(0, 0, 0)

OTHER = Ownership(9, 99, 1)


class Posts:
    """Takes the place of the driver's requests; the question who has the lock is answered with ``found``."""

    def __init__(self, store: FencedLockStore, found: Ownership) -> None:
        self.sent = list[Call]()
        self._store, self._found = store, found
        driver = store._driver
        driver.send, driver.connected, driver.post = self.send, self.connected, self.post  # type: ignore[method-assign, assignment]

    async def send(self, *_: object) -> Call:
        return call_of(self._store._runtime, self._found)

    async def connected(self, until: float) -> object:
        return None

    def post(self, *_: object) -> Call:
        call = Call(Future(), self._store._runtime, "h")
        self.sent.append(call)
        return call


def waiter_of(store: FencedLockStore) -> tuple[TicketState, Call]:
    session = session_of(store)
    session.beat_at = store._runtime.now()
    state = state_of(store, session)
    call = call_of(store._runtime)
    state.claims(lambda: call)
    state.wait_uid = state.leave_uid
    state.waiting = call

    async def beat(*_: object) -> None:
        return None

    store._sessions.beat = beat  # type: ignore[method-assign, assignment]
    return state, call


def renewed(store: FencedLockStore, state: TicketState) -> None:
    work = store.renew([(state.name, state.ticket)], within=1.0)
    if isinstance(store._runtime, AsyncioRuntime):
        assert asyncio.run(_awaited(work)) == [RenewalResult.QUEUED]
    else:
        assert run_sync(_awaited(work)) == [RenewalResult.QUEUED]


async def _awaited(work: Any) -> Any:
    return await work


@pytest.mark.parametrize("runtime", [BlockingRuntime(), AsyncioRuntime()])
def test_a_wait_that_is_stuck_while_the_lock_is_free_is_sent_again(runtime: Any) -> None:
    """A member that lost the leader keeps it for a minute. The old request may still arrive, and is not forgotten."""
    store = store_of(runtime)
    state, stuck = waiter_of(store)
    posts = Posts(store, NOBODY)
    renewed(store, state)
    (again,) = posts.sent
    assert state.waiting is again
    assert state.calls == [stuck, again]
    again._future.set_result(5)
    assert state.wake.is_set()
    assert isinstance(store._read_wait(state), Granted)
    assert state.calls == [stuck], "its release waits for it"


def test_a_waiter_keeps_its_place_between_two_renewals_though_its_session_is_short() -> None:
    """It is renewed after a third of its lease."""
    store = store_of()
    state, _ = waiter_of(store)
    state.session.ttl = state.session.interval = state.until = 1.0
    Posts(store, OTHER)
    asked = store._runtime.now()
    renewed(store, state)
    assert state.until >= asked + LEASE
    state.session.alive_at(store._runtime.now())
    granted = store._fresh_grant(state, 5)
    assert granted is not None
    assert state.until == granted.since + granted.lease < asked + LEASE / 3


def test_a_wait_for_a_lock_that_somebody_has_is_not_sent_again() -> None:
    store = store_of()
    state, waiting = waiter_of(store)
    posts = Posts(store, OTHER)
    renewed(store, state)
    assert not posts.sent
    assert state.waiting is waiting


def test_a_wait_that_was_sent_after_the_question_is_not_sent_again() -> None:
    """Its answer says nothing of it."""
    store = store_of()
    state, waiting = waiter_of(store)
    state.waiting = None
    posts = Posts(store, NOBODY)
    send = posts.send

    async def late(*message: object) -> Call:
        state.waiting = waiting
        return await send(*message)

    store._driver.send = late  # type: ignore[method-assign, assignment]
    renewed(store, state)
    assert not posts.sent


def test_a_wait_that_was_answered_meanwhile_is_not_replaced() -> None:
    """Its fence would be read a second time when the hold is lost."""
    store = store_of()
    state, stuck = waiter_of(store)
    posts = Posts(store, NOBODY)
    post = posts.post

    def answered_first(*message: object) -> Call:
        call = post(*message)
        state.waiting, state.token = None, 5
        return call

    store._driver.post = answered_first  # type: ignore[method-assign, assignment]
    renewed(store, state)
    assert state.waiting is None
    assert state.calls == [stuck, *posts.sent]


def test_a_hold_that_was_lost_is_not_granted_again_by_an_old_answer() -> None:
    store = store_of()
    state, _ = waiter_of(store)
    state.waiting, state.token = call_of(store._runtime, 5), 5

    async def renew(*_: object, within: float) -> list[RenewalResult]:
        return [RenewalResult.GONE]

    store.renew = renew  # type: ignore[method-assign, assignment]
    assert run_sync(store._confirm(state, store._runtime.now() + 1.0)) is None
    assert (state.token, state.waiting, state.wait_uid) == (None, None, None)


class Renewed(TicketState):
    """A waiter whose renewal finds its grant in another thread, as soon as its request was looked at once."""

    __slots__ = ("seen",)

    @property
    def waiting(self) -> Call | None:  # type: ignore[override]
        self.seen, found = None, self.seen
        return found

    @waiting.setter
    def waiting(self, call: Call | None) -> None:
        self.seen = call


@pytest.mark.parametrize("step", ["try_acquire", "wait", "renew"])
def test_a_renewal_may_find_the_grant_at_any_moment(step: str) -> None:
    store = store_of()
    usual, _ = waiter_of(store)
    state = Renewed("x", "x", usual.ticket, usual.session, usual.thread, store._runtime.signal(), store._mutex)
    store._states[state.id] = state
    posts = Posts(store, OTHER)
    state.waiting = call_of(store._runtime)
    if step == "try_acquire":
        assert isinstance(run_sync(store.try_acquire("x", state.ticket, join=True, within=1.0)), Wait)
    elif step == "wait":
        state.wake.set()
        assert run_sync(store.wait("x", state.ticket, None, timeout=1.0)) is None
    else:
        now = store._runtime.now()
        asked = call_of(store._runtime, OTHER)
        assert run_sync(store._read_owner(state, asked, None, now, now + 1.0)) is RenewalResult.QUEUED
    assert not posts.sent
