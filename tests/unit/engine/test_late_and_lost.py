"""Read-write locks of which a part is lost, and single names whose grant or loss comes late."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from engine_cases.late import force_release, space

from leasehold import LeaseLost
from leasehold._model import Granted, Ticket
from leasehold.testing import TestClient
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness, SimulatedHarness

# --- read-write locks --------------------------------------------------------------------------------------------


def test_an_upgrade_after_the_loss_of_its_reader_raises_lease_lost(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client, other = harness.client(memory), harness.client(memory)
        reading = await other.rw_lock("a", lease=30.0).reader().acquire()
        hold = await client.rw_lock("a", lease=0.4, renew=False).upgradeable().acquire()
        assert reading is not None
        assert hold is not None
        ended = harness.event()

        async def release_late() -> None:
            await harness.sleep(0.6)
            await reading.release()
            ended.set()

        harness.spawn(release_late)
        with pytest.raises(LeaseLost):
            await hold.upgrade(timeout=5)
        assert await ended.wait(5.0)
        assert await other.holds() == []

    harness.run(body)


def test_a_lost_side_raises_at_each_of_its_releases(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        reader = client.rw_lock("a", lease=1.3, renew=False).reader()
        outer, inner = await reader.acquire(), await reader.acquire()
        assert outer is not None
        assert inner is not None
        await harness.sleep(1.4)
        for hold in (inner, outer):
            with pytest.raises(LeaseLost):
                await hold.release()

    harness.run(body)


def test_a_hold_that_may_be_upgraded_is_a_block_of_its_own(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        lock = client.rw_lock("a")
        got = await lock.upgradeable().acquire()
        assert got is not None
        async with got as hold:
            writing = await hold.upgrade()
            assert writing is not None
            await writing.release()
            assert await lock.writer().locked()
        assert not await lock.writer().locked()

    harness.run(body)


# --- one name ----------------------------------------------------------------------------------------------------


def test_a_grant_that_arrives_with_the_notification_needs_no_further_request(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        memory, asked = space(), list[str]()
        client, other = harness.client(memory), harness.client(memory)
        store = (client.blocking._core if hasattr(client, "blocking") else client).store
        try_acquire, wait = store.try_acquire, store.wait

        async def counted(*args: Any, **options: Any) -> Any:
            asked.append("try_acquire")
            return await try_acquire(*args, **options)

        async def brings(name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
            await wait(name, ticket, mark, timeout=timeout)
            answer = await try_acquire(name, ticket, join=True, within=1.0)
            return answer if isinstance(answer, Granted) else None

        monkeypatch.setattr(store, "try_acquire", counted)
        monkeypatch.setattr(store, "wait", brings)
        first = await other.lock("a").acquire()
        assert first is not None
        job = harness.spawn(client.lock("a").acquire)
        await harness.sleep(0.2)
        await first.release()
        hold = await job.result()
        assert hold is not None
        hold.raise_if_lost()
        assert asked == ["try_acquire"]

    harness.run(body)


def test_a_fixed_lease_that_counts_from_long_ago_ends_in_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a session that was renewed last before it was asked for: it ends before it would be looked at."""

    async def body(harness: Harness) -> None:
        client, told = harness.client(space()), list[float]()
        store = (client.blocking._core if hasattr(client, "blocking") else client).store
        try_acquire = store.try_acquire

        async def since_long_ago(*args: Any, **options: Any) -> Any:
            answer = await try_acquire(*args, **options)
            return answer._replace(since=answer.since - 2.4)

        monkeypatch.setattr(store, "try_acquire", since_long_ago)
        hold = await client.lock("a", lease=3.0, renew=False).acquire()
        assert hold is not None
        assert hold.remaining < 0.6
        start = harness.now()
        hold.on_lost(lambda _: told.append(harness.now() - start))
        await harness.sleep(0.9)
        assert len(told) == 1, "it is told at its deadline, and not when a renewal would be due"

    harness.run(body)


def test_an_interrupted_block_raises_lease_lost_even_if_its_hold_was_released_inside() -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())

        async def block() -> None:
            async with client.lock("a", lease=0.3) as hold:
                await force_release(client, "a")
                try:
                    await harness.sleep(30.0)
                finally:
                    with pytest.raises(LeaseLost):
                        await hold.release()

        with pytest.raises(LeaseLost):
            await block()

    for harness in (AsyncioHarness(), SimulatedHarness()):
        harness.run(body)


# --- holds that share a lease ------------------------------------------------------------------------------------

SHARED: dict[str, Callable[..., Any]] = {
    "rlock": lambda client, **fixed: client.rlock("a", **fixed),
    "reader": lambda client, **fixed: client.rw_lock("a", **fixed).reader(),
    "writer": lambda client, **fixed: client.rw_lock("a", **fixed).writer(),
    "multi_lock of an rlock": lambda client, **fixed: client.multi_lock([client.rlock("a", **fixed), "b"], **fixed),
}


def shared(kind: str, client: Any, *, lease: float = 1.3) -> Any:
    """Return a lock whose holds share a lease, which nobody renews."""
    return SHARED[kind](client, lease=lease, renew=False)


def collect_young() -> None:
    """Collect what was made just now: a full collection of a worker's heap may take longer than the leases here."""
    gc.collect(1)


class Tell:
    """A callback; it is equal to all others of its list."""

    def __init__(self, told: list[str], who: str) -> None:
        self.told = told
        self.who = who

    def __call__(self, error: LeaseLost) -> None:
        self.told.append(self.who)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tell) and other.told is self.told

    def __hash__(self) -> int:
        return id(self.told)


@pytest.mark.parametrize(
    ("outer_kind", "inner_kind"),
    [("rlock", "rlock"), ("rlock", "multi_lock of an rlock"), ("multi_lock of an rlock", "rlock")],
)
def test_a_hold_that_was_released_hears_of_no_later_loss(harness: Harness, outer_kind: str, inner_kind: str) -> None:
    """The other holds of the lease do, each once, though their callbacks are equal."""

    async def body(harness: Harness) -> None:
        client, told = harness.client(space()), list[str]()
        outer, kept = await shared(outer_kind, client).acquire(), await shared("rlock", client).acquire()
        outer.on_lost(Tell(told, "outer"))
        kept.on_lost(Tell(told, "kept"))
        for _ in range(3):
            async with shared(inner_kind, client) as inner:
                inner.on_lost(Tell(told, "inner"))
            inner.on_lost(Tell(told, "released"))
        await harness.sleep(2.0)
        assert outer.lost
        assert kept.lost
        assert not inner.lost
        assert sorted(told) == ["kept", "outer"]

    harness.run(body)


@pytest.mark.parametrize("kind", SHARED)
def test_a_hold_that_was_released_keeps_no_callback(harness: Harness, kind: str) -> None:
    async def body(harness: Harness) -> None:
        client, callbacks = harness.client(space()), list[weakref.ref[Any]]()
        outer = await shared("rlock" if "rlock" in kind else kind, client, lease=60.0).acquire()
        for _ in range(3):
            inner = await shared(kind, client, lease=60.0).acquire()

            def tell(error: LeaseLost) -> None:
                raise AssertionError("it was released before")

            inner.on_lost(tell)
            callbacks.append(weakref.ref(tell))
            del tell
            await inner.release()
        collect_young()
        assert [ref() for ref in callbacks] == [None] * 3
        await outer.release()

    harness.run(body)


@pytest.mark.parametrize("kind", ["rlock", "reader", "writer"])
def test_a_dropped_hold_that_was_released_through_another_lock_object_hears_of_no_loss(
    harness: Harness, kind: str
) -> None:
    async def body(harness: Harness) -> None:
        client, told = harness.client(space()), list[str]()
        outer, another = await shared(kind, client).acquire(), shared(kind, client)
        outer.on_lost(Tell(told, "outer"))
        for who in ("dropped", "dropped and released"):
            (await shared(kind, client).acquire()).on_lost(Tell(told, who))
        collect_young()
        (await another.acquire()).on_lost(Tell(told, "released"))
        await another.release()
        assert another.owned()
        await another.release()
        await harness.sleep(2.0)
        assert outer.lost
        assert sorted(told) == ["dropped", "outer"]

    harness.run(body)


@pytest.mark.parametrize("kind", SHARED)
def test_a_hold_hears_of_the_loss_that_its_own_release_finds(kind: str) -> None:
    with TestClient() as client:
        told = threading.Event()
        shared("rlock" if "rlock" in kind else kind, client).acquire()
        inner = shared(kind, client).acquire()
        inner.on_lost(lambda _: told.set())
        client.clock.advance(2.0)
        with pytest.raises(LeaseLost):
            inner.release()
        assert told.wait(10.0)


@pytest.mark.parametrize("kind", [BlockingHarness, AsyncioHarness], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("renew", "part"), [(True, 1 / 3), (False, 2 / 3)])
def test_a_holder_whose_machine_was_suspended_is_called_back_at_the_next_timer(
    kind: type[Harness], renew: bool, part: float
) -> None:
    """The clock of leases goes on while a machine is suspended, that of timers does not."""
    lease, busy = 1.5, 1.0

    async def body(harness: Harness) -> None:
        client, told, suspended = harness.client(space()), harness.event(), [0.0]
        runtime = getattr(client, "_core", client)._engine.runtime
        real = runtime.now
        runtime.now = lambda: real() + suspended[0]  # type: ignore[method-assign]
        hold = await client.lock("a", lease=lease, renew=renew).acquire()
        assert hold is not None
        hold.on_lost(lambda loss: told.set())
        await harness.sleep(0.4 * lease)  # it is renewed by now, or has its timer
        suspended[0], start = 3600.0, time.monotonic()
        assert await told.wait(10.0)
        assert time.monotonic() - start <= part * lease + busy
        with pytest.raises(LeaseLost):
            hold.raise_if_lost()

    kind().run(body)
