"""Cached values, and results that are kept: whose fetch or work uses locks itself, and for many callers at a time."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold import AcquireTimeout, AsyncClient, Client, LeaseLost
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

CALLERS = 20

Call = Callable[[AsyncClient, Callable[[], Any], float | None], Coroutine[Any, Any, str]]

CALLS: dict[str, Call] = {
    "cached": lambda client, work, timeout: client.cached("a", 60, work, timeout=timeout).get(),
    "once": lambda client, work, timeout: client.once("a", ttl=60, timeout=timeout).run(work),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def test_the_function_for_the_time_to_live_may_use_the_client() -> None:
    with Client.from_url("memory:") as client:
        seconds = client.versioned("seconds")
        seconds.put(60)
        assert client.cached("token", lambda value: seconds.get().value, lambda: "new").get() == "new"


@calls
def test_a_caller_that_got_no_turn_takes_a_value_that_is_there(call: Call) -> None:
    """Each turn takes three requests: the last of many callers gets none within its timeout."""

    async def body(harness: Harness) -> None:
        works = list[float]()

        async def work() -> str:
            works.append(harness.now())
            await harness.sleep(0.5)
            return "new"

        clients = [harness.client(Memory("crowd")) for _ in range(CALLERS)]
        assert await harness.gather(*(call(client, work, 2.0) for client in clients)) == ["new"] * CALLERS
        assert len(works) == 1
        assert harness.now() < 4.0

    SimulatedHarness(latency=(0.1, 0.1)).run(body)


@calls
def test_a_caller_that_got_no_turn_and_finds_no_value_times_out(call: Call) -> None:
    async def body(harness: Harness) -> None:
        async def work() -> str:
            await harness.sleep(5.0)
            return "new"

        one, other = (harness.client(Memory("crowd")) for _ in range(2))
        job = harness.spawn(lambda: call(one, work, None))
        await harness.sleep(1.0)
        with pytest.raises(AcquireTimeout):
            await call(other, work, 1.0)
        assert await job.result() == "new"

    SimulatedHarness().run(body)


@calls
def test_the_loss_of_a_lock_that_the_work_uses_is_raised_at_once(call: Call) -> None:
    async def body(harness: Harness) -> None:
        client, works = harness.client(Memory("own")), list[float]()

        async def work() -> str:
            works.append(harness.now())
            async with client.lock("partner", lease=1.0, renew=False):
                await harness.sleep(2.0)
            return "never"

        with pytest.raises(LeaseLost, match="'partner'"):
            await call(client, work, None)
        assert len(works) == 1

    SimulatedHarness().run(body)


def test_a_fetch_that_came_too_late_takes_the_value_of_the_next() -> None:
    async def body(harness: Harness) -> None:
        client, other, fetches = harness.client(Memory("late")), harness.client(Memory("late")), list[float]()

        async def fetch() -> str:
            fetches.append(harness.now())
            info = await client.inspect("shared/a")
            assert info is not None
            assert await client.force_release("shared/a", info.holders[0].token or 0)
            assert await other.cached("a", 60, lambda: "of the next").get() == "of the next"
            return "too late"

        assert await client.cached("a", 60, fetch).get() == "of the next"
        assert len(fetches) == 1

    SimulatedHarness().run(body)
