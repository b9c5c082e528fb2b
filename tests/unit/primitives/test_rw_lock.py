"""Read-write locks and semaphores as a client sees them: options, entries across threads and forks, what is refused."""

import asyncio
import os
import threading
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, NotHeld, StoreUnavailable, Unsupported
from leasehold._model import Capabilities
from leasehold.events import Event, Lost
from leasehold.primitives.locks.rw_lock import UpgradeableHold
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Fault, Faulty, Kind, always
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness


@pytest.fixture
def locks():
    with Client(Memory(f"rw-{os.urandom(4).hex()}")) as client:
        yield client


def elsewhere(call):
    """Return what ``call`` returns or raises in another thread."""
    came = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return came[0]


def test_a_store_that_cannot_is_refused_when_the_object_is_made(locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(shared=False, permits=False))
    with pytest.raises(Unsupported, match="shared locks"):
        locks.rw_lock("a")
    with pytest.raises(Unsupported, match="permits"):
        locks.semaphore("a", 3)
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(shared=True, permits=True, fair=False))
    for make in (lambda **options: locks.rw_lock("a", **options), lambda **options: locks.semaphore("a", 3, **options)):
        with pytest.raises(Unsupported, match="fair order"):
            make()
        assert make(fair=False)


@pytest.mark.parametrize("permits", [0, -1, 1_000_001])
def test_a_semaphore_has_permits(locks: Client, permits: int) -> None:
    with pytest.raises(ValueError, match="permits must be from 1"):
        locks.semaphore("a", permits)
    with pytest.raises(ValueError, match="n must be from 1"):
        locks.semaphore("a", 5).permits(permits)


@pytest.mark.parametrize("permits", [1.0, "1", None, True])
def test_permits_are_whole_numbers(locks: Client, permits: object) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        locks.semaphore("a", permits)  # type: ignore[arg-type]


def test_a_thread_has_entries_of_its_own(locks: Client) -> None:
    lock = locks.rw_lock("a")
    with lock.reader() as hold:
        assert isinstance(elsewhere(lambda: lock.reader().release()), NotHeld)
        other = elsewhere(lambda: lock.reader().acquire(blocking=False))
        assert other.token > hold.token, "another entry"
        assert elsewhere(lambda: lock.writer().acquire(blocking=False)) is None, (
            "not refused: that thread does not read"
        )


def test_an_upgrade_may_be_asked_for_by_another_thread(locks: Client) -> None:
    lock = locks.rw_lock("a")
    with lock.upgradeable() as hold:
        assert isinstance(hold, UpgradeableHold)
        writing = elsewhere(lambda: hold.upgrade(timeout=5))
        writing.raise_if_lost()
        assert lock.writer().acquire(blocking=False).token == writing.token, "it is this thread's"  # type: ignore[union-attr]
        lock.writer().release()
        assert writing.release()


def test_a_hold_is_upgraded_though_the_thread_that_acquired_it_has_ended(locks: Client) -> None:
    lock = locks.rw_lock("a", timeout=5)
    hold = elsewhere(lambda: lock.upgradeable().acquire())
    writing = hold.upgrade(timeout=5)
    assert writing.token > hold.token
    again = hold.upgrade(timeout=5)
    assert again.token == writing.token, "it re-enters"
    assert lock.reader().acquire(blocking=False) is None, "this thread has no part in it"
    assert again.release()
    assert lock.reader().acquire(blocking=False) is None
    assert writing.release()
    assert hold.release()
    with lock.writer():
        pass


def test_a_hold_of_an_ended_thread_does_not_take_the_entry_of_one_that_has_its_key_now(locks: Client) -> None:
    lock = locks.rw_lock("a", timeout=5)
    hold = elsewhere(lambda: lock.upgradeable().acquire())
    core = hold._core
    core._entry.caller.key = threading.get_ident()  # as the system gives a key again
    core._writer._entries.add(core._entry)
    with lock.reader():
        assert hold.upgrade(timeout=0) is None, "this thread reads; the hold is not refused for that"
    with hold.upgrade(timeout=5):
        assert elsewhere(lambda: lock.reader().acquire(blocking=False)) is None


def test_a_hold_is_upgraded_though_the_task_that_acquired_it_has_ended() -> None:
    async def body() -> None:
        async with AsyncClient(Memory(f"rw-{os.urandom(4).hex()}")) as client:
            lock = client.rw_lock("a")
            hold = await asyncio.create_task(lock.upgradeable().acquire())
            assert hold is not None
            writing = await hold.upgrade(timeout=5)
            assert writing is not None
            await writing.release()
            await hold.release()

    asyncio.run(body())


@pytest.mark.parametrize("end", ["release", "release, of an ended task", "drop"])
def test_an_upgrade_lasts_as_long_as_the_upgradeable_hold(end: str) -> None:
    """``if await hold.upgrade():`` keeps no hold of the writer."""

    async def body(harness: Harness) -> None:
        space, events = Memory("upgrades"), list[Event]()
        lock = harness.client(space, observer=events.append).rw_lock("a", lease=3.0)
        other = harness.client(space).rw_lock("a", lease=3.0)
        side = lock.upgradeable()
        hold = await (side.acquire() if end in ("release", "drop") else harness.spawn(side.acquire).result())
        assert hold is not None
        assert await hold.upgrade(timeout=30) is not None
        assert await hold.upgrade(timeout=30) is not None
        assert await other.reader().acquire(timeout=30) is None
        if end == "drop":
            del hold, side
            assert await other.writer().acquire(timeout=10) is not None
            return
        assert await hold.release()
        writing = await other.writer().acquire(timeout=0)
        assert writing is not None, "free at once"
        await harness.sleep(2.0)
        await writing.release()
        assert await lock.upgradeable().acquire(timeout=0) is not None
        assert [event for event in events if isinstance(event, Lost)] == []

    SimulatedHarness().run(body)


def test_an_upgrade_that_the_program_keeps_outlasts_those_that_it_dropped(locks: Client) -> None:
    lock = locks.rw_lock("a")
    with lock.upgradeable() as hold:
        writing = hold.upgrade()
        assert hold.upgrade() is not None
    assert writing is not None
    assert elsewhere(lambda: lock.reader().acquire(blocking=False)) is None, "still the writer's"
    writing.release()
    assert elsewhere(lambda: lock.reader().acquire(blocking=False).release()) is True  # type: ignore[union-attr]


def test_an_upgrade_that_was_lost_is_reported_at_the_end(locks: Client) -> None:
    def write() -> None:
        with locks.rw_lock("a").upgradeable() as hold:
            writing = hold.upgrade()
            assert writing is not None
            assert locks.force_release("a", writing.token)
            del writing

    with pytest.raises(LeaseLost):
        write()
    with locks.rw_lock("a").upgradeable() as hold:
        assert hold.upgrade() is not None


def test_a_cancelled_release_frees_the_upgrade_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """At whichever step; a coroutine that is closed with its event loop awaits nothing more."""
    release = MemoryStore.release

    async def slow(*args: Any, **options: Any) -> bool:
        await asyncio.sleep(0)
        freed = await release(*args, **options)
        await asyncio.sleep(0)
        return freed

    async def body() -> None:
        space = Memory(f"rw-{os.urandom(4).hex()}")
        async with AsyncClient(space) as client, AsyncClient(space) as other:
            steps, task = 0, None
            while task is None or task.cancelled():
                hold = await client.rw_lock("a").upgradeable().acquire()
                assert hold is not None
                assert await hold.upgrade() is not None
                task = asyncio.create_task(hold.release())
                for _ in range(steps := steps + 1):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                async with other.rw_lock("a", timeout=0).writer():
                    pass
            assert steps > 3
            hold = await client.rw_lock("b").upgradeable().acquire()
            assert hold is not None
            assert await hold.upgrade() is not None
            closed = hold.release()
            closed.send(None)
            closed.close()

    monkeypatch.setattr(MemoryStore, "release", slow)
    asyncio.run(body())


def test_an_upgrade_that_was_released_is_not_kept(locks: Client) -> None:
    with locks.rw_lock("a").upgradeable() as hold:
        for _ in range(5):
            assert hold.upgrade() is not None
            locks.rw_lock("a").writer().release()
            with hold.upgrade() as writing:  # type: ignore[union-attr]
                pass
        assert len(hold._core._writing) == 1
        assert not writing.held


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.DROP_REPLY])
def test_an_upgrade_that_cannot_be_confirmed_leaves_a_reader(kind: Kind) -> None:
    """The store may have forgotten the hold: only a look tells whether it may write."""
    answers = [False]

    async def body(harness: Harness) -> None:
        space = Memory("looks")
        plan = always(Fault(kind, 0.01), ["inspect"])
        client = harness.client(Faulty(space, lambda call: None if answers[0] else plan(call)))
        hold = await client.rw_lock("a").upgradeable().acquire()
        assert hold is not None
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await hold.upgrade(timeout=0)
        assert harness.now() - start < 2.0
        assert hold.held
        async with harness.client(space).rw_lock("a", timeout=0).reader():
            pass
        answers[0] = True
        writing = await hold.upgrade(timeout=0)
        assert writing is not None
        await writing.release()
        await hold.release()

    SimulatedHarness().run(body)


def test_a_hold_that_was_released_is_not_upgraded(locks: Client) -> None:
    hold = locks.rw_lock("a").upgradeable().acquire()
    assert hold is not None
    hold.release()
    with pytest.raises(NotHeld):
        hold.upgrade()


def test_the_entry_of_a_thread_that_ended_is_not_another_threads(locks: Client) -> None:
    """A thread's key may be given to the next one: it does not inherit the entry."""
    lock = locks.rw_lock("a", lease=60)
    tokens = {elsewhere(lambda: lock.reader().acquire(timeout=5).token) for _ in range(5)}  # type: ignore[union-attr]
    assert len(tokens) == 5


def test_releases_in_any_order(locks: Client) -> None:
    lock = locks.rw_lock("a")
    writer, reader = lock.writer().acquire(), lock.reader().acquire()
    again, deeper = lock.writer().acquire(), lock.reader().acquire()
    assert writer is not None and reader is not None and again is not None and deeper is not None  # noqa: PT018
    assert (writer.token, reader.token) == (again.token, deeper.token)
    for hold in (reader, writer):
        hold.release()
    assert elsewhere(lambda: lock.reader().acquire(blocking=False)) is None, "still the writer's"
    again.release()
    assert elsewhere(lambda: lock.reader().acquire(blocking=False).release())  # type: ignore[union-attr]
    deeper.release()
    assert not lock.writer().locked()


def test_a_lost_entry_is_told_at_the_next_acquire_of_any_side(locks: Client) -> None:
    lock = locks.rw_lock("a", lease=0.1, renew=False)
    hold = lock.writer().acquire()
    assert hold is not None
    threading.Event().wait(0.15)
    with pytest.raises(LeaseLost):
        lock.reader().acquire()
    with lock.reader():
        pass
    with pytest.raises(LeaseLost):
        hold.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_entries(locks: Client) -> None:
    lock, told = locks.rw_lock("a"), os.pipe()
    with lock.writer():
        pid = os.fork()
        if not pid:
            try:
                lock.writer().release()
            except NotHeld:
                os.write(told[1], b"y")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(told[1])
        assert os.read(told[0], 1) == b"y"
        os.close(told[0])
