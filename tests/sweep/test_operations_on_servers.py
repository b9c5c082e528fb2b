"""Every operation of every primitive, on every real store, cut short or met by a fault at every step that it has.

Cancelled at each of its suspensions, under asyncio; and each of its calls of the store refused, lost, doubled or not
answered, in both flavors. Either it is done, or it ends with an error of ours; and soon after, far sooner than a lease,
nothing is left of it on the server, and the next has what it wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operations import OPERATIONS, done, nobody_is_there
from places import SYSTEMS, place_of
from suspensions import LEASE, outcome

from leasehold import AsyncClient, LeaseholdError, Unsupported
from leasehold.stores import registry
from leasehold_lab.faulty_store import Fault, Faulty, Kind, always, nth
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness
from support.flavors import FLAVORS, both

KINDS = (Kind.REFUSE, Kind.DROP_REQUEST, Kind.DROP_REPLY, Kind.DUPLICATE)

SOON = LEASE / 3
"""Seconds within which all must be gone: no lease has run out by then."""

MOST = 300
"""More steps than any operation has."""

ALIKE = ("release_by_the_lock", "nested", "attempt", "several_in_vain", "lonely")
"""Operations that ask a store nothing that no other does: swept by night."""

operations = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in ALIKE else name for name in OPERATIONS]
)
systems = pytest.mark.parametrize("system", list(SYSTEMS))


def flavors() -> Iterator[Any]:
    """Yield system, operation and harness: by day an operation has one flavor on a system, the other on the next."""
    for row, system in enumerate(SYSTEMS):
        for column, name in enumerate(OPERATIONS):
            for number, harness in enumerate(FLAVORS):
                by_night = name in ALIKE or (row + column + number) % 2
                yield pytest.param(system, name, harness, marks=[pytest.mark.nightly] if by_night else [])


@pytest.fixture
def url(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(system, request, tmp_path).url


async def has_it(client: AsyncClient, harness: Harness, name: str) -> bool:
    """Say whether the store has what the operation needs."""
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
        if not await has_it(client, harness, name):
            return 0
        counted = 1 if name == "latch" else 0
        for at in range(MOST):
            reached = await outcome(harness, client, name, at, asyncio.current_task)
            await nothing_is_left(harness, client, looker)
            counted = await nobody_is_there(looker, name, counted)
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
        if not await has_it(looker, harness, name):
            return 0
        await nothing_is_left(harness, core_of(looker), looker)
        for kind in KINDS:
            for k in range(MOST):
                if not await met(harness, looker, kind, k):
                    break
                count += 1
        await has_it(looker, harness, name)  # the next has it
        return count

    record_property(f"sum:operations: faults, {system}, {harness}", harness.run(body))


@pytest.mark.parametrize("system", ["sqlite"])
@both
def test_the_sweep_sees_what_is_left(
    url: str, harness: Harness, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
