"""Every operation of every primitive on every real store, with a cancellation or a fault at each of its steps.

Under asyncio, it is cancelled at each suspension. In both flavors, each call of the store is refused, duplicated, or
its request or reply is lost. The operation succeeds, or it raises an error of this library. Soon after, long before a
lease expires, nothing of it is left on the server, and the next client can do the same operation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping.operations import OPERATIONS, check_leftovers, done
from sweeping.places import SYSTEMS, place_of
from sweeping.suspensions import LEASE, outcome

from leasehold import AsyncClient, LeaseholdError, Unsupported
from leasehold.stores import registry
from leasehold_lab.faulty_store import Fault, Faulty, Kind, always, nth
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness
from support.flavors import FLAVORS, both

KINDS = (Kind.REFUSE, Kind.DROP_REQUEST, Kind.DROP_REPLY, Kind.DUPLICATE)

SOON = LEASE / 3
"""Seconds within which nothing may be left; no lease has expired by then."""

MOST = 300
"""More steps than any operation has."""

ALIKE = ("release_by_the_lock", "nested", "attempt", "several_in_vain", "lonely")
"""Operations whose requests occur in other operations, too: swept only in nightly runs."""

operations = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in ALIKE else name for name in OPERATIONS]
)
systems = pytest.mark.parametrize("system", list(SYSTEMS))


def flavors() -> Iterator[Any]:
    """Yield system, operation and harness. By day, the flavor of an operation alternates from system to system."""
    for row, system in enumerate(SYSTEMS):
        for column, name in enumerate(OPERATIONS):
            for number, harness in enumerate(FLAVORS):
                by_night = name in ALIKE or (row + column + number) % 2
                yield pytest.param(system, name, harness, marks=[pytest.mark.nightly] if by_night else [])


@pytest.fixture
def url(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(system, request, tmp_path).url


async def supported(client: AsyncClient, harness: Harness, name: str) -> bool:
    """Do the operation; return whether the store supports it."""
    try:
        await done(OPERATIONS[name](harness, client, LEASE))
    except Unsupported:
        return False
    return True


async def nothing_is_left(harness: Harness, client: AsyncClient, looker: AsyncClient) -> None:
    until = harness.now() + SOON
    while (found := await looker.holds()) or client._engine.watchdog.leases():
        assert harness.now() < until, f"left behind: {found or client._engine.watchdog.leases()}"
        await harness.sleep(0.005)


@systems
@operations
@pytest.mark.timeout(300)
def test_cancelled_at_every_suspension(system: str, url: str, name: str, namespace: str, record_property: Any) -> None:
    async def body(harness: Harness) -> int:
        looker, counted = harness.client(url, namespace=namespace), 0
        client = harness.client(url, namespace=namespace)
        if not await supported(client, harness, name):
            return 0
        counted = 1 if name == "latch" else 0
        for at in range(MOST):
            reached = await outcome(harness, client, name, at, asyncio.current_task)
            await nothing_is_left(harness, client, looker)
            counted = await check_leftovers(looker, name, counted)
            if not reached:
                return at
        raise AssertionError("it never ends")

    record_property(f"sum:operations: cancelled, {system}", AsyncioHarness().run(body))


@pytest.mark.parametrize(("system", "name", "harness"), list(flavors()), ids=str)
@pytest.mark.timeout(300)
def test_a_fault_at_every_call(
    system: str, url: str, name: str, harness: Harness, namespace: str, record_property: Any
) -> None:
    async def met(harness: Harness, looker: AsyncClient, kind: Kind, k: int) -> bool:
        store = Faulty(registry.opener(url), nth(k, Fault(kind)))
        client = harness.client(store, namespace=namespace)
        with contextlib.suppress(LeaseholdError):
            await done(OPERATIONS[name](harness, client, LEASE))
        await nothing_is_left(harness, core_of(client), looker)
        await client.close()
        return len(store.calls) > k

    async def body(harness: Harness) -> int:
        looker, count = harness.client(url, namespace=namespace), 0
        if not await supported(looker, harness, name):
            return 0
        await nothing_is_left(harness, core_of(looker), looker)
        for kind in KINDS:
            for k in range(MOST):
                if not await met(harness, looker, kind, k):
                    break
                count += 1
        await supported(looker, harness, name)  # the next client can do it
        return count

    record_property(f"sum:operations: faults, {system}, {harness}", harness.run(body))


@pytest.mark.parametrize("system", ["sqlite"])
@both
def test_the_sweep_finds_leftovers(url: str, harness: Harness, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SOON", 0.5)

    async def body(harness: Harness) -> None:
        looker = harness.client(url, namespace=namespace)
        deaf = Faulty(registry.opener(url), always(Fault(Kind.DROP_REQUEST), ["release"]))
        client = harness.client(deaf, namespace=namespace)
        await done(OPERATIONS["acquire"](harness, client, LEASE))
        with pytest.raises(AssertionError, match="left behind"):
            await nothing_is_left(harness, core_of(client), looker)

    harness.run(body)


def core_of(client: Any) -> AsyncClient:
    core: AsyncClient = client.blocking._core if hasattr(client, "blocking") else client
    return core
