"""Hazelcast's tickets without a server: what is sent, and by whom, after a release has begun."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold._model import RenewalResult, Wait
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreRefused, StoreUnavailable
from leasehold.stores.hazelcast import releasing, upkeep
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold.stores.hazelcast.connection.requests import Ownership
from leasehold.stores.hazelcast.sessions import Session
from leasehold.stores.hazelcast.tickets import TicketState
from support.stores.hazelcast_store import (
    LEASE,
    Future,
    Members,
    call_of,
    driver_of,
    session_of,
    state_of,
    store_of,
    without_messages,
)


@pytest.fixture(autouse=True)
def no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_messages(monkeypatch)


# --- tasks that wait for the same --------------------------------------------------------------------------------


def test_two_tasks_may_wait_for_one_answer() -> None:
    """One gives up first; the other still gets the answer."""

    async def body() -> None:
        runtime = AsyncioRuntime()
        ours, future = driver_of(runtime), Future()
        asked = Call(future, runtime, "h")
        first = asyncio.create_task(ours.answer(asked, runtime.now() + 5.0))
        await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            await ours.answer(asked, runtime.now() + 0.05)
        future.set_result(7)
        assert await asyncio.wait_for(first, 2.0) == 7

    asyncio.run(body())


def test_tasks_wait_together_for_the_driver_to_connect_again() -> None:
    """Each ends at its own deadline, or when there is a connection."""

    async def body() -> None:
        runtime = AsyncioRuntime()
        ours, manager = driver_of(runtime), SimpleNamespace(active_connections={}, initialized_on_cluster=lambda: True)
        ours._client = SimpleNamespace(
            _connection_manager=manager, lifecycle_service=SimpleNamespace(is_running=lambda: True)
        )
        start = runtime.now()
        waits = [asyncio.create_task(ours.connected(start + until)) for until in (0.3, 9.0, 0.5, 9.0, 9.0)]
        await asyncio.sleep(1.0)
        assert [wait.done() for wait in waits] == [True, False, True, False, False]
        manager.active_connections["m"] = 1
        done, late = await asyncio.wait(waits, timeout=2.0)
        assert not late
        assert sum(isinstance(wait.exception(), StoreUnavailable) for wait in done) == 2

    asyncio.run(body())


# --- the end of a ticket -----------------------------------------------------------------------------------------


def test_nothing_is_sent_or_granted_for_a_ticket_that_ends() -> None:
    store = store_of()
    state = state_of(store, session_of(store))
    first = call_of()
    assert state.claims(lambda: first) is first
    assert state.begin_leave() == [first]
    assert state.claims(call_of) is None
    assert not state.grant(5, LEASE)
    assert not state.extend(LEASE)
    assert isinstance(run_sync(store.try_acquire("x", state.ticket, join=True, within=1.0)), Wait)
    assert list(store._states.values()) == [state], "it is claimed again when it is gone"


def test_a_number_is_not_used_again_while_another_thread_releases_its_ticket() -> None:
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    members = Members(store, False)
    assert state.begin_leave() == []
    assert run_sync(store._releaser.leave(state, LEASE)) is True
    assert session.enter() != state.thread
    assert state.begin_leave() is None, "it is gone"
    asked = members.asked
    assert run_sync(store._releaser.leave(state, LEASE)) is False
    assert members.asked == asked


def test_only_tickets_that_nobody_has_renewed_meanwhile_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release of the first one takes long; the second one is granted in that time."""
    monkeypatch.setattr(upkeep, "TOGETHER", 1)
    store = store_of()
    session = session_of(store)
    first, second = state_of(store, session, 1), state_of(store, session, 2)
    first.until = second.until = 0.0
    left = list[TicketState]()

    async def leave(state: TicketState, until: float) -> bool:
        left.append(state)
        assert second.grant(5, store._runtime.now() + LEASE)
        return True

    store._releaser.leave = leave  # type: ignore[method-assign]
    run_sync(store._upkeep._step())
    assert left == [first]
    assert not second.over


@pytest.mark.parametrize("error", [StoreUnavailable("x", unknown=True), asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_release_that_was_cut_short_may_still_arrive(error: BaseException) -> None:
    """So its owner's number is not used again, and its session takes no more tickets."""
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    Members(store, error, False)
    with pytest.raises(type(error)):
        run_sync(store._releaser.leave(state, LEASE))
    assert not state.gone, "it is repeated"
    assert run_sync(store._releaser.leave(state, LEASE)) is True
    assert session.retired
    assert session.enter() != state.thread
    ((_, again, _),) = store._upkeep._pending
    assert again is state


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreUnavailable("x", unknown=True), StoreUnavailable("x")])
def test_a_claim_that_a_signal_handler_cuts_short_may_still_arrive(error: BaseException) -> None:
    """It was sent, and not yet remembered. Only of an error that says so is it known that nothing was sent."""
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    Members(store, False)

    def send() -> Call:
        raise error

    with pytest.raises(type(error)):
        state.claims(send)
    run_sync(store._releaser.leave(state, LEASE))
    late = not isinstance(error, StoreUnavailable) or error.unknown
    assert session.retired is late
    assert (session.enter() == state.thread) is not late
    assert [again for _, again, _ in store._upkeep._pending] == [state] * late


def test_a_claim_that_was_sent_says_nothing_of_one_that_may_still_arrive() -> None:
    store = store_of()
    state = state_of(store, session_of(store))
    state.claims(call_of)
    assert not state.unsure
    state.unsure = True
    state.claims(call_of)
    assert state.unsure


def test_a_claim_that_takes_the_lock_after_the_last_release_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer comes before that of the release that it overtook, so it has one when the ticket is forgotten."""
    monkeypatch.setattr(releasing, "OVERTAKE", (0.0, 0.0))
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    future = Future()
    state.claims(lambda: Call(future, store._runtime, "h"))
    answers = [False, False, False]

    async def ask(*_: object) -> bool:
        if len(answers) == 1:
            future.set_result(7)
        return answers.pop()

    store._driver.ask = ask  # type: ignore[method-assign]
    run_sync(store._releaser.leave(state, LEASE))
    assert not answers
    assert session.retired
    assert session.enter() != state.thread
    ((_, again, _),) = store._upkeep._pending
    assert again is state


def test_a_renewal_that_a_release_overtakes_does_not_confirm_the_hold() -> None:
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    assert state.grant(5, store._runtime.now() + LEASE)
    mine = call_of(store._runtime, Ownership(5, session.id, state.thread))
    until = store._runtime.now() + 1.0
    assert run_sync(store._read_owner(state, mine, None, store._runtime.now(), until)) is RenewalResult.HELD
    state.begin_leave()
    assert run_sync(store._read_owner(state, mine, None, store._runtime.now(), until)) is RenewalResult.GONE


def test_a_grant_of_a_session_that_has_ended_is_not_taken() -> None:
    """Another client may have the lock already. The ticket asks again, in another session."""
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    store._sessions.end(session)
    assert not state.grant(5, store._runtime.now() + LEASE)
    assert state.claims(call_of) is None
    assert state.token is None


def test_late_releases_go_on_until_the_session_has_ended() -> None:
    store = store_of()
    session = session_of(store)
    state = state_of(store, session)
    keeps = state_of(store, session, 2)
    state.unsure = True
    members = Members(store, False)
    run_sync(store._releaser.leave(state, LEASE))
    for _ in range(6):
        ((_, again, pauses),) = store._upkeep._pending
        store._upkeep._pending[:] = [(0.0, again, pauses)]
        before = members.asked
        run_sync(store._upkeep._step())
        assert members.asked > before
    run_sync(store._releaser.leave(keeps, LEASE))
    store._upkeep._pending[:] = [(0.0, state, (1.0,))]
    run_sync(store._upkeep._step())
    assert session.ended, "it has no ticket any more"


def test_a_release_that_is_refused_for_good_is_not_repeated() -> None:
    store = store_of()
    state = state_of(store, session_of(store))
    Members(store, StoreRefused("somebody destroyed this lock"))
    with pytest.raises(StoreRefused):
        run_sync(store._releaser.leave(state, LEASE))
    assert state.gone
    assert not store._states
    assert not store._upkeep._pending
    assert state.session.retired, "the lock is free when it is closed"
    assert state.session.enter() != state.thread


def test_an_undoing_that_is_refused_for_good_is_not_repeated() -> None:
    store = store_of()
    state = state_of(store, session_of(store))
    members = Members(store, StoreRefused("somebody destroyed this lock"))
    run_sync(store._upkeep._undo(state, (1.0,)))
    assert members.asked == 1
    assert not store._upkeep._pending


def test_no_heartbeat_waits_for_several_slow_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TOGETHER", 1)
    store = store_of()
    session = session_of(store)
    for number in (1, 2, 3):
        state_of(store, session, number).until = 0.0
    done = list[str]()

    async def leave(state: TicketState, until: float) -> bool:
        assert until - store._runtime.now() < session.ttl / 3 + 0.1
        done.append("release")
        session.beat_at = 0.0  # it took until then
        return True

    async def beat(session: Session, until: float) -> None:
        done.append("beat")

    session.ttl = 6.0
    store._releaser.leave, store._sessions.beat = leave, beat  # type: ignore[method-assign]
    run_sync(store._upkeep._step())
    assert done == ["release", "beat"] * 3


@pytest.mark.parametrize("runtime", [BlockingRuntime(), AsyncioRuntime()])
def test_tickets_that_end_together_are_released_together(runtime: Any) -> None:
    """The first one waits until the last one was sent, too; an error of one is no error of the others."""
    store = store_of(runtime)
    session = session_of(store)
    for number in (1, 2, 3):
        state_of(store, session, number).until = 0.0
    all_sent, sent = [runtime.signal() for _ in range(3)], list[str]()

    async def leave(state: TicketState, until: float) -> bool:
        mine = all_sent[len(sent)]
        sent.append(state.id)
        if len(sent) == 3:
            for signal in all_sent:
                signal.set()
        assert await mine.wait(5.0)
        raise StoreUnavailable("x")

    store._releaser.leave = leave  # type: ignore[method-assign]
    if isinstance(runtime, AsyncioRuntime):
        asyncio.run(store._upkeep._step())
    else:
        run_sync(store._upkeep._step())
    assert sorted(sent) == ["ticket-1", "ticket-2", "ticket-3"]
