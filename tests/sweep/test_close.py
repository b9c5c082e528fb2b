"""Close the client at every suspension of each operation: when the close has returned, nothing is left on the store.

The process may end right then, and a request without an answer would not be repeated.
"""

from __future__ import annotations

import asyncio

import pytest
from sweeping.operations import OPERATIONS, PARTIES, check_leftovers
from sweeping.suspensions import LEASE, Slow

from leasehold import LeaseholdError
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness

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
