"""The sleep of a waiting ticket on Redis under asyncio: what wakes it, and that far ends share a timer of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold.stores._common.slots import Slot
from leasehold.stores.redis.connection import aio_sleep
from leasehold.stores.redis.connection.aio_sleep import Sleep, Timers

TICKET = Ticket("t", LeaseTerms(LockMode(), Owner("host", 1, "x"), 30.0))

GRANT = Granted(7, 0.0, 30.0)

now = AsyncioRuntime.now


class Bed:
    """Slots whose waiters sleep in one loop."""

    def __init__(self) -> None:
        self.timers = Timers(now)

    def take_grant(self, slot: Slot, ticket: Ticket) -> Granted | None:
        assert ticket is TICKET
        slot.news = slot.should_retry = False
        return GRANT if slot.grant_message is not None else None

    def sleep(self, slot: Slot, seconds: float = 60.0) -> Awaitable[Granted | None]:
        return Sleep(self.timers, self, slot, TICKET, now() + seconds)

    async def task(self, slot: Slot, seconds: float = 60.0) -> asyncio.Task[Granted | None]:
        async def sleeping() -> Granted | None:
            return await self.sleep(slot, seconds)

        task = asyncio.create_task(sleeping())
        await asyncio.sleep(0)
        return task

    def shared(self) -> int:
        """Return how many sleeps share a timer."""
        return sum(map(len, self.timers._spans.values()))


def in_a_loop(body: Callable[[Bed], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(body(Bed()))

    test.__name__ = body.__name__
    return test


async def awaited(sleep: Awaitable[Granted | None]) -> Granted | None:
    return await sleep


def wake(slot: Slot) -> None:
    slot.should_retry = slot.news = True
    slot.set()


@in_a_loop
async def test_a_message_wakes_it_with_the_grant(bed: Bed) -> None:
    slot = Slot("x", "t")
    task = await bed.task(slot)
    assert not task.done()
    slot.grant_message = object()  # type: ignore[assignment]
    wake(slot)
    assert await task == GRANT
    assert (slot.signal, bed.shared()) == (None, 0)


@in_a_loop
async def test_news_from_before_it_slept_are_not_missed(bed: Bed) -> None:
    for attribute in ("news", "should_retry"):
        slot = Slot("x", "t")
        setattr(slot, attribute, True)
        assert await bed.sleep(slot) is None


@in_a_loop
async def test_another_thread_may_wake_it(bed: Bed) -> None:
    slot = Slot("x", "t")
    task = await bed.task(slot)
    thread = threading.Thread(target=wake, args=(slot,))
    thread.start()
    assert await task is None
    thread.join()


@pytest.mark.parametrize("span", [0.01, 10.0])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_it_ends_in_time(span: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_sleep, "SPAN", span)

    async def body() -> None:
        bed, start = Bed(), now()
        assert await bed.sleep(Slot("x", "t"), seconds) is None
        assert now() - start >= seconds - 0.002  # the loop rounds by its clock's resolution

    asyncio.run(body())


@in_a_loop
async def test_far_ends_share_a_timer(bed: Bed) -> None:
    loop: Any = asyncio.get_running_loop()
    slots = [Slot("x", str(number)) for number in range(100)]
    tasks = [await bed.task(slot) for slot in slots]
    assert bed.shared() == 100
    assert len(loop._scheduled) <= 2
    for slot in slots:
        wake(slot)
    await asyncio.gather(*tasks)
    assert bed.shared() == 0
    bed.timers.close()
    assert all(timer.cancelled() for timer in loop._scheduled)


def test_one_that_joins_a_timer_after_the_machine_slept_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the loop stops meanwhile, the boot-time clock does not."""
    monkeypatch.setattr(aio_sleep, "SPAN", 0.01)

    async def body() -> None:
        bed, slept = Bed(), [0.0]
        bed.timers = Timers(lambda: now() + slept[0])
        until = now() + 60.0
        tasks = []
        for number in range(2):
            slot = Slot("x", str(number))
            tasks.append(asyncio.ensure_future(awaited(Sleep(bed.timers, bed, slot, TICKET, until))))
            await asyncio.sleep(0)
            slept[0] = 59.8
        assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [None, None]

    asyncio.run(body())


def test_one_that_sleeps_when_the_machine_does_ends_at_most_two_spans_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_sleep, "SPAN", 0.1)

    async def body() -> None:
        bed, slept = Bed(), [0.0]
        bed.timers = Timers(lambda: now() + slept[0])
        slot = Slot("x", "t")
        task = asyncio.ensure_future(awaited(Sleep(bed.timers, bed, slot, TICKET, now() + 60.0)))
        await asyncio.sleep(0.25)
        assert not task.done()
        slept[0] = 60.0
        assert await asyncio.wait_for(task, 10) is None

    asyncio.run(body())


@in_a_loop
async def test_few_spans_without_a_sleep_keep_a_timer(bed: Bed) -> None:
    for number in range(200):
        slot = Slot("x", "t")
        task = await bed.task(slot, 60.0 + 10.0 * number)
        wake(slot)
        await task
    assert len(bed.timers._spans) == len(bed.timers._timers) <= 65


def test_an_error_of_a_signal_handler_leaves_each_sleep_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_sleep, "SPAN", 0.05)

    async def body() -> None:
        bed, failed = Bed(), list[Sleep]()
        tasks = [await bed.task(Slot("x", str(number)), 0.12) for number in range(3)]
        add = bed.timers.add

        def interrupted(sleep: Sleep) -> None:
            if not failed:
                failed.append(sleep)
                raise RuntimeError("of a signal handler")
            add(sleep)

        monkeypatch.setattr(bed.timers, "add", interrupted)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [None] * 3
        assert failed

    asyncio.run(body())


@in_a_loop
async def test_news_that_come_just_before_its_signal_are_not_missed(bed: Bed) -> None:
    """Another thread sets them, and finds no signal yet."""

    class Late(Slot):
        @property
        def news(self) -> bool:
            return self.signal is not None or self.should_retry

        @news.setter
        def news(self, value: bool) -> None: ...

    assert await asyncio.wait_for(awaited(bed.sleep(Late("x", "t"))), 10) is None


def test_a_message_for_a_sleep_that_ends_meanwhile_fails_nowhere() -> None:
    class Ends(Slot):
        reads = 0

        @property
        def signal(self) -> Any:
            self.reads += 1
            return threading.Event() if self.reads == 1 else None

        @signal.setter
        def signal(self, value: Any) -> None: ...

    wake(Ends("x", "t"))


@in_a_loop
async def test_a_close_wakes_those_without_a_timer_of_their_own(bed: Bed) -> None:
    tasks = [await bed.task(Slot("x", str(number))) for number in range(3)]
    bed.timers.close()
    assert await asyncio.gather(*tasks) == [None] * 3


@in_a_loop
async def test_a_watch_that_is_handed_over_shortens_it(bed: Bed) -> None:
    if now() % aio_sleep.SPAN > aio_sleep.SPAN - 1.0:
        await asyncio.sleep(1.0)  # else it ends in the next span, and shares the timer of that one
    slot = Slot("x", "t")
    task = await bed.task(slot)
    slot.handed_over = now() + 0.05
    slot.news = True
    slot.set()
    await asyncio.sleep(0)
    assert not task.done()
    assert (slot.news, slot.handed_over, bed.shared()) == (False, None, 0)
    assert await task is None


@in_a_loop
async def test_one_that_is_cancelled_leaves_nothing(bed: Bed) -> None:
    for seconds in (0.5, 60.0):
        slot = Slot("x", "t")
        task = await bed.task(slot, seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (slot.signal, bed.shared()) == (None, 0)
        slot.set()


@in_a_loop
async def test_one_that_is_dropped_leaves_nothing(bed: Bed) -> None:
    async def sleeping() -> None:
        await bed.sleep(slot)

    slot = Slot("x", "t")
    work = sleeping()
    work.send(None)
    assert (slot.signal is None, bed.shared()) == (False, 1)
    work.close()
    assert (slot.signal, bed.shared()) == (None, 0)


def test_another_loop_has_its_own_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_sleep, "SPAN", 0.01)
    bed, slot = Bed(), Slot("x", "t")

    async def drop() -> None:
        await bed.task(slot, 0.5)

    async def sleep() -> None:
        assert await bed.sleep(slot, 0.5) is None

    asyncio.run(drop())
    asyncio.run(sleep())


def test_a_wake_after_its_loop_was_closed_does_nothing() -> None:
    bed, slot = Bed(), Slot("x", "t")
    loop = asyncio.new_event_loop()

    async def sleeping() -> None:
        await bed.sleep(slot)

    work = sleeping()

    async def begin() -> None:
        work.send(None)

    loop.run_until_complete(begin())
    loop.close()
    wake(slot)
    work.close()
