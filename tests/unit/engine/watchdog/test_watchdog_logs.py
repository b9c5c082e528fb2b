"""Whatever the log of the program does, it ends no thread or task of the client, and costs no other holder."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AsyncClient, AsyncHold, Client, StoreUnavailable
from leasehold._runtimes.manual import ManualAsyncioRuntime, ManualBlockingRuntime, ManualClock
from leasehold.events import Event, Lost
from leasehold.observability.combined import Combined
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness
from support.failing_log import FailingLog
from support.flavors import ASYNCIO, BLOCKING
from support.patience import until_in

LEASE, SHORT = 60.0, 10.0
SOON = 10.0

numbers = itertools.count()


def raises(_: str) -> None:
    """Need what threads and jobs of the client lack: a request, or a context variable."""
    raise LookupError("outside of a request")


def exits(_: str) -> None:
    if threading.current_thread() is not threading.main_thread():  # there it ends the program
        raise SystemExit(3)


def locks(_: str) -> None:
    """Let one process at a time write."""
    with Client(Memory("the log")) as client, client.lock("the log", timeout=SOON):
        pass


class Holders:
    """Two clients with a clock to move, and who was notified of a loss; observers and callbacks raise."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.clock, self.told = harness, ManualClock(), list[str]()
        self._memory = Memory(f"failing log {next(numbers)}")
        self._runtime = ManualBlockingRuntime if harness is BLOCKING else ManualAsyncioRuntime
        self.client, self.other = (
            self._client(observer) for observer in (Combined(self._observe, self._observe), None)
        )

    def _client(self, observer: Callable[[Event], None] | None) -> AsyncClient:
        return AsyncClient(self._memory, runtime=self._runtime(self.clock), observer=observer)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Lost):
            raise ValueError("a mistake of an observer")

    def _call_back(self, loss: object) -> None:
        raise ValueError("a mistake of a callback")

    async def hold(self, name: str, lease: float = LEASE, *, renew: bool = True) -> AsyncHold:
        hold = await self.client.lock(name, lease=lease, renew=renew).acquire()
        assert hold is not None
        hold.on_lost(self._call_back)
        hold.on_lost(lambda _: self.told.append(name))
        return hold

    async def break_(self, hold: AsyncHold) -> None:
        assert await self.other.force_release(hold.name, hold.token)

    async def told_of(self, *names: str) -> None:
        await until_in(self.harness, lambda: sorted(self.told) == sorted(names), SOON)

    async def renews(self, kept: AsyncHold) -> None:
        def is_renewed() -> bool:
            self.clock.advance(0.02)  # a renewal that failed is repeated a little later
            return kept.remaining > LEASE * 0.9

        for _ in range(3):
            self.clock.advance(LEASE * 0.4)
            await until_in(self.harness, is_renewed, SOON)


async def expired(holders: Holders) -> None:
    some = [await holders.hold(name, SHORT, renew=False) for name in "ab"]
    holders.clock.advance(SHORT + 1.0)
    await holders.told_of("a", "b")
    del some


async def broken(holders: Holders) -> None:
    for each in [await holders.hold(name) for name in "ab"]:
        await holders.break_(each)
    holders.clock.advance(LEASE * 0.4)
    await holders.told_of("a", "b")


async def dropped(holders: Holders) -> None:
    for name in "ab":
        await holders.hold(name)
    gc.collect()
    holders.clock.advance(LEASE * 0.4)
    await holders.told_of("a", "b")


def fail_once(thing: Any, name: str) -> list[bool]:
    """Let the next call of a method raise; return a list that has an entry when it has."""
    method, failed = getattr(thing, name), list[bool]()

    def once(*args: Any, **options: Any) -> Any:
        if failed:
            return method(*args, **options)
        failed.append(True)
        raise ZeroDivisionError("a mistake of the library")

    setattr(thing, name, once)
    return failed


async def failed_renewal(holders: Holders) -> None:
    failed = fail_once(holders.client.store, "renew")
    holders.clock.advance(LEASE * 0.4)
    await until_in(holders.harness, lambda: failed)


async def failed_check(holders: Holders) -> None:
    failed = fail_once(holders.client._engine.watchdog, "_apply_reports")
    holders.clock.advance(LEASE * 0.4)
    await until_in(holders.harness, lambda: failed)


async def failed_action(holders: Holders) -> None:
    """It fails as the watchdog is about to sleep."""
    failed = fail_once(holders.client._engine.watchdog._timers, "add_renewed")
    holders.clock.advance(LEASE * 0.4)
    await until_in(holders.harness, lambda: failed)


async def failed_release(holders: Holders) -> None:
    hold, store = await holders.hold("a"), holders.client.store
    release, errors = store.release, [StoreUnavailable("refused"), ZeroDivisionError("a mistake of the store")]

    async def fails_twice(*args: Any, **options: Any) -> bool:
        if errors:
            raise errors.pop(0)
        return await release(*args, **options)

    store.release = fails_twice  # type: ignore[method-assign]
    assert not await hold.release()

    async def is_free() -> bool:
        holders.clock.advance(0.1)
        return await holders.other.inspect("a") is None

    await until_in(holders.harness, is_free, SOON)


def named(thing: object) -> str:
    return getattr(thing, "__name__", str(thing))


CASES = (expired, broken, dropped, failed_renewal, failed_check, failed_action, failed_release)


@pytest.mark.parametrize(
    ("harness", "fail"), [(BLOCKING, raises), (BLOCKING, exits), (BLOCKING, locks), (ASYNCIO, raises)], ids=named
)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_log_that_fails_costs_no_holder(
    harness: Harness, fail: Callable[[str], None], case: Callable[[Holders], Coroutine[Any, Any, None]]
) -> None:
    async def body(harness: Harness) -> None:
        holders = Holders(harness)
        async with holders.client, holders.other:
            kept = await holders.hold("kept")
            with FailingLog(fail) as log:
                await case(holders)
                await holders.renews(kept)
                told = list(holders.told)
                await holders.break_(kept)
                holders.clock.advance(LEASE * 0.4)
                await holders.told_of("kept", *told)
            assert log.messages

    harness.run(body)
