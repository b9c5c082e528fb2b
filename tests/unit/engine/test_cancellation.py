"""A wait that is given up from outside: at each moment, during requests that get lost, and from a signal handler."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, Cancellation, Client
from leasehold.events import Acquired, Event, GaveUp, Queued, RequestFailed
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, always, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LEASE = 30.0
SOON = 1.0

numbers = itertools.count()


def space() -> Memory:
    return Memory(f"cancellation-{next(numbers)}")


@pytest.mark.parametrize("kind", ["lock", "fair", "rlock", "multi_lock"])
def test_a_cancellation_at_every_moment_of_a_wait_and_of_the_grant(kind: str) -> None:
    """It is held and returned, or nothing is left on the store; in both cases the next one enters at once."""
    results = {held_after(kind, step) for step in range(60)}
    assert results == {True, False}, "the moments are before the grant, and after it"


def held_after(kind: str, step: int) -> bool:
    """Cancel after so many steps of time, while the holder releases in the middle; return whether it was acquired."""
    harness = SimulatedHarness(step, latency=(0.0005, 0.0005))

    async def body(harness: Harness) -> bool:
        client, other, stop = harness.client(Memory()), harness.client(Memory()), Cancellation()
        locks: dict[str, Any] = {
            "lock": client.lock("a"),
            "fair": client.lock("a", fair=True),
            "rlock": client.rlock("a"),
            "multi_lock": client.multi_lock(["a", "b"]),
        }
        hold = await other.lock("a", fair=kind == "fair").acquire()
        assert hold is not None
        job = harness.spawn(lambda: locks[kind].acquire(cancel=stop))

        async def release() -> None:
            await harness.sleep(0.006)
            await hold.release()

        releasing = harness.spawn(release)
        await harness.sleep(step * 0.0002)
        stop.cancel()
        got = await job.result()
        await releasing.result()
        if got is not None:
            got.raise_if_lost()
            assert await got.release()
        looker, start = harness.client(Memory()), harness.now()
        async with looker.multi_lock(["a", "b"]) if kind != "fair" else looker.lock("a", fair=True):
            assert harness.now() - start < 0.1
        assert await looker.holds() == []
        assert stop._attempts == {}
        return got is not None

    return harness.run(body)


@pytest.mark.parametrize("fault", [Fault(Kind.DELAY_REPLY, 0.3), Fault(Kind.DELAY_REQUEST, 0.3)], ids=["grant", "ask"])
def test_a_cancellation_during_a_request_gives_the_grant_back(harness: Harness, fault: Fault) -> None:
    """The request is executed before its release, or after the first one: in both cases it is released afterwards."""

    async def body(harness: Harness) -> None:
        memory, stop = space(), Cancellation()
        client = harness.client(Faulty(memory, nth(0, fault, method="try_acquire")))
        job = harness.spawn(lambda: client.lock("a", lease=LEASE).acquire(cancel=stop))
        await harness.sleep(0.1)
        stop.cancel()
        assert await job.result() is None
        assert await harness.client(memory).inspect("a") is None

    harness.run(body)


def test_a_cancellation_before_the_acquire_sends_nothing(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        faulty, stop = Faulty(space(), lambda call: None), Cancellation()
        client = harness.client(faulty)
        stop.cancel()
        for lock in (client.lock("a"), client.rlock("a"), client.multi_lock(["a", "b"]), client.semaphore("a", 3)):
            assert await lock.acquire(cancel=stop) is None
        assert faulty.calls == []

    harness.run(body)


def test_a_holder_that_enters_again_with_a_cancelled_object_gets_none(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        stop = Cancellation()
        async with harness.client(space()).rlock("a") as hold:
            stop.cancel()
            assert await harness.client(space()).rlock("a").acquire(cancel=stop) is None
            hold.raise_if_lost()

    harness.run(body)


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.DROP_REQUEST])
def test_a_cancellation_during_an_outage_ends_the_wait(harness: Harness, kind: Kind) -> None:
    """A waiter tolerates an outage of up to a lease; one that is cancelled ends with its present request."""

    async def body(harness: Harness) -> None:
        memory, stop, down = space(), Cancellation(), [False]

        def plan(call: Call) -> Fault | None:
            if not down[0]:
                return None
            # A store wakes its waiter before it sends the release, so that one must get through to it.
            return Fault(Kind.DROP_REPLY if call.method == "release" else kind, 0.1)

        client = harness.client(Faulty(memory, plan), response_timeout=0.5)
        async with harness.client(memory).lock("a"):
            job = harness.spawn(lambda: client.lock("a", lease=LEASE).acquire(cancel=stop))
            await harness.sleep(0.1)
            down[0] = True
            await harness.sleep(0.2)
            start = harness.now()
            stop.cancel()
            assert await job.result() is None
            assert harness.now() - start < 3.0
            down[0] = False
            await harness.sleep(1.0)
            info = await harness.client(memory).inspect("a")
            assert info is not None
            assert info.waiters == (), "the release is repeated in the background"

    harness.run(body)


class Everything(list[Event]):
    """An observer that keeps all events."""

    def wants(self, kind: type[Event]) -> bool:
        return True

    def __call__(self, event: Event) -> None:
        self.append(event)


def test_a_cancellation_at_first_contact_ends_the_attempts_to_connect(harness: Harness) -> None:
    """Nobody is told that the store answers again, or that somebody waits."""

    async def body(harness: Harness) -> None:
        stop, events = Cancellation(), Everything()
        store = Faulty(space(), always(Fault(Kind.DROP_REQUEST, 0.05)))
        client = harness.client(store, response_timeout=30, observer=events)
        job = harness.spawn(lambda: client.lock("a").acquire(cancel=stop))
        await harness.sleep(0.3)
        start = harness.now()
        stop.cancel()
        assert await job.result() is None
        assert harness.now() - start < 3.0
        assert {type(event) for event in events} == {RequestFailed, GaveUp}
        assert [event.queued for event in events if isinstance(event, GaveUp)] == [False]

    harness.run(body)


def test_what_gave_up_is_observed() -> None:
    events: list[Event] = []
    stop, memory = Cancellation(), space()
    with Client(memory) as other, Client(memory, observer=events.append) as client, other.lock("a"):
        timer = threading.Timer(0.05, stop.cancel)
        timer.start()
        assert client.lock("a").acquire(cancel=stop) is None
        timer.join()
    assert [event.why for event in events if isinstance(event, GaveUp)] == ["cancelled"]


@pytest.mark.parametrize(("kind", "acquired"), [(Queued, False), (Acquired, True)])
def test_a_cancellation_between_two_steps_of_the_acquire(kind: type[Event], acquired: bool) -> None:
    """Before the wait it counts; just after the grant it comes too late, and the hold is a good one."""
    stop, memory = Cancellation(), space()

    def observe(event: Event) -> None:
        if isinstance(event, kind):
            stop.cancel()

    with Client(memory) as other, Client(memory, observer=observe) as client:
        with other.lock("taken"):
            hold = client.lock("free" if acquired else "taken").acquire(cancel=stop)
            if hold is not None:
                assert stop.cancelled
                assert hold.held
                assert hold.release()
        assert (hold is not None) == acquired
        assert other.holds() == []


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_signal_handler_may_cancel(store: str, tmp_path: Path) -> None:
    """The handler interrupts the wait itself, and takes nothing that the interrupted frame may hold."""
    where = "memory:" + str(next(numbers)) if store == "memory" else f"sqlite:{tmp_path}/locks.db"
    stops: list[Cancellation] = []
    before = signal.signal(signal.SIGALRM, lambda *_: stops[-1].cancel())
    try:
        with Client.from_url(where) as other, Client.from_url(where) as client, other.lock("a"):
            for number in range(30):
                stops.append(Cancellation())
                signal.setitimer(signal.ITIMER_REAL, 0.02 + number * 0.0007)
                start = time.monotonic()
                assert client.lock("a", lease=LEASE).acquire(cancel=stops[-1]) is None
                assert time.monotonic() - start < SOON
            info = other.inspect("a")
            assert info is not None
            assert info.waiters == ()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_signal_handler_may_cancel_while_the_event_loop_sleeps(store: str, tmp_path: Path) -> None:
    """No timer is due for seconds, and what a handler puts into the queue of a loop does not wake it by itself."""
    where = "memory:" + str(next(numbers)) if store == "memory" else f"sqlite:{tmp_path}/locks.db"
    stops: list[Cancellation] = []

    async def wait() -> None:
        async with AsyncClient.from_url(where) as other, AsyncClient.from_url(where) as client, other.lock("a"):
            for number in range(5):
                stops.append(Cancellation())
                signal.setitimer(signal.ITIMER_REAL, 0.1 + number * 0.0007)
                start = time.monotonic()
                assert await client.lock("a", lease=LEASE).acquire(cancel=stops[-1]) is None
                assert time.monotonic() - start < LEASE / 6, "the next timer is that of the renewal, at a third"
            info = await other.inspect("a")
            assert info is not None
            assert info.waiters == ()

    before = signal.signal(signal.SIGALRM, lambda *_: stops[-1].cancel())
    try:
        asyncio.run(wait())
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_that_wait_and_are_cancelled_leave_nothing() -> None:
    """While others take and release the name all the time."""
    memory, until = space(), time.monotonic() + 2.0
    stops = [Cancellation() for _ in range(40)]
    ended: list[bool] = []

    def work(client: Client, mine: list[Cancellation]) -> None:
        for stop in mine:
            while time.monotonic() < until:
                hold = client.lock("a", lease=LEASE).acquire(cancel=stop)
                if hold is None:
                    break
                hold.raise_if_lost()
                assert hold.release()
        ended.append(True)

    with Client(memory) as one, Client(memory) as other:
        threads = [
            threading.Thread(target=work, args=(client, stops[start::4]))
            for start, client in enumerate((one, other, one, other))
        ]
        for thread in threads:
            thread.start()
        for stop in stops:
            time.sleep(0.02)
            stop.cancel()
        for thread in threads:
            thread.join(10)
        assert ended == [True] * 4
        assert one.holds() == []
        assert all(stop._attempts == {} for stop in stops)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_cancel_the_wait_of_its_parent(tmp_path: Path) -> None:
    where, stop, got = f"sqlite:{tmp_path}/locks.db", Cancellation(), list[object]()
    with Client.from_url(where) as other, Client.from_url(where) as client:
        hold = other.lock("a").acquire()
        assert hold is not None
        thread = threading.Thread(target=lambda: got.append(client.lock("a", lease=LEASE).acquire(cancel=stop)))
        thread.start()
        time.sleep(0.2)
        child = os.fork()
        if not child:
            try:
                stop.cancel()
                time.sleep(0.2)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert not got
        info = other.inspect("a")
        assert info is not None
        assert len(info.waiters) == 1
        hold.release()
        thread.join(5)
        assert got != [None]


def test_a_cancellation_keeps_no_lock_and_no_client() -> None:
    stop, memory = Cancellation(), space()
    with Client(memory) as client:
        hold = client.lock("a").acquire(cancel=stop)
        assert hold is not None
        assert client.lock("a").acquire(timeout=0.01, cancel=stop) is None
        hold.release()
        ref = weakref.ref(hold)
        del hold
        gc.collect()
        assert ref() is None
    assert stop._attempts == {}
    assert repr(stop) == "<Cancellation>"
    stop.cancel()
    assert repr(stop) == "<Cancellation cancelled>"


@pytest.mark.parametrize("wrong", [threading.Event(), True, lambda: None])
def test_what_is_no_cancellation_is_refused(wrong: Any) -> None:
    with Client(space()) as client:
        for lock in (client.lock("a"), client.rlock("a"), client.multi_lock(["a"]), client.semaphore("a", 2)):
            with pytest.raises(TypeError, match=r"cancel must be a leasehold\.Cancellation, not"):
                lock.acquire(cancel=wrong)
