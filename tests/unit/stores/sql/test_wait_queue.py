"""The line of those who wait for a lock that a session holds, without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import Job, finish
from leasehold._runtimes.blocking import BlockingRuntime, ThreadJob, ThreadSignal
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.wait_queue import WaitQueues
from leasehold.stores._sql.session.waiter import WaitQueue
from leasehold_lab.runtimes.harnesses import Harness


class Taken:
    """Sessions of a server where another session has every lock."""

    def __init__(self) -> None:
        self.open: list[object] = []

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[object, bool]:
        self.open.append(object())
        return self.open[-1], False

    async def wait(self, session: object, name: str, until: object) -> None:
        """Wait for ever; no test gets so far."""

    async def free(self, session: object, name: str, until: float, *, has: bool) -> None:
        self.close(session)

    async def end(self, session: object, name: str, until: float) -> None:
        self.close(session)

    def close(self, session: object) -> None:
        self.open.remove(session)


class Free(Taken):
    """Those where each lock is free."""

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[object, bool]:
        session, _ = await super().try_lock(name, ticket, until)
        return session, True


class Granting(Taken):
    """Those where the lock is free a moment later."""

    async def wait(self, session: object, name: str, until: object) -> None:
        time.sleep(0.1)  # noqa: ASYNC251 it blocks its thread


class Interrupted(ThreadSignal):
    """A signal whose setter loses the processor as soon as it is set."""

    def set(self) -> None:
        super().set()
        time.sleep(0.2)


class Stalling(BlockingRuntime):
    """One with such signals."""

    def signal(self) -> ThreadSignal:
        return Interrupted()


class Threadless(BlockingRuntime):
    """One that can start no thread."""

    def spawn_loop(self, work: object, name: str) -> Job:
        raise RuntimeError("can't start new thread")


class Idle(BlockingRuntime):
    """One whose jobs never get their turn."""

    def spawn_loop(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        self.job = ThreadJob(work, name)
        return self.job


def ticket(number: int) -> Ticket:
    return Ticket(f"t{number}", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=30.0))


def test_a_session_that_nobody_can_wait_on_is_not_parked() -> None:
    """Else all in line would wait for it for good."""
    sessions = Taken()
    runtime = Threadless()
    lines: WaitQueues[object] = WaitQueues(runtime, sessions)
    first, second = (lines.enter("x", ticket(number)) for number in (1, 2))
    until = runtime.now() + 5
    with pytest.raises(RuntimeError, match="thread"):
        finish(lines.session_for(first, until))
    assert not sessions.open
    assert lines.parked(first) is None
    assert first.signal.is_set()
    finish(lines.leave(first, until))
    assert second.signal.is_set()
    with pytest.raises(RuntimeError, match="thread"):
        finish(lines.session_for(second, until))  # it asks
    finish(lines.leave(second, until))
    assert not sessions.open
    assert not lines.has_waiters("x")


def test_who_has_a_session_parked_for_it_sleeps_until_that_has_the_lock() -> None:
    """Else it gets a retry at once, while the answer of the server may be on the way."""
    runtime = Idle()
    lines: WaitQueues[object] = WaitQueues(runtime, Taken())
    first, second = (lines.enter("x", ticket(number)) for number in (1, 2))
    until = runtime.now() + 5
    assert finish(lines.session_for(first, until)) is None
    assert lines.parked(first) is not None
    assert not first.signal.is_set()
    assert finish(lines.session_for(second, until)) is None
    finish(lines.leave(first, until))
    assert lines.parked(second) is not None
    assert not second.signal.is_set()


def test_who_comes_first_when_another_is_passed_over_is_told() -> None:
    """One behind it found out, and does not ask for it."""
    runtime = Idle()
    lines: WaitQueues[object] = WaitQueues(runtime, Taken())
    silent, second, third = (lines.enter("x", ticket(number)) for number in (1, 2, 3))
    silent.last_seen -= 31.0
    until = runtime.now() + 5
    assert finish(lines.session_for(third, until)) is None
    assert lines.get(silent.ticket.id) is None
    assert second.signal.is_set()
    assert not third.signal.is_set()


def test_a_waiter_whose_process_was_stopped_since_it_entered_is_not_passed_over_by_itself() -> None:
    runtime = Idle()
    lines: WaitQueues[object] = WaitQueues(runtime, Taken())
    waiter = lines.enter("x", ticket(1))
    waiter.last_seen -= 31.0
    assert finish(lines.session_for(waiter, runtime.now() + 5)) is None
    assert lines.get(waiter.ticket.id) is waiter


class InOrder(Taken):
    """Those of a server that grants the lock to who waits for it, as soon as it is ``unlocked``."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self.waiting, self.unlocked = harness.event(), harness.event()

    async def wait(self, session: object, name: str, until: object) -> None:
        self.waiting.set()
        assert await self.unlocked.wait(60.0)


def test_a_waiter_that_asks_again_keeps_its_place_in_the_queue_of_the_server(harness: Harness) -> None:
    """It closed its session, so a later waiter of another client was served first."""

    async def body(harness: Harness) -> None:
        sessions = InOrder(harness)
        queues: WaitQueues[object] = WaitQueues(harness.runtime, sessions)
        waiter, until = queues.enter("x", ticket(1)), harness.now() + 60
        assert await queues.session_for(waiter, until) is None
        assert await sessions.waiting.wait(5.0)
        session = queues.parked(waiter)
        assert await queues.session_for(waiter, until) is None
        assert sessions.open == [session]
        sessions.unlocked.set()
        assert await queues.wait_for_session(waiter, until) is session

    harness.run(body)


def test_a_waiter_that_looks_just_before_it_has_its_session_is_told_after_that() -> None:
    """The thread that hands it over may be stopped between the two."""
    runtime = Stalling()
    lines: WaitQueues[object] = WaitQueues(runtime, Granting())
    waiter = lines.enter("x", ticket(1))
    assert finish(lines.session_for(waiter, runtime.now() + 5)) is None
    began = time.monotonic()
    assert finish(lines.wait_for_session(waiter, runtime.now() + 5)) is not None
    assert time.monotonic() - began < 2.5


def test_a_session_whose_token_is_taken_is_not_given_to_another() -> None:
    """Neither when its waiter leaves meanwhile, nor when it was silent: it would serve two."""
    runtime = Idle()
    sessions = Free()
    lines: WaitQueues[object] = WaitQueues(runtime, sessions)
    first, second, third = (lines.enter("x", ticket(number)) for number in (1, 2, 3))
    until = runtime.now() + 5
    mine = finish(lines.session_for(first, until))
    assert mine is not None
    first.last_seen -= 31.0
    assert finish(lines.session_for(second, until)) is None
    assert finish(lines.session_for(first, until)) is mine
    finish(lines.leave(first, until))
    assert mine in sessions.open
    lines.granted(first)
    assert finish(lines.session_for(second, until)) not in (None, mine)
    assert finish(lines.session_for(third, until)) is None


class Interfering(Taken):
    """Those that let something happen while a lock is tried, and then have no connection."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def try_lock(self, name: str, ticket: Ticket, until: float) -> tuple[object, bool]:
        self._meanwhile()
        raise StoreUnavailable("no connection")


def test_the_next_waiter_is_notified_when_an_attempt_ends_whose_waiter_has_left() -> None:
    """It had found that the first one tries, and slept."""
    runtime = Idle()
    until = runtime.now() + 5

    def meanwhile() -> None:
        assert finish(lines.session_for(second, until)) is None
        second.signal.clear()
        finish(lines.leave(first, until))
        second.signal.clear()  # it looks once more, and the first one still tries

    lines: WaitQueues[object] = WaitQueues(runtime, Interfering(meanwhile))
    first, second = (lines.enter("x", ticket(number)) for number in (1, 2))
    with pytest.raises(StoreUnavailable):
        finish(lines.session_for(first, until))
    assert second.signal.is_set()


def test_a_session_that_an_interruption_has_just_parked_is_not_parked_any_more() -> None:
    """It was closed, and all in line waited for it."""

    class Parking(WaitQueue[object]):
        """One that is interrupted as soon as a session is parked."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "parked" and value is not None:
                raise KeyboardInterrupt

    sessions, runtime = Taken(), Idle()
    lines: WaitQueues[object] = WaitQueues(runtime, sessions)
    waiter = lines.enter("x", ticket(1))
    lines._wait_queues[waiter.key].__class__ = Parking
    with pytest.raises(KeyboardInterrupt):
        finish(lines.session_for(waiter, runtime.now() + 5))
    assert not sessions.open
    assert lines.parked(waiter) is None
