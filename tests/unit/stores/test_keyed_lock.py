"""The keyed lock of one client: order, deadline, and callers that give up."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import CodeType

import pytest

from leasehold import StoreUnavailable
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._common.keyed_lock import KeyedLock
from support.striking import Striking, tracing


def test_waiters_of_one_key_get_their_turn_in_order_of_arrival() -> None:
    async def body() -> list[int]:
        runtime, order = AsyncioRuntime(), list[int]()
        lock = KeyedLock(runtime, "too slow")

        async def take(number: int) -> None:
            async with lock.hold("key", runtime.now() + 10):
                await asyncio.sleep(0)
                order.append(number)

        await asyncio.gather(*map(take, range(20)))
        return order

    assert asyncio.run(body()) == list(range(20))


def test_other_keys_do_not_wait() -> None:
    async def body() -> None:
        runtime = AsyncioRuntime()
        lock = KeyedLock(runtime, "too slow")
        async with lock.hold("one", runtime.now()), lock.hold("other", runtime.now()):
            pass

    asyncio.run(body())


def test_a_turn_that_does_not_come_in_time_raises_the_message() -> None:
    async def body() -> None:
        runtime = BlockingRuntime()
        lock = KeyedLock(runtime, "too slow")
        async with lock.hold("key", runtime.now()):
            with pytest.raises(StoreUnavailable, match="too slow"):
                async with lock.hold("key", runtime.now() + 0.01):
                    pass
        async with lock.hold("key", runtime.now()):  # the caller that gave up left nothing
            pass

    run_sync(body())


def test_a_waiter_that_is_cancelled_passes_its_turn_on() -> None:
    async def body() -> None:
        runtime, entered = AsyncioRuntime(), asyncio.Event()
        lock = KeyedLock(runtime, "too slow")

        async def take() -> None:
            async with lock.hold("key", runtime.now() + 10):
                entered.set()

        async with lock.hold("key", runtime.now()):
            cancelled = asyncio.ensure_future(take())
            await asyncio.sleep(0)
            last = asyncio.ensure_future(take())
            await asyncio.sleep(0)
        cancelled.cancel()  # its turn has come, and it has not run since
        await asyncio.wait_for(last, 5)
        assert cancelled.cancelled()
        assert entered.is_set()

    asyncio.run(body())


def test_threads_exclude_each_other() -> None:
    runtime, inside, most = BlockingRuntime(), 0, 0
    lock = KeyedLock(runtime, "too slow")

    async def take() -> None:
        nonlocal inside, most
        for _ in range(100):
            async with lock.hold("key", runtime.now() + 30):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=lambda: run_sync(take())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_a_turn_is_passed_on_wherever_a_signal_handler_raises() -> None:
    runtime, known, at = BlockingRuntime(), dict[CodeType, set[int]](), 0
    lock = KeyedLock(runtime, "too slow")

    async def take() -> None:
        async with lock.hold("key", runtime.now()):
            pass

    while True:
        striking = Striking(at, known)
        with suppress(SystemExit), tracing(striking):
            run_sync(take())
        run_sync(take())
        if not striking.where:
            break
        at += 1
    assert at > 10
