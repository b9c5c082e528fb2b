"""A write whose request or reply is lost is made once, or the writer gets an error that the outcome is unknown."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from leasehold import Client, Conflict, LeaseLost, NameInUse, StoreUnavailable, Unsupported
from leasehold._model import CELL_LIMIT, Capabilities, Change
from leasehold._runtimes.base import finish
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

NAME = "views"
FAULTS = [
    Fault(Kind.DROP_REQUEST),
    Fault(Kind.DROP_REPLY),
    Fault(Kind.DUPLICATE),
    Fault(Kind.DELAY_REPLY, 9.0),
    Fault(Kind.DELAY_REQUEST, 0.5),
    Fault(Kind.LATE, 0.01),
    Fault(Kind.LATE, 2.0),
]
KINDS = [pytest.param(fault, id=f"{fault.kind.value}-{fault.seconds:g}".replace(" ", "-")) for fault in FAULTS]
SEEDS = range(3)


@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("seed", SEEDS)
def test_updates_count_once_whatever_is_lost(fault: Fault, number: int, seed: int) -> None:
    """Three clients add to one number at once; one of them meets a fault. Each reported success counts once."""

    async def body(harness: Harness) -> None:
        plan = nth(number, fault, method="compare_and_set")
        told: list[str] = []

        async def add(client: Any) -> None:
            for _ in range(3):
                try:
                    await client.versioned(NAME).update(lambda seen: (seen or 0) + 1)
                    told.append("done")
                except StoreUnavailable as error:
                    told.append("unknown" if error.unknown else "refused")

        clean = harness.client("memory:")
        await harness.gather(add(harness.client(Faulty(Memory(), plan))), add(clean), add(harness.client("memory:")))
        await harness.sleep(10.0)
        value, version = await clean.versioned(NAME).get()
        done = told.count("done")
        assert value == version
        assert done <= value <= done + told.count("unknown")
        assert told.count("unknown") <= 1
        assert "refused" not in told

    SimulatedHarness(seed).run(body)


@pytest.mark.parametrize("fault", KINDS)
def test_a_plain_put_is_made_once_or_reported(fault: Fault) -> None:
    """It is never sent again: what others wrote after it would be undone."""

    async def body(harness: Harness) -> None:
        value = harness.client(Faulty(Memory(), nth(0, fault, method="compare_and_set"))).versioned(NAME)
        try:
            assert await value.put("ours") in (1, 2)  # 2: the network sent it twice
            known = True
        except StoreUnavailable as error:
            known = not error.unknown
        other = harness.client("memory:").versioned(NAME)
        seen = await other.get()
        assert seen.value == "ours" if known else seen.value in (None, "ours")

    SimulatedHarness(1).run(body)


@pytest.mark.parametrize("if_version", [0, None])
def test_a_lost_reply_followed_by_many_writes_is_reported(if_version: int | None) -> None:
    """Whether ours was among them cannot be known any more; and it is not written over theirs."""

    async def body(harness: Harness) -> None:
        others = harness.client("memory:").versioned(NAME)
        calls = 0

        def plan(call: Call) -> Fault | None:
            nonlocal calls
            calls += call.method == "compare_and_set"
            return Fault(Kind.DELAY_REPLY, 9.0) if call.method == "compare_and_set" and calls == 1 else None

        value = harness.client(Faulty(Memory(), plan), response_timeout=8.0).versioned(NAME)
        job = harness.spawn(lambda: value.put("ours", if_version=if_version))
        await harness.sleep(1.0)
        await others.put("theirs")
        with pytest.raises(StoreUnavailable) as told:
            await job.result()
        assert told.value.unknown
        assert await others.get() == ("theirs", 2)

    SimulatedHarness(1).run(body)


@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("number", range(4))
def test_once_is_once_whatever_is_lost(fault: Fault, number: int) -> None:
    """The store fails at any call on a cell: the work is done once if the doer was answered, and has one result."""

    async def body(harness: Harness) -> None:
        done: list[int] = []

        def work() -> int:
            done.append(1)
            return len(done)

        faulty = harness.client(Faulty(Memory(), nth(number, fault, method="compare_and_set")))
        results = []
        for client in (faulty, faulty, harness.client("memory:")):
            try:
                results.append(await client.once("payment", ttl=3600).run(work))
            except StoreUnavailable:
                results.append(None)
        assert results[-1] is not None
        answered = {result for result in results if result is not None}
        assert len(answered) == 1
        assert results[0] is None or done == [1]

    SimulatedHarness(2).run(body)


def test_an_outage_between_work_and_record_is_ridden_over() -> None:
    """The work cannot be undone, so recording it is tried for as long as an answer may take."""

    async def body(harness: Harness) -> None:
        down = [False]

        def plan(call: Call) -> Fault | None:
            return Fault(Kind.REFUSE) if call.method == "compare_and_set" and down[0] else None

        async def work() -> str:
            down[0] = True

            async def repair() -> None:
                await harness.sleep(2.0)
                down[0] = False

            harness.spawn(repair)
            return "done"

        assert await harness.client(Faulty(Memory(), plan)).once("payment", ttl=3600).run(work) == "done"
        assert await harness.client("memory:").once("payment", ttl=3600).done()

    SimulatedHarness(3).run(body)


def test_bad_input_is_refused_before_anything_is_sent() -> None:
    faulty = Faulty(Memory(f"input-{time.monotonic_ns()}"), lambda call: None)
    with Client(faulty) as client:
        value = client.versioned(NAME)
        cyclic: list[object] = []
        cyclic.append(cyclic)
        for bad in (object(), {1, 2}, {"x": object()}, {(1, 2): 3}):
            with pytest.raises(TypeError, match="JSON"):
                value.put(bad)
        for bad in (math.nan, math.inf, cyclic, "\ud800"):
            with pytest.raises(ValueError, match="JSON"):
                value.put(bad)
        for large in (b"x" * CELL_LIMIT, "x" * CELL_LIMIT, ["ü" * (CELL_LIMIT // 2)]):
            with pytest.raises(ValueError, match="at most 65527"):
                value.put(large)
        for option in ({"if_version": -1}, {"fence": 0}, {"if_version": 1.5}, {"fence": True}, {"if_version": "1"}):
            with pytest.raises((TypeError, ValueError), match=next(iter(option))):
                value.put(1, **option)  # type: ignore[arg-type]
        for call in (
            lambda: client.versioned(""),
            lambda: client.versioned(NAME, ttl=0),
            lambda: client.versioned(NAME, ttl=1e12),
            lambda: client.once(NAME, ttl=-1),
            lambda: client.once("x" * 510, ttl=1),
            lambda: client.cached(NAME, 0, dict),
            lambda: client.cached(NAME, 10, dict, early=10),
            lambda: client.scheduled(NAME, at_least=0, at_most=1),
            lambda: client.scheduled(NAME, at_least=1, at_most=0.01),
            lambda: value.update(str, timeout=-2),
        ):
            with pytest.raises(ValueError, match=r"must|empty|bytes"):
                call()
        assert faulty.calls == []
        assert value.put(b"x" * (CELL_LIMIT - 9)) == 1


def test_an_update_that_returns_nothing_writes_nothing() -> None:
    """Changing a list in place and forgetting to return it is not a way to lose it."""
    with Client(Memory(f"none-{time.monotonic_ns()}")) as client:
        value = client.versioned(NAME)
        value.put(["a"])
        with pytest.raises(TypeError, match="returned None"):
            value.update(lambda seen: seen.append("b"))
        assert value.get() == (["a"], 1)


def test_a_foreign_cell_is_refused() -> None:
    with Client(Memory(f"foreign-{time.monotonic_ns()}")) as client:
        finish(client.store.compare_and_set(f"versioned/{NAME}", Change(b"?")))
        with pytest.raises(NameInUse):
            client.versioned(NAME).get()


def test_a_store_without_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(cells=False))
    with Client(Memory("none")) as client:
        for make in (
            lambda: client.versioned(NAME),
            lambda: client.once(NAME, ttl=1),
            lambda: client.cached(NAME, 1, dict),
            lambda: client.scheduled(NAME, at_least=1, at_most=1),
        ):
            with pytest.raises(Unsupported):
                make()


def test_the_errors_have_facts_and_survive_a_pickle() -> None:
    import pickle

    with Client(Memory(f"facts-{time.monotonic_ns()}")) as client:
        value = client.versioned(NAME)
        value.put({"a": 1}, fence=7)
        with pytest.raises(Conflict) as caught:
            value.put(2, if_version=5)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.value, copy.version, copy.name, copy.owner) == ({"a": 1}, 1, NAME, client.owner)
        with pytest.raises(LeaseLost, match="token 3, and 7 has written"):
            value.put(2, fence=3)
