"""Multi-locks: what is dropped is released, what is forked is the parent's, and nothing is sent in vain."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import AsyncClient, Cancellation, Client, LeaseLost, NotHeld, StoreUnavailable
from leasehold._model import Capabilities
from leasehold.events import Acquired
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

NAMES = ["a", "b", "c"]


def counted(faulty: Faulty) -> list[str]:
    """Return the methods that were called so far, without renewals."""
    return [call.method for call in faulty.calls if call.method != "renew"]


def test_one_request_takes_all_and_one_releases_them() -> None:
    store = Faulty(Memory("multi"), lambda call: None)
    with Client(store) as client:
        with client.multi_lock(NAMES):
            pass
        assert counted(store) == ["try_acquire_many", "release_many"]


def test_more_names_than_one_request_takes() -> None:
    store = Faulty(Memory("multi"), lambda call: None)
    with Client(store) as client:
        with client.multi_lock([f"{number:04}" for number in range(250)]) as hold:
            assert len(hold.tokens) == len(client.holds()) == 250
        assert [method for method in counted(store) if method != "inspect"] == ["try_acquire_many"] * 3 + [
            "release_many"
        ] * 3
        assert client.holds() == []


def test_a_store_that_cannot_take_several_is_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.stores.memory.MemoryStore.capabilities", Capabilities())
    store = Faulty(Memory("multi"), lambda call: None)
    with Client(store) as client:
        with client.multi_lock(NAMES):
            assert client.multi_lock(["c", "d"]).acquire(timeout=0) is None
        assert set(counted(store)) == {"try_acquire", "release"}
        assert client.holds() == []


def test_a_hold_that_is_dropped_is_released() -> None:
    with Client.from_url("memory:multi") as client:
        hold = client.multi_lock(NAMES, lease=0.3).acquire()
        assert hold is not None
        del hold
        gc.collect()
        with client.multi_lock(NAMES, timeout=5):
            pass


@pytest.mark.parametrize("method", ["try_acquire", "try_acquire_many"])
def test_a_store_that_is_down_at_the_second_gives_the_first_back(method: str) -> None:
    def down(call: Call) -> Fault | None:
        return Fault(Kind.REFUSE) if call.method == method else None

    with Client(Memory("multi")) as client, Client(Faulty(Memory("there"), down)) as there:
        others = [there.lock("b")] if method == "try_acquire" else [there.lock("b"), there.lock("bb")]
        with pytest.raises(StoreUnavailable):
            client.multi_lock(["a", *others, "c"]).acquire()
        assert client.holds() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_holds_nothing() -> None:
    with Client.from_url("memory:multi") as client:
        with client.multi_lock(NAMES) as hold:
            pid = os.fork()
            if pid == 0:
                try:
                    hold.raise_if_lost()
                except LeaseLost:
                    os._exit(0 if hold.lost else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            hold.raise_if_lost()
        assert client.holds() == []


# --- a signal handler that raises during a release ------------------------------------------------------------------


class Stop(Exception):
    """What a signal handler raises."""


MEMBERS: dict[str, Callable[[AsyncClient, AsyncClient], list[Any]]] = {
    "locks of two clients": lambda one, two: [one.lock("a", renew=False), two.lock("b", renew=False)],
    "re-entrant locks": lambda one, _: [one.rlock("a", renew=False), one.rlock("b", renew=False)],
    "a lock and a writer": lambda one, _: [one.lock("a", renew=False), one.rw_lock("b", renew=False).writer()],
}


@pytest.mark.parametrize("acquired", [True, False], ids=["held", "not all acquired"])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS)
def test_what_a_signal_handler_raises_in_the_release_of_one_leaves_no_other_held(
    harness: Harness, members: Callable[[AsyncClient, AsyncClient], list[Any]], at: int, acquired: bool
) -> None:
    """Nothing else would release them: their leases are fixed, and long."""
    releases = list[str]()

    def strikes(call: Call) -> Fault | None:
        if call.method == "release":
            releases.append(call.name)
            if len(releases) == at + 1:
                raise Stop(call.name)
        return None

    async def body(harness: Harness) -> None:
        memory = Memory(f"multi {harness.name}")
        looker, taken = harness.client(memory), None
        clients = [harness.client(Faulty(memory, strikes)) for _ in range(2)]
        several = clients[0].multi_lock([*members(*clients), "c"], renew=False)
        if not acquired:
            taken = await looker.lock("c").acquire()

        async def run() -> None:
            if await several.acquire(timeout=0):
                await several.release()

        with pytest.raises(Stop):
            await run()
        assert [info.name for info in await looker.holds()] == ["c"] * (not acquired)
        if taken is not None:
            await taken.release()

    harness.run(body)


def test_a_lock_of_the_other_flavor_is_refused() -> None:
    with Client.from_url("memory:multi") as client:
        other = AsyncClient.from_url("memory:multi")
        with pytest.raises(TypeError, match="AsyncClient"):
            client.multi_lock([other.lock("a")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="same flavor"):
            other.multi_lock([client.lock("a")])  # type: ignore[list-item]


def test_locks_inside_a_multi_lock_inside_another() -> None:
    with Client.from_url("memory:multi") as client:
        inner = client.multi_lock(["b", client.semaphore("a", 2)])
        with client.multi_lock([inner, "c", "b"]) as hold:
            assert hold.names == ("a", "b", "c")
            assert repr(hold).startswith("<MultiHold 'a + b + c'")
            with pytest.raises(ValueError, match="see tokens"):
                _ = hold.token


def test_the_deadline_is_that_of_all() -> None:
    with Client.from_url("memory:multi") as client:
        with client.lock("c"):
            start = time.monotonic()
            assert client.multi_lock(NAMES).acquire(timeout=0.3) is None
            assert 0.3 <= time.monotonic() - start < 2.0
        assert client.holds() == []


def test_a_hold_is_lost_when_one_of_its_locks_is_released_by_its_own_object() -> None:
    with Client.from_url("memory:multi") as client:
        one = client.rlock("a")
        with client.multi_lock([one, "b"]) as hold:
            assert hold.held
            one.release()
            assert hold.lost
            assert not hold.held
            with pytest.raises(LeaseLost, match="'a'"):
                hold.raise_if_lost()
        with pytest.raises(NotHeld):
            hold.raise_if_lost()
        assert client.holds() == []


@pytest.mark.parametrize("outer", [True, False], ids=["renewed", "fixed"])
def test_a_member_that_was_held_before_keeps_its_options(outer: bool) -> None:
    """Lease options are those of the outermost acquire."""

    async def body(harness: Harness) -> None:
        client = harness.client(Memory("multi"))
        held = await client.rlock("a", lease=3.0, renew=outer).acquire()
        assert held is not None
        hold = await client.multi_lock([client.rlock("a", lease=3.0, renew=not outer), "b"]).acquire()
        assert hold is not None
        await harness.sleep(10.0)
        assert hold.held == held.held == outer
        for each in (hold, held):
            with contextlib.suppress(LeaseLost):
                await each.release()

    SimulatedHarness().run(body)


def test_fixed_leases_of_one_request_need_no_renewal() -> None:
    store = Faulty(Memory("multi"), lambda call: None)
    with Client(store) as client, client.multi_lock(NAMES, renew=False):
        pass
    assert [call.method for call in store.calls] == ["try_acquire_many", "release_many"]


@pytest.mark.parametrize("timeout", [None, 0])
@pytest.mark.parametrize("held_before", [0, 1])
def test_a_grant_of_several_names_that_arrives_after_the_cancellation_is_given_back(
    harness: Harness, timeout: float | None, held_before: int
) -> None:
    """As that of one name; also if other names of another client are held by then."""
    request = Fault(Kind.DELAY_REPLY, 0.3)

    async def body(harness: Harness) -> None:
        memory, acquired = Memory("cancelled"), list[str]()
        client = harness.client(
            Faulty(memory, lambda call: request if call.method == "try_acquire_many" else None),
            observer=lambda event: acquired.append(event.name) if isinstance(event, Acquired) else None,
        )
        looker = harness.client(memory)
        stop, before = Cancellation(), [looker.lock(f"0{number}") for number in range(held_before)]
        lock = client.multi_lock([*before, "a", "b"])
        job = harness.spawn(lambda: lock.acquire(timeout=timeout, cancel=stop))
        await harness.sleep(0.1)
        stop.cancel()
        assert await job.result() is None
        assert await looker.holds() == []
        assert acquired == []
        for name in "ab":
            assert await looker.inspect(name) is None

    harness.run(body)


def test_a_cancellation_after_the_grant_of_several_names_leaves_their_hold(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        stop = Cancellation()
        client = harness.client(
            Memory("granted first"), observer=lambda event: stop.cancel() if isinstance(event, Acquired) else None
        )
        hold = await client.multi_lock(["a", "b"]).acquire(cancel=stop)
        assert hold is not None
        await hold.release()

    harness.run(body)
