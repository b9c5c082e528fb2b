"""Two concurrent operations on one hold or client. One of them is cancelled, at each of its suspensions in turn.

This runs on every real store, under asyncio. While one operation is cancelled, the other may wait for a connection, or
for a reply. Each ends as it would alone, or with an error of this library. After that

- an unrelated name can be acquired at once, on existing connections and on new ones;
- the name itself is free;
- no descriptor was closed while the event loop still waited on it, since another file could get its number.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sweeping.places import SYSTEMS, place_of
from sweeping.suspensions import Cancelling, Slow

from leasehold import AsyncClient, AsyncHold, LeaseholdError
from leasehold.store_api import Opener
from leasehold.stores.memory import Memory
from leasehold_lab.runtimes.harnesses import Harness
from support.descriptors import WatchedHarness, Watcher

LEASE = 30.0
SOON = 5.0
"""Seconds within which each operation must end and each name must be free: far less than a lease."""

MOST = 200
"""More suspensions than any of them has."""

Operation = Callable[[AsyncClient, AsyncHold], Awaitable[object]]


async def extend(client: AsyncClient, hold: AsyncHold) -> None:
    await hold.renew()


async def release(client: AsyncClient, hold: AsyncHold) -> None:
    await hold.release()


async def renew(client: AsyncClient, hold: AsyncHold) -> None:
    """Renew as the watchdog does."""
    await client.store.renew([(hold.name, hold._lease.ticket)], within=SOON)


async def repeat(client: AsyncClient, hold: AsyncHold) -> None:
    """Repeat the acquire request with the same ticket, as after a lost reply."""
    await client.store.try_acquire(hold.name, hold._lease.ticket, join=False, within=SOON)


async def wait(client: AsyncClient, hold: AsyncHold) -> None:
    """Wait for the held name, until the timeout or until it is released."""
    got = await client.lock("x", lease=LEASE).acquire(timeout=0.01)
    if got is not None:
        await got.release()


async def attempt(client: AsyncClient, hold: AsyncHold) -> None:
    got = await client.lock("x", lease=LEASE).acquire(blocking=False)
    if got is not None:
        await got.release()


async def another(client: AsyncClient, hold: AsyncHold) -> None:
    async with client.lock("another", lease=LEASE):
        pass


async def look(client: AsyncClient, hold: AsyncHold) -> None:
    await client.inspect("x")


async def close(client: AsyncClient, hold: AsyncHold) -> None:
    await client.close()


ON_THE_HOLD = (extend, release, renew, repeat)
ALL = (*ON_THE_HOLD, wait, attempt, another, look, close)

OFTEN_MET = {(wait, release), (release, wait), (extend, close), (close, extend), (another, wait), (wait, another)}


NEVER = {frozenset((repeat, release)), frozenset((repeat, close))}
"""A repeated acquire request that arrives after its release acquires the name again. The library never does that."""


def pairs() -> list[Any]:
    """Return the pairs; the second operation is cancelled. By day: those on one hold, and a few on one connection."""
    found = list[Any]()
    for goes_on in ALL:
        for cut in ALL:
            if {goes_on, cut} in NEVER:
                continue
            by_day = {goes_on, cut} <= set(ON_THE_HOLD) or (goes_on, cut) in OFTEN_MET
            marks = [] if by_day else [pytest.mark.nightly]
            found.append(pytest.param(goes_on, cut, marks=marks, id=f"{goes_on.__name__}-{cut.__name__}"))
    return found


async def both(
    harness: Harness, client: AsyncClient, hold: AsyncHold, goes_on: Operation, cut: Operation, at: int
) -> bool:
    """Run both, and cancel the second at its suspension ``at``; return whether it had that many suspensions."""
    met = list[Cancelling]()

    async def cut_off() -> None:
        task = asyncio.current_task()
        assert task is not None
        met.append(Cancelling(cut(client, hold), at, task.cancel))  # type: ignore[arg-type]
        await met[0]

    jobs = [harness.spawn(lambda: goes_on(client, hold)), harness.spawn(cut_off)]  # type: ignore[arg-type]
    for job, errors in zip(jobs, (LeaseholdError, (LeaseholdError, asyncio.CancelledError)), strict=True):
        assert await job.join(SOON), "an operation does not end"
        error = job.exception()
        closed = close in (goes_on, cut) and isinstance(error, RuntimeError) and "client is closed" in str(error)
        assert error is None or isinstance(error, errors) or closed, repr(error)
    return met[0].met > at


async def taken_at_once(client: AsyncClient, name: str) -> None:
    hold = await client.lock(name, lease=LEASE).acquire(timeout=SOON)
    assert hold is not None, f"{name} is not free"
    await hold.release()


async def sweep(harness: Harness, where: str | Opener, namespace: str, goes_on: Operation, cut: Operation) -> int:
    client, others = (harness.client(where, namespace=namespace) for _ in range(2))
    await taken_at_once(others, "y")
    for at in range(MOST):
        hold = await client.lock("x", lease=LEASE).acquire(timeout=SOON)
        assert hold is not None
        reached = await both(harness, client, hold, goes_on, cut, at)
        newcomer = harness.client(where, namespace=namespace)
        await taken_at_once(newcomer, "y")  # on new connections, which get the descriptors of the closed ones
        await newcomer.close()
        if close in (goes_on, cut):
            client = harness.client(where, namespace=namespace)
        await taken_at_once(client, "y")
        try:
            await hold.release()
        except LeaseholdError:
            pass  # it was released, or its connection was cut off
        await taken_at_once(others, "x")
        if not reached:
            return at
    raise AssertionError("it never ends")


@pytest.mark.parametrize("system", list(SYSTEMS))
@pytest.mark.parametrize(("goes_on", "cut"), pairs())
@pytest.mark.timeout(300)
def test_one_of_two_cancelled_at_every_suspension(
    system: str,
    goes_on: Operation,
    cut: Operation,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    namespace: str,
    record_property: Any,
) -> None:
    url = place_of(system, request, tmp_path).url
    steps = WatchedHarness().run(lambda harness: sweep(harness, url, namespace, goes_on, cut))
    record_property(f"sum:two at once: cancelled, {system}", steps)


@pytest.mark.parametrize(("goes_on", "cut"), pairs())
def test_one_of_two_cancelled_on_a_slow_store(goes_on: Operation, cut: Operation, namespace: str) -> None:
    store = Slow(Memory(f"two at once {namespace}"))
    WatchedHarness().run(lambda harness: sweep(harness, store, namespace, goes_on, cut))


def test_the_watcher_finds_a_descriptor_that_was_closed_while_registered() -> None:
    watcher = Watcher()
    one, other = socket.socketpair()
    watcher.register(one, 1)
    watcher.select(0)
    assert not watcher.stolen
    again = os.dup(one.fileno())
    number = one.fileno()
    os.dup2(other.fileno(), number)  # closed, and another file has its number
    watcher.select(0)
    assert watcher.stolen == [f"descriptor {number} was closed while the loop waited on it"]
    os.close(again)
    watcher.close()
    one.close()
    other.close()
