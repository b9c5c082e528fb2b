"""Several names whose release is interrupted, also a second time, or has no answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import CodeType
from typing import Any

import pytest
from engine_cases.late import force_release, space

from leasehold import AsyncClient, Client
from leasehold._engine import fast_path, releases
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease
from leasehold._engine.watchdog.background import RELEASE_WITHIN
from leasehold.events import Event, Lost, Released
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness, SimulatedHarness
from support.patience import until_in
from support.striking import Striking, tracing

NAMES = ["a", "b", "c", "d", "e"]

Plan = Callable[[Call], Fault | None]


class Stop(Exception):
    """What a signal handler raises, such as a soft time limit."""


@pytest.fixture(params=[True, False], ids=["in one request", "one by one"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the store releases several names in one request."""
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, batches=request.param))
    return bool(request.param)


class Interrupts:
    """A plan that raises in so many releases from the ``first`` one on."""

    def __init__(self, error: type[BaseException], first: int, number: int) -> None:
        self.error, self.at, self.releases, self.acquires = error, range(first, first + number), 0, 0

    def __call__(self, call: Call) -> Fault | None:
        if call.method in ("release", "release_many"):
            self.releases += 1
            if self.releases - 1 in self.at:
                raise self.error
        return None


async def nothing_is_held(harness: Harness, looker: AsyncClient) -> None:
    async def none() -> bool:
        return await looker.holds() == []

    await until_in(harness, none, within=5.0)


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_a_release_that_is_interrupted_twice_is_sent_in_the_background(
    harness: Harness, batches: bool, error: type[BaseException], first: int
) -> None:
    """A user whose store is slow presses Ctrl-C again. The leases are long, and the watchdog has forgotten them."""
    if error is KeyboardInterrupt and not isinstance(harness, BlockingHarness):
        pytest.skip("it would leave the event loop")
    if batches and first:
        pytest.skip("there is one request")

    async def body(harness: Harness) -> None:
        memory = space()
        looker, client = harness.client(memory), harness.client(Faulty(memory, Interrupts(error, first, 2)))
        hold = await client.multi_lock(NAMES, lease=60.0).acquire()
        assert hold is not None
        with pytest.raises(error):
            await hold.release()
        await nothing_is_held(harness, looker)

    harness.run(body)


@pytest.mark.parametrize("sent", [True, False], ids=["in the request", "before it"])
@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]], ids=["one", "several"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_a_second_exit_at_any_step_of_the_repeated_release_leaves_no_lock_held(
    monkeypatch: pytest.MonkeyPatch, names: list[str], sent: bool
) -> None:
    """The terminal sends SIGINT to the whole process group, and a wrapper that forwards it sends it once more."""
    left, known, release_again = dict[str, list[str]](), dict[CodeType, set[int]](), releases.release_again

    async def traced(engine: Engine, leases: list[Lease]) -> None:
        with tracing(striking):
            await release_again(engine, leases)

    def fails(engine: Engine, lease: Lease) -> bool:
        raise SystemExit

    for module in (releases, fast_path):
        monkeypatch.setattr(module, "release_again", traced)
    if not sent:
        monkeypatch.setattr(Engine, "begin_release", fails)
    memory = space()
    with Client(memory) as looker:
        for at in itertools.count(1):  # the start of the call itself is before its first line
            client, striking = Client(Faulty(memory, Interrupts(SystemExit, 0, sent))), Striking(at, known)
            lock = client.multi_lock(names, lease=60.0) if len(names) > 1 else client.lock(*names, lease=60.0)
            hold = lock.acquire()
            assert hold is not None
            with suppress(SystemExit):
                hold.release()
            assert hold._core._has_ended(), striking.where  # else the watchdog reports it as lost
            client.close()  # the watchdog sends what is pending
            if not striking.where:
                break
            if held := [info.name for info in looker.holds()]:
                left[striking.where] = held
                break
    assert left == {}
    assert at > 30


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_acquire_that_is_interrupted_twice_is_released_in_the_background(
    harness: Harness, error: type[BaseException]
) -> None:
    if error is KeyboardInterrupt and not isinstance(harness, BlockingHarness):
        pytest.skip("it would leave the event loop")
    releases = Interrupts(error, 0, 1)
    claims = list[Call]()

    def plan(call: Call) -> Fault | None:
        if call.method != "try_acquire_many":
            return releases(call)
        claims.append(call)
        if len(claims) > 1:
            raise error
        return Fault(Kind.DROP_REPLY)  # it holds all

    async def body(harness: Harness) -> None:
        memory = space()
        looker, client = harness.client(memory), harness.client(Faulty(memory, plan))
        with pytest.raises(error):
            await client.multi_lock(NAMES, lease=60.0).acquire()
        await nothing_is_held(harness, looker)

    harness.run(body)


@pytest.mark.parametrize("what", ["acquire", "release"])
@pytest.mark.parametrize("fault", [Kind.DELAY_REQUEST, Kind.DELAY_REPLY])
def test_a_program_that_cancels_all_its_tasks_twice_leaves_no_name_held(batches: bool, what: str, fault: Kind) -> None:
    """The second cancellation reaches the shielded task of the clean-up, too."""

    def plan(call: Call) -> Fault | None:
        return Fault(fault, 0.1) if slow and call.method != "renew" else None

    slow = list[bool]()

    async def body(harness: Harness) -> None:
        memory = space()
        looker, client = harness.client(memory), harness.client(Faulty(memory, plan))
        lock = client.multi_lock(NAMES, lease=60.0)
        hold = await lock.acquire() if what == "release" else None
        slow.append(True)
        task = asyncio.ensure_future(lock.acquire() if hold is None else hold.release())
        for _ in range(2):
            await asyncio.sleep(0.03)
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.clear()
        await nothing_is_held(harness, looker)

    AsyncioHarness().run(body)


def plain(client: AsyncClient, name: str) -> Any:
    return client.lock(name, lease=600.0)


def reentrant(client: AsyncClient, name: str) -> Any:
    return client.rlock(name, lease=600.0)


def writer(client: AsyncClient, name: str) -> Any:
    return client.rw_lock(name, lease=600.0).writer()


def permits(client: AsyncClient, name: str) -> Any:
    return client.semaphore(name, 3, lease=600.0).permits(1)


def mixed(client: AsyncClient, name: str) -> Any:
    return (plain if int(name) % 3 else reentrant)(client, name)


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("number", [5, 250])
@pytest.mark.parametrize("kind", [plain, reentrant, writer, permits, mixed])
def test_the_release_of_many_names_takes_no_longer_than_that_of_one_if_the_store_is_silent(
    batches: bool, kind: Callable[[AsyncClient, str], Any], number: int, interrupted: bool
) -> None:
    def plan(call: Call) -> Fault | None:
        if call.method not in ("release", "release_many") or not silent:
            return None
        if interrupted and len(silent) == 1:
            silent.append(True)
            raise Stop
        return Fault(Kind.DROP_REQUEST, 60.0)

    silent = list[bool]()

    async def body(harness: Harness) -> None:
        memory = space()
        looker, client = harness.client(memory), harness.client(Faulty(memory, plan))
        hold = await client.multi_lock([kind(client, f"{each:03}") for each in range(number)]).acquire()
        assert hold is not None
        silent.append(True)
        start = harness.now()
        if interrupted:
            with pytest.raises(Stop):
                await hold.release()
        else:
            assert await hold.release() is False
        assert harness.now() - start < 2 * RELEASE_WITHIN
        silent.clear()
        await nothing_is_held(harness, looker)

    SimulatedHarness().run(body)


@pytest.mark.parametrize("kind", [plain, reentrant, mixed])
def test_names_that_a_slow_store_releases_one_by_one_are_all_confirmed(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[AsyncClient, str], Any]
) -> None:
    """The time limit counts only for a store that does not answer."""
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, batches=False))

    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), lambda call: Fault(Kind.DELAY_REQUEST, 0.5)))
        hold = await client.multi_lock([kind(client, str(each)) for each in range(7)]).acquire()
        assert hold is not None
        assert await hold.release() is True

    SimulatedHarness().run(body)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_release_reports_each_name_as_lost_or_as_released(harness: Harness, times: int) -> None:
    ends = list[tuple[str, str]]()

    def observe(event: Event) -> None:
        if isinstance(event, Lost | Released):
            ends.append((type(event).__name__, event.name))

    async def body(harness: Harness) -> None:
        memory = space()
        other = harness.client(memory)
        client = harness.client(Faulty(memory, Interrupts(Stop, 0, times)), observer=observe)
        hold = await client.multi_lock(NAMES, lease=1.5).acquire()
        assert hold is not None
        await force_release(other, "a")
        await until_in(harness, lambda: hold.lost and ends)  # the observer is told just after it is lost
        with pytest.raises(Stop):
            await hold.release()
        assert sorted(ends) == [("Lost", "a"), *(("Released", name) for name in NAMES[1:])]

    harness.run(body)


def test_an_interrupted_release_of_a_lost_lock_reports_no_release() -> None:
    ends = list[str]()

    def observe(event: Event) -> None:
        if isinstance(event, Lost | Released):
            ends.append(type(event).__name__)
            if len(ends) == 1:
                raise KeyboardInterrupt

    with Client(space(), observer=observe) as client:
        hold = client.lock("a", lease=0.3).acquire()
        assert hold is not None
        client._core._engine.watchdog.forget(hold._core._lease)  # so that the release finds the loss
        time.sleep(0.3)
        with pytest.raises(KeyboardInterrupt):
            hold.release()
    assert ends == ["Lost"]
