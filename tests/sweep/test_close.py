"""Close the client at every suspension of each operation: when the close has returned, nothing is left on the store.

The process may end right then, and a request without an answer would not be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sweeping.operations import OPERATIONS, PARTIES, check_leftovers
from sweeping.suspensions import LEASE, Slow

from leasehold import AsyncClient, LeaseholdError, LeaseLost
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness, SimulatedHarness

HOLD_UP = 40
"""Suspensions of each call of the store: more than a close has that waits for nothing."""

EVERY = 3
"""Of so many suspensions, one is tried."""

HOLDS = sorted(set(OPERATIONS) - {"latch", *PARTIES})
"""Those that hold a lock: the others wait by the clock, and count in cells, which have no owner."""

MOST = 1000
"""Suspensions after which an operation should have ended."""


@pytest.mark.parametrize("name", HOLDS)
def test_nothing_is_left_when_the_client_was_closed_at_any_suspension(
    name: str, record_property: pytest.RecordProperty
) -> None:
    async def body(harness: Harness) -> int:
        memory = Memory(f"closed-{name}")
        looker, counted = harness.client(memory), 0
        for at in range(0, MOST, EVERY):
            client = harness.client(Slow(memory, HOLD_UP))
            job = asyncio.ensure_future(OPERATIONS[name](harness, client, LEASE))
            for _ in range(at):
                await asyncio.sleep(0)
            ended = job.done()
            await client.close()
            assert await looker.holds() == [], f"closed after {at} suspensions"
            await asyncio.wait([job])
            if not job.cancelled() and (error := job.exception()) is not None:
                assert isinstance(error, LeaseholdError | RuntimeError), error
            counted = await check_leftovers(looker, name, counted)
            if ended:
                return at
        raise AssertionError("it never ends")

    record_property("sum:closed at a suspension", AsyncioHarness().run(body) // EVERY)


# --- calls under way --------------------------------------------------------------------------------------------------

SOON = 1.5
"""Seconds after the close within which a call under way ends: it does not go on to send requests, for five seconds."""

Close = Callable[[], Coroutine[Any, Any, int]]
"""Closes the client, and returns a value."""


async def cached_early(client: AsyncClient, close: Close) -> object:
    works: list[Callable[[], Any]] = [close, lambda: 1]
    value = client.cached("a", 60, lambda: works.pop()(), early=59.999)
    return [await value.get() for _ in range(2)]


async def block_of_a_barrier(client: AsyncClient, close: Close) -> None:
    async with client.barrier("a", 1):
        await close()
        raise ZeroDivisionError


async def observed(client: AsyncClient, _: Close) -> object:
    return [leader async for leader in client.election("a").observe(every=60)]


CALLS: dict[str, tuple[Callable[[AsyncClient, Close], Coroutine[Any, Any, object]], type[Exception] | None]] = {
    "once": (lambda client, close: client.once("a", ttl=60).run(close), LeaseLost),
    "cached": (lambda client, close: client.cached("a", 60, close).get(), LeaseLost),
    "cached, early": (cached_early, LeaseLost),
    "scheduled": (lambda client, close: client.scheduled("a", at_most=60).run(close, tick=1), LeaseLost),
    "election": (lambda client, close: client.election("a").run(lambda _: close()), RuntimeError),
    "versioned": (lambda client, close: client.versioned("a").update(lambda _: close()), RuntimeError),
    "block of a barrier": (block_of_a_barrier, ZeroDivisionError),
    "wait at a barrier": (lambda client, _: client.barrier("a", 2).wait(), RuntimeError),
    "wait at a barrier that drops dead members": (
        lambda client, _: client.barrier("a", 2, drop_dead=True).wait(),
        RuntimeError,
    ),
    "wait for a latch": (lambda client, _: client.latch("a", 2).wait(), RuntimeError),
    "observer": (observed, None),
}
"""Calls in which, or during which, the client is closed, and what they raise then."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_under_way_ends_soon_after_the_close(name: str) -> None:
    """And its error says that the client was closed, not that the server is down."""
    call, kind = CALLS[name]

    async def body(harness: Harness) -> None:
        closed, ended = list[float](), list[float]()
        client = harness.client(Faulty(Memory("closed"), lambda _: Fault(Kind.REFUSE, 0.01) if closed else None))

        async def close() -> int:
            closed.append(harness.now())
            await client.close()
            return 1

        async def run() -> None:
            try:
                await call(client, close)
            finally:
                ended.append(harness.now())

        job = harness.spawn(run)
        await harness.sleep(10.0)
        if not closed:
            await close()
        if kind is None:
            await job.result()
        else:
            with pytest.raises(kind, match=None if kind is ZeroDivisionError else "closed"):
                await job.result()
        assert ended[0] - closed[0] < SOON

    SimulatedHarness().run(body)
