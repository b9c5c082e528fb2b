"""A close that a signal handler or a callback interrupts by an exception."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from types import CodeType
from typing import Any

import pytest

from leasehold import AsyncClient, Client, Hold, LeaseLost
from leasehold._engine import closing
from leasehold._engine.lease import Later, Lease
from leasehold._engine.lease_states import State
from leasehold._engine.watchdog.background import PendingRelease
from leasehold._runtimes.base import run_sync
from leasehold.events import Lost
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from support.patience import until
from support.striking import Striking, ended_by, tracing


def test_an_exit_in_a_callback_keeps_no_lock_held_where_the_close_can_start_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called in the main thread then, and what it raises is raised at the end of the close."""

    def fails(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    client, other = Client(Memory("close without threads")), Client(Memory("close without threads"))
    told = close_two(client, lambda error: sys.exit(3), SystemExit, lambda: monkeypatch.setattr(Thread, "start", fails))
    monkeypatch.undo()
    assert told == ["b"]
    assert other.holds() == []
    other.close()


def test_a_close_that_is_interrupted_while_it_waits_for_callbacks_keeps_no_lock_held() -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(error: LeaseLost) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        go_on.wait(20)

    go_on = threading.Event()
    client, other = Client(Memory("interrupted close")), Client(Memory("interrupted close"))
    close_two(client, interrupt, KeyboardInterrupt)
    assert other.holds() == []
    go_on.set()
    other.close()


def test_a_close_that_is_interrupted_in_a_release_keeps_no_lock_held() -> None:
    """The watchdog releases the rest as it closes, and that lock once more."""
    left = [1]

    def interrupt(call: Call) -> None:
        if call.method == "release" and call.name == "b" and left:
            left.pop()
            raise KeyboardInterrupt

    client, other = Client(Faulty(Memory("interrupted release"), interrupt)), Client(Memory("interrupted release"))
    holds = [client.lock(name).acquire() for name in "abcde"]
    assert None not in holds
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert other.holds() == []
    other.close()


@pytest.mark.parametrize("at", range(5))
def test_a_close_that_is_interrupted_in_an_observer_ends_all_holds_and_keeps_no_lock_held(at: int) -> None:
    """An observer is called for each hold; writing its message is the slow part of a close."""
    reported, told = list[str](), list[str | None]()

    def observe(event: object) -> None:
        if isinstance(event, Lost):
            reported.append(event.name)
            if len(reported) == at + 1:
                signal.raise_signal(signal.SIGINT)

    space = f"interrupted observer {at}"
    client, other = Client(Memory(space), observer=observe), Client(Memory(space))
    holds = [client.lock(name).acquire() for name in "abcde"]
    for hold in holds:
        assert hold is not None
        hold.on_lost(lambda loss: told.append(loss.name))
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert other.holds() == []
    assert all(hold is not None and hold.lost for hold in holds)
    assert sorted(reported) == sorted(filter(None, told)) == list("abcde")
    assert client._core._engine.watchdog._job is None
    other.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_an_exit_at_any_step_of_a_close_leaves_no_hold_that_is_renewed_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second close does nothing, so what the first one leaves must end by itself, within the lease."""
    caplog.set_level(logging.CRITICAL, "leasehold")  # each loss is reported
    known, where, at = dict[CodeType, set[int]](), dict[str, str](), 0
    clients, held = list[Client](), list[Hold]()
    with Client(Memory("exit in a close")) as looker:
        for at in itertools.count():
            client, striking = Client(Memory("exit in a close")), Striking(at, known)
            for name in (f"{at} a", f"{at} b"):
                hold = client.lock(name, lease=1.5).acquire()
                assert hold is not None
                held.append(hold)
            with ended_by(striking):
                client.close()
            client.close()
            clients.append(client)
            if not striking.where:
                break
            where[str(at)] = striking.where
        until = time.monotonic() + 2.5
        while looker.holds() and time.monotonic() < until:
            time.sleep(0.05)
        left = {where.get(info.name.split()[0]) for info in looker.holds()}
    for client in clients:
        run_sync(client._core._engine.watchdog.close(1.0, []))  # its thread would end by itself, but later
    assert at > 100
    assert left == set()
    assert not any(hold.held for hold in held)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_an_exit_at_any_step_of_the_releases_of_a_close_leaves_no_lock_held(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # each loss is reported
    left, known, release_all = dict[str, list[str]](), dict[CodeType, set[int]](), closing.release_all

    async def traced(engine: closing.Closing, leases: list[Lease], until: float) -> None:
        with tracing(striking):
            await release_all(engine, leases, until)

    monkeypatch.setattr(closing, "release_all", traced)
    with Client(Memory("exit in the releases")) as looker:
        for at in itertools.count():
            client, striking = Client(Memory("exit in the releases")), Striking(at, known)
            names = [f"{at} {name}" for name in "abc"]
            holds = [client.lock(name, lease=60.0).acquire() for name in names]
            assert None not in holds
            with suppress(SystemExit):
                client.close()
            if not striking.where:
                break
            held = [info.name for info in looker.holds() if info.name in names]
            if held:
                left[striking.where] = held
        monkeypatch.undo()
    assert at > 50
    assert left == {}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "several"])
def test_an_exit_in_an_acquire_whose_client_is_being_closed_is_raised(names: list[str]) -> None:
    """The acquire releases its ticket again, which may be slow, and would raise RuntimeError then."""
    closing = Thread(target=lambda: client.close())

    def ended() -> bool:
        return all(lease.state is State.RELEASED for lease in client._core._engine.watchdog.leases())

    def plan(call: Call) -> None:
        if call.method.startswith("try_acquire"):
            closing.start()
            until(ended)
        elif threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    client = Client(Faulty(Memory("exit as it closes"), plan))
    lock = client.multi_lock(names) if len(names) > 1 else client.lock(*names)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    closing.join(10)


def close_two(
    client: Client, first: Callable[[LeaseLost], object], error: type[BaseException], begin: Callable[[], None] = int
) -> list[str | None]:
    """Close a client that holds two locks, which raises; return the names of what the second callback was told."""
    told = list[str | None]()
    one, two = client.lock("a").acquire(), client.lock("b").acquire()
    assert one is not None
    assert two is not None
    one.on_lost(first)
    two.on_lost(lambda loss: told.append(loss.name))
    begin()
    with pytest.raises(error):
        client.close()
    return told


def test_a_close_whose_event_loop_has_ended_sends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Python then throws `GeneratorExit` into it. Nothing can be awaited any more, and another loop may be running."""

    def plan(call: Call) -> Fault | None:
        return Fault(Kind.DELAY_REPLY, 0.5) if call.method == "release" else None

    async def begins() -> Coroutine[Any, Any, None]:
        engine = client._engine
        holds = [await client.lock(name).acquire(timeout=1) for name in "abc"]
        engine.closed, leases = True, engine.watchdog.leases()
        assert len(holds) == len(leases) == 3
        closes = closing._close(engine, leases, [], Later(), 2.0)
        closes.send(None)  # to the request of the first release
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:  # as `asyncio.run` ends
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        unanswered, until = leases[0], engine.runtime.now() + 1.0
        engine.watchdog._pending.put(PendingRelease(unanswered.name, unanswered.ticket, until), until)
        return closes

    store = Faulty(Memory("ended loop"), plan)
    client = AsyncClient(store)
    closes = asyncio.run(begins())
    before = len(store.calls)
    closes.close()
    assert store.calls[before:] == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
