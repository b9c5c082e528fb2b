"""An asyncio client that goes on in the next event loop: the last one was closed while tasks waited in it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost, StoreUnavailable
from leasehold._runtimes.manual import ManualAsyncioRuntime, ManualClock
from leasehold.events import Event, GaveUp
from leasehold.stores import registry
from leasehold.stores.memory import Memory

LEASE = 60.0

SOON = 5.0

FIRST = ["acquire", "try", "release", "close"]
"""What the client does first in the next loop."""


def leave(work: Callable[[], Coroutine[Any, Any, Any]], there: Callable[[], object]) -> object:
    """Run a task in a loop that is closed as soon as ``there`` is true; return what keeps the task alive."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    while not there():
        loop.run_until_complete(asyncio.sleep(0.001))
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
    loop.close()
    return task


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_a_waiter_of_a_closed_loop_leaves_the_queue(
    where: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory(f"left by {first}") if where == "memory" else registry.opener(f"sqlite:{tmp_path}/locks.db")
    events, mine = list[Event](), list[AsyncHold]()
    client, other = AsyncClient(store, observer=events.append), Client(store)
    theirs = other.lock("x", lease=LEASE).acquire()
    assert theirs is not None

    async def wait() -> None:
        mine.append(await client.lock("mine", lease=LEASE).acquire())  # type: ignore[arg-type]
        await client.lock("x", lease=LEASE).acquire()

    def waits() -> bool:
        info = other.inspect("x")
        return info is not None and len(info.waiters) > 0

    def got() -> bool:
        hold = other.lock("x", lease=LEASE).acquire(timeout=SOON)
        return hold is not None and hold.release()

    kept = leave(wait, waits)
    theirs.release()

    async def go_on() -> None:
        if first == "acquire":
            async with client.lock("y"):
                pass
        elif first == "try":
            hold = None
            while hold is None:
                hold = await client.lock("x").acquire(blocking=False)
                await asyncio.sleep(0.01)
            await hold.release()
        elif first == "release":
            assert await mine[0].release()
        if first != "close":
            assert not client._engine.attempts
            assert await asyncio.to_thread(got)
            assert mine[0].held == (first != "release"), "a hold goes on"
        monkeypatch.setattr(client._engine, "close", partial(client._engine.close, LEASE))
        await client.close()

    asyncio.run(asyncio.wait_for(go_on(), 2 * SOON))
    assert got()
    gave_up = [each for each in events if isinstance(each, GaveUp) and each.why != "timeout"]
    assert [(each.why, each.queued) for each in gave_up] == [("its event loop was closed", True)]
    other.close()
    del kept


@pytest.mark.parametrize("method", ["try_acquire", "try_acquire_many", "release", "release_many"])
@pytest.mark.parametrize("arrives", [True, False], ids=["carried out", "not sent"])
def test_a_request_without_an_answer_as_its_loop_is_closed_leaves_no_lock(
    method: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory(f"{method} {arrives}")
    client, other, sent = AsyncClient(store), Client(store), list[bool]()
    request = getattr(client.store, method)

    async def silent(*args: Any, **options: Any) -> None:
        if arrives:
            await request(*args, **options)
        sent.append(True)
        await asyncio.sleep(LEASE)

    async def use() -> None:
        lock = client.multi_lock(["a", "b"], lease=LEASE) if "many" in method else client.lock("a", lease=LEASE)
        hold = await lock.acquire()
        assert hold is not None
        await hold.release()

    with monkeypatch.context() as patch:
        patch.setattr(client.store, method, silent)
        kept = leave(use, lambda: sent)

    async def go_on() -> None:
        async with client.lock("y"):
            hold = await asyncio.to_thread(other.multi_lock(["a", "b"], lease=LEASE).acquire, timeout=SOON)
            assert hold is not None
            await asyncio.to_thread(hold.release)
        await client.close()

    asyncio.run(go_on())
    other.close()
    del kept


USES: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, object]]] = {
    "ping": lambda client: client.ping(),
    "inspect": lambda client: client.inspect("kept"),
    "holds": lambda client: client.holds(),
    "locked": lambda client: client.lock("other").locked(),
    "read": lambda client: client.versioned("other").get(),
    "acquire": lambda client: client.lock("other").acquire(),
    "try": lambda client: client.lock("kept").acquire(blocking=False),
}
"""What a program may do first with a client in its next loop."""


class Kept:
    """A hold of a loop that is closed, and a clock to move."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.client = AsyncClient(Memory(f"kept {id(self)}"), runtime=ManualAsyncioRuntime(self.clock))
        self.options, self.told, self.holds = options, list[LeaseLost](), list[AsyncHold]()

    async def acquire(self) -> None:
        hold = await self.client.lock("kept", lease=LEASE, **self.options).acquire()
        assert hold is not None
        hold.on_lost(self.told.append)
        self.holds.append(hold)

    async def go_on(self, use: str, until: Callable[[], object]) -> None:
        """Use the client in another loop, in which ``until`` must come true."""
        await USES[use](self.client)
        async with asyncio.timeout(SOON):
            while not until():
                self.clock.advance(LEASE / 1000)
                await asyncio.sleep(0.005)
        await self.client.close()


@pytest.mark.parametrize("use", USES)
def test_a_hold_is_renewed_in_the_next_loop_whatever_its_client_does_there(use: str) -> None:
    kept = Kept()
    asyncio.run(kept.acquire())
    kept.clock.advance(LEASE / 2)
    asyncio.run(kept.go_on(use, lambda: kept.holds[0].remaining > LEASE * 0.9))
    assert [str(each).endswith("its client was closed") for each in kept.told] == [True]


@pytest.mark.parametrize("use", ["ping", "acquire"])
def test_a_hold_lives_through_many_short_loops(use: str) -> None:
    """As of a program that runs one for each request. Each is shorter than the pause before a renewal that resumes."""
    kept = Kept()
    asyncio.run(kept.acquire())

    async def request(number: int) -> None:
        client = kept.client
        await (client.ping() if use == "ping" else client.lock(f"{number}").acquire())
        kept.clock.advance(LEASE / 50)
        await asyncio.sleep(0.005)

    for number in range(150):
        asyncio.run(request(number))
    assert kept.holds[0].held
    asyncio.run(kept.client.close())


@pytest.mark.parametrize("use", ["ping", "acquire"])
def test_a_hold_is_renewed_in_a_loop_that_begins_just_before_its_end(use: str) -> None:
    kept = Kept()
    asyncio.run(kept.acquire())
    kept.clock.advance(LEASE * 0.98)
    asyncio.run(kept.go_on(use, lambda: kept.holds[0].remaining > LEASE * 0.9))


@pytest.mark.parametrize("under_way", [True, False])
def test_a_release_without_an_answer_is_repeated_in_the_next_loop(
    under_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, released = AsyncClient(Memory(f"pending {under_way}"), response_timeout=0.2), list[bool]()
    sent, in_time, release = asyncio.Event(), asyncio.Event(), client.store.release

    async def silent(*args: Any, within: float, **options: Any) -> bool:
        sent.set()
        await asyncio.sleep(within)
        raise StoreUnavailable("no answer", unknown=True)

    async def answers(name: str, *args: Any, **options: Any) -> bool:
        found = await release(name, *args, **options)
        if name == "kept":  # and not the probe of a ping
            released.append(found)
            in_time.set()
        return found

    async def first() -> None:
        hold = await client.lock("kept", lease=LEASE).acquire()
        assert hold is not None
        assert await hold.release() is False
        sent.clear()
        if under_way:
            await sent.wait()

    async def second() -> None:
        await client.ping()
        await asyncio.wait_for(in_time.wait(), SOON)
        await client.close()

    with monkeypatch.context() as patch:
        patch.setattr(client.store, "release", silent)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(first())
        loop.close()
        gc.collect()
        patch.setattr(client.store, "release", answers)
        asyncio.run(second())
    assert released == [True]


@pytest.mark.parametrize("use", ["ping", "acquire"])
@pytest.mark.parametrize("renew", [True, False])
def test_a_hold_whose_lease_ran_out_between_two_loops_is_lost_in_the_next_one(use: str, renew: bool) -> None:
    kept = Kept(renew=renew)
    asyncio.run(kept.acquire())
    kept.clock.advance(2 * LEASE)
    asyncio.run(kept.go_on(use, lambda: kept.told))
    assert str(kept.told[0]) == "the lease of lock 'kept' was lost: the lease expired"


@pytest.mark.parametrize("use", ["ping", "acquire"])
def test_a_hold_whose_renewal_was_under_way_as_its_loop_was_closed_is_renewed_in_the_next_one(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, sent = Kept(), list[bool]()

    async def silent(*args: Any, **options: Any) -> None:
        sent.append(True)
        await asyncio.sleep(LEASE)

    async def hold() -> None:
        await kept.acquire()
        kept.clock.advance(LEASE * 0.4)

    with monkeypatch.context() as patch:
        patch.setattr(kept.client.store, "renew", silent)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(hold())
        while not sent:
            loop.run_until_complete(asyncio.sleep(0.001))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the point
        loop.close()
    asyncio.run(kept.go_on(use, lambda: kept.holds[0].remaining > LEASE * 0.9))
