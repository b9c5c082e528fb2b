"""Cancels an operation at its k-th suspension, on a store that suspends often."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold import AsyncClient, AsyncHold
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import METHODS
from leasehold_lab.runtimes.harnesses import Harness
from sweeping.operations import OPERATIONS

LEASE = 20.0
HOLD_UP = 8  # suspensions of each call of the store, half of them before its effect


class Slow:
    """Opens a memory store each of whose calls suspends several times before and after its effect."""

    def __init__(self, opener: Memory, hold_up: int = HOLD_UP) -> None:
        self.opener = opener
        self.hold_up = hold_up

    def open(self, runtime: Any, namespace: str) -> Any:
        return SlowStore(self.opener.open(runtime, namespace), self.hold_up)


class SlowStore:
    def __init__(self, inner: Any, hold_up: int) -> None:
        self._inner = inner
        self._hold_up = hold_up

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in (*METHODS, "wait", "wait_for_cell"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            for _ in range(self._hold_up // 2):
                await asyncio.sleep(0)
            answer = await value(*args, **options)
            for _ in range(self._hold_up // 2):
                await asyncio.sleep(0)
            return answer

        return call


class Cancelling:
    """Runs a coroutine, and cancels its task at the k-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, cancel: Callable[[], object]) -> None:
        self.work, self.at, self.cancel = work, at, cancel
        self.met = 0

    def __await__(self) -> Any:
        step, value = self.work.send, None
        while True:
            try:
                wanted = step(value)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            self.met += 1
            if self.met == self.at + 1:
                self.cancel()
            try:
                value, step = (yield wanted), self.work.send
            except BaseException as error:
                value, step = error, self.work.throw  # type: ignore[assignment]


async def outcome(harness: Harness, client: AsyncClient, name: str, at: int, current: Callable[[], Any]) -> bool:
    """Run an operation in its own job, and cancel it at suspension ``at``; return whether it had that many."""
    met: list[Cancelling] = []

    async def work() -> AsyncHold | None:
        task = current()
        met.append(Cancelling(OPERATIONS[name](harness, client, LEASE), at, task.cancel))  # type: ignore[arg-type]
        hold = await met[0]
        if hold is not None:
            hold.raise_if_lost()
            await hold.release()  # a hold that is returned is valid
        return None

    job = harness.spawn(work)
    await job.join()
    error = job.exception()
    assert error is None or isinstance(error, asyncio.CancelledError), error
    reached = met[0].met > at
    assert reached == isinstance(error, asyncio.CancelledError), "a cancellation is never suppressed"
    return reached


async def nothing_is_left(client: AsyncClient, looker: AsyncClient) -> None:
    assert await looker.holds() == []
    assert client._engine.watchdog.leases() == []
