"""Hazelcast's tickets and sessions without a server: what is sent, and by whom, after a release has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold import Client
from leasehold._model import LeaseTerms, LockMode, Owner, RenewalResult, Ticket, Wait
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreRefused, StoreUnavailable
from leasehold.stores import registry
from leasehold.stores.hazelcast.connection.driver import Call, Driver
from leasehold.stores.hazelcast.connection.errors import SessionEnded
from leasehold.stores.hazelcast.connection.modules import module
from leasehold.stores.hazelcast.connection.settings import Settings
from leasehold.stores.hazelcast.sessions import Session
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold.stores.hazelcast.tickets import TicketState
from leasehold_lab.servers.base import free_port

Future: Any = module("future").Future

SETTINGS = Settings((("h", 5701),))

LEASE = 10.0


def driver(runtime: Any) -> Driver:
    return Driver(runtime, SETTINGS, lambda: None)


def call(runtime: Any = None, result: object = None) -> Call:
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
        store._driver.ask = self.ask  # type: ignore[method-assign]

    async def ask(self, *_: object) -> Any:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def store_of() -> FencedLockStore:
    store = registry.opener("hazelcast://h").open(BlockingRuntime(), "default")
    assert isinstance(store, FencedLockStore)
    store._upkeep.watch = lambda until: None  # type: ignore[method-assign]
    return store


def ticket(number: int = 1) -> Ticket:
    return Ticket(f"ticket-{number}", LeaseTerms(LockMode(), Owner("h", 1, "t"), lease=LEASE))


def session_of(store: FencedLockStore) -> Session:
    session = Session(1, None, 300.0, 5.0, store._runtime.now(), float("inf"))
    store._sessions.all.append(session)
    store._sessions._current = session
    return session


def state_of(store: FencedLockStore, session: Session, number: int = 1) -> TicketState:
    one = ticket(number)
    state = TicketState("x", "x", one, session, session.enter(), store._runtime.signal(), store._mutex)
    state.until = store._runtime.now() + LEASE
    store._states[one.id] = state
    return state


# --- tasks that wait for the same --------------------------------------------------------------------------------


def test_two_tasks_may_wait_for_one_answer() -> None:
    """One gives up first; the other still gets the answer."""

    async def body() -> None:
        runtime = AsyncioRuntime()
        ours, future = driver(runtime), Future()
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
        ours, manager = driver(runtime), SimpleNamespace(active_connections={})
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
    first = call()
    assert state.claims(lambda: first) is first
    assert state.begin_leave() == [first]
    assert state.claims(call) is None
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


def test_only_tickets_that_nobody_has_renewed_meanwhile_are_ended() -> None:
    """The release of the first one takes long; the second one is granted in that time."""
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


# --- sessions ----------------------------------------------------------------------------------------------------

MADE = {"session_id": 2, "ttl_millis": 300_000, "heartbeat_millis": 5_000}

GROUP = SimpleNamespace(name="default", id=7)


@pytest.fixture(autouse=True)
def no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("group", "create_session", "close_session", "unlock"):
        monkeypatch.setattr(f"leasehold.stores.hazelcast.connection.requests.{name}", lambda *_: (None, None))


def ends(session: Session, now: float) -> None:
    session.ended = True


def retires(session: Session, now: float) -> None:
    session.retired = True


def idles(session: Session, now: float) -> None:
    session.since = now - session.valid - 1.0


@pytest.mark.parametrize("happens", [retires, idles])
def test_a_new_ticket_gets_another_session_than_one_that_is_closed(happens: Callable[[Session, float], None]) -> None:
    store = store_of()
    first = session_of(store)
    happens(first, store._runtime.now())
    Members(store, GROUP, MADE)
    session, _ = run_sync(store._sessions.enter(LEASE))
    assert session.id == 2
    assert session.tickets == 1
    assert not first.tickets


def test_a_session_that_was_entered_is_not_closed() -> None:
    store = store_of()
    session = session_of(store)
    run_sync(store._sessions.enter(LEASE))
    session.retired = True
    run_sync(store._sessions.close_retired(LEASE))
    assert not session.ended


def test_a_client_that_was_closed_makes_no_session() -> None:
    store = store_of()
    members = Members(store, GROUP, MADE)
    run_sync(store._sessions.close(LEASE))
    with pytest.raises(StoreUnavailable, match="closed"):
        run_sync(store._sessions.enter(LEASE))
    assert members.asked == 3, "the session that came too late is closed"


@pytest.mark.parametrize("times", [1, 2])
def test_a_group_that_was_destroyed_is_looked_up_once_more(times: int) -> None:
    store = store_of()
    store._sessions._group = GROUP
    again = (GROUP, MADE) if times == 1 else (GROUP, SessionEnded("x"))
    Members(store, SessionEnded("x"), *again)
    if times == 1:
        assert run_sync(store._sessions.enter(LEASE))[0].id == 2
    else:
        with pytest.raises(StoreUnavailable, match="destroyed"):
            run_sync(store._sessions.enter(LEASE))


# --- connections -------------------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_puts_all_holds_in_doubt() -> None:
    store = store_of()
    told = list[object]()
    store.report_losses(lambda result, tickets: told.append((result, tickets)))
    store._driver._lifecycle("DISCONNECTED")
    assert told == [(RenewalResult.UNKNOWN, None)]


def test_the_frames_of_an_error_have_no_password() -> None:
    url = f"hazelcast://app:canary-in-frames@127.0.0.1:{free_port()}/shop"
    with Client.from_url(url, response_timeout=0.3) as client, pytest.raises(StoreUnavailable) as refused:
        client.lock("x").acquire(timeout=0.3)
    errors, seen = [refused.value], list[Any]()
    while errors:
        error = errors.pop()
        seen.append(error)
        errors += [one for one in (error.__cause__, error.__context__) if one is not None and one not in seen]
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename != __file__:
                assert "canary-in-frames" not in repr(trace.tb_frame.f_locals)
            trace = trace.tb_next
    assert len(seen) > 1
