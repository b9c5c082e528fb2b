"""`response_timeout` limits every call on a store that is silent, not only those of locks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import StoreUnavailable
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind, always
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "acquire": lambda client: client.lock("a").acquire(timeout=0),
    "locked": lambda client: client.lock("a").locked(),
    "available": lambda client: client.semaphore("a", 2).available(),
    "inspect": lambda client: client.inspect("a"),
    "force release": lambda client: client.force_release("a", 1),
    "leader": lambda client: client.election("a").leader(),
    "read a value": lambda client: client.versioned("a").get(),
    "write a value": lambda client: client.versioned("a").put(1),
    "write on a condition": lambda client: client.versioned("a").put(1, if_version=0),
    "latch": lambda client: client.latch("a", 1).wait(timeout=0),
    "ping": lambda client: client.ping(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("limit", [0.5, 20.0])
def test_a_silent_store_is_given_up_in_time(call: str, limit: float) -> None:
    """At most a second later, for the release after an acquire; a write without a condition then reads once."""
    most = 2 * limit if call == "write a value" else limit + 1.0

    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), always(Fault(Kind.DROP_REQUEST, 60.0))), response_timeout=limit)
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await CALLS[call](client)
        assert min(limit, 1.0) / 2 <= harness.now() - start <= most + 0.1

    SimulatedHarness(1).run(body)


def test_a_list_of_names_has_time_to_arrive() -> None:
    """It may take several requests, so a short response timeout does not shorten it."""

    async def body(harness: Harness) -> None:
        client = harness.client(Faulty(Memory(), always(Fault(Kind.DELAY_REPLY, 3.0))), response_timeout=0.5)
        assert await client.holds() == []

    SimulatedHarness(1).run(body)
