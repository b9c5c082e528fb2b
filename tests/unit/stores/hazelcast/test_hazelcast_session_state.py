"""Hazelcast's sessions and connections without a server: which is used, which is closed, and what doctor says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold import Client
from leasehold._model import RenewalResult, Severity
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.hazelcast.connection.errors import SessionEnded
from leasehold.stores.hazelcast.sessions import Session
from leasehold_lab.servers.base import free_port
from support.stores.hazelcast_store import (
    LEASE,
    Members,
    driver_of,
    session_of,
    store_of,
    ticket_of,
    without_messages,
)


@pytest.fixture(autouse=True)
def no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    without_messages(monkeypatch)


MADE = {"session_id": 2, "ttl_millis": 300_000, "heartbeat_millis": 5_000}

GROUP = SimpleNamespace(name="default", id=7)


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


def test_a_retired_session_is_closed_until_the_servers_confirm_it() -> None:
    """A late claim would take the lock without a ticket, as long as the session lives."""
    store = store_of()
    session = session_of(store)
    session.retired = True
    members = Members(store, StoreUnavailable("x", unknown=True), StoreUnavailable("x"), True)
    run_sync(store._upkeep._step())
    assert members.asked == 1
    assert session.ended
    run_sync(store._upkeep._step())
    assert members.asked == 1, "there is a pause"
    for asked in (2, 3):
        assert store._upkeep._times() == [session.beat_at], "the job goes on"
        session.beat_at = 0.0
        run_sync(store._upkeep._step())
        assert members.asked == asked
    assert not store._upkeep._times()


def test_a_client_that_closes_also_closes_what_it_could_not_close_before() -> None:
    store = store_of()
    session_of(store).retired = True
    members = Members(store, StoreUnavailable("x"), True)
    run_sync(store._sessions.close_retired(LEASE))
    run_sync(store._sessions.close(LEASE))
    assert members.asked == 2


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


@pytest.mark.parametrize(
    ("answer", "why"),
    [(Unsupported("x"), "Enterprise"), (SimpleNamespace(name="leasehold", id=9), "cp-member-count is 0")],
)
def test_doctor_names_what_a_cluster_without_cp_lacks_and_what_to_do(answer: object, why: str) -> None:
    store = store_of()
    Members(store, answer)

    async def members(until: float) -> list[Any]:
        return []

    store._driver.members = members  # type: ignore[method-assign, assignment]
    found = run_sync(store.diagnose())[-1]
    assert (found.severity, found.subject) == (Severity.ERROR, "CP subsystem")
    assert why in found.found
    assert "cp-member-count" in found.remedy
    with pytest.raises(Unsupported, match="another store"):
        run_sync(store.try_acquire("x", ticket_of(), join=True, within=1.0))


# --- connections -------------------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_puts_all_holds_in_doubt() -> None:
    store = store_of()
    told = list[object]()
    store.report_losses(lambda result, tickets: told.append((result, tickets)))
    store._driver._lifecycle("DISCONNECTED")
    assert told == [(RenewalResult.UNKNOWN, None)]


def test_a_connection_that_was_made_for_a_cancelled_request_is_used() -> None:
    """No caller waited for it any more; a second one would leave its threads behind."""
    runtime = BlockingRuntime()
    ours = driver_of(runtime)
    ours._client = made = SimpleNamespace(lifecycle_service=SimpleNamespace(is_running=lambda: True))
    assert ours._open() is made


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
