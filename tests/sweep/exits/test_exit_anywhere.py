"""An exception at every step of a block or call, as a signal handler can raise it: nothing is left on the store.

If the client is closed then, all is free at once. If the client stays open, all is free within the lease.

The exception is raised at each place in turn (`support.striking`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import CodeType
from typing import Any

import pytest

from leasehold import AcquireTimeout, AsyncClient, Client
from leasehold.stores.memory import Memory
from support.striking import Striking, ended_by, tracing

BLOCKS: dict[str, Callable[[Client], Any]] = {
    "lock": lambda client: client.lock("a", lease=60.0),
    "rlock": lambda client: client.rlock("a", lease=60.0),
    "writer": lambda client: client.rw_lock("a", lease=60.0).writer(),
    "semaphore": lambda client: client.semaphore("a", 2, lease=60.0),
    "multi_lock": lambda client: client.multi_lock(["a", "b"], lease=60.0),
    "election": lambda client: client.election("a", lease=60.0),
    "in vain": lambda client: client.lock("held", lease=60.0, timeout=0.001),
    "several in vain": lambda client: client.multi_lock(["a", "held"], lease=60.0, timeout=0.001),
}


def struck(block: Callable[[Client], Any], memory: Memory, at: int, known: dict[CodeType, set[int]]) -> Striking:
    striking, client = Striking(at, known), Client(memory)
    try:
        with ended_by(striking), suppress(AcquireTimeout), block(client):
            pass
    finally:
        client.close()
    return striking


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("name", BLOCKS)
def test_an_exit_at_any_step_leaves_nothing_on_the_store(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    memory, known = Memory(f"exit anywhere: {name}"), dict[CodeType, set[int]]()
    left, at = list[str](), 0
    with Client(memory) as looker, looker.lock("held", lease=600.0):
        while (striking := struck(BLOCKS[name], memory, at, known)).where:
            left += [striking.where] * left_behind(looker)
            at += 1
    record_property("sum:exits at a step", at)
    assert at > 100
    assert left == []


def left_behind(looker: Client) -> int:
    """Release what others hold; return the number of their holds and queue entries."""
    count = 0
    for info in looker.holds():
        others = [holder for holder in info.holders if holder.owner != looker.owner]
        count += len(others) + len(info.waiters)
        for holder in others:
            looker.force_release(info.name, holder.token)
    return count


def upgraded(client: Client, name: str) -> None:
    with client.rw_lock(name, lease=LEASE).upgradeable() as reader:
        writer = reader.upgrade()
        assert writer is not None
        writer.release()


def acquired(client: Client, name: str) -> None:
    hold = client.lock(name, lease=LEASE).acquire()
    assert hold is not None
    hold.release()


def released_by_lock(client: Client, name: str) -> None:
    lock = client.lock(name, lease=LEASE)
    lock.acquire()
    lock.release()


def nested(client: Client, name: str) -> None:
    lock = client.rlock(name, lease=LEASE)
    with lock, lock:
        pass


def decorated(client: Client, name: str) -> None:
    @client.lock(name, lease=LEASE)
    def work() -> None: ...

    work()


def kinds(client: Client, name: str) -> list[Any]:
    """Return members of a multi-lock that are released one after another."""
    return [name, client.rlock(f"{name}, too", lease=LEASE), client.rw_lock(f"{name}, three", lease=LEASE).writer()]


def block(make: Callable[[Client, str], Any]) -> Callable[[Client, str], None]:
    def run(client: Client, name: str) -> None:
        with make(client, name):
            pass

    return run


LEASE = 1.5
"""Seconds."""

CALLS: dict[str, Callable[[Client, str], None]] = {
    "lock": block(lambda client, name: client.lock(name, lease=LEASE)),
    "fair": block(lambda client, name: client.lock(name, fair=True, lease=LEASE)),
    "rlock": nested,
    "reader": block(lambda client, name: client.rw_lock(name, lease=LEASE).reader()),
    "writer": block(lambda client, name: client.rw_lock(name, lease=LEASE).writer()),
    "upgraded": upgraded,
    "semaphore": block(lambda client, name: client.semaphore(name, 2, lease=LEASE)),
    "permits": block(lambda client, name: client.semaphore(name, 3, lease=LEASE).permits(2)),
    "multi_lock": block(lambda client, name: client.multi_lock([name, f"{name}, too"], lease=LEASE)),
    "several kinds": block(lambda client, name: client.multi_lock(kinds(client, name), lease=LEASE)),
    "election": block(lambda client, name: client.election(name, lease=LEASE)),
    "acquire and release": acquired,
    "release of the lock": released_by_lock,
    "decorator": decorated,
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("error", [SystemExit, pytest.param(ValueError, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", CALLS)
def test_all_is_free_within_the_lease_while_the_client_stays_open(
    name: str,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    memory, known, where = Memory(f"exit and go on: {name}, {error}"), dict[CodeType, set[int]](), dict[str, str]()
    with Client(memory) as client, Client(memory) as looker:
        for at in itertools.count():
            striking = Striking(at, known, error)
            with suppress(error), tracing(striking):
                CALLS[name](client, f"name {at}")
            if not striking.where:
                break
            where[f"name {at}"] = striking.where
        until = time.monotonic() + LEASE + 1.0
        while (left := list(looker.holds())) and time.monotonic() < until:
            time.sleep(0.05)
        assert [(info.name, where.get(info.name)) for info in left] == []
        with client.lock("goes on"):
            pass
    record_property("sum:exits at a step", len(where))
    assert len(where) > 50


class Stepped:
    """An awaitable that runs a coroutine, and traces nothing but the steps of this coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], striking: Striking) -> None:
        self._coroutine = coroutine
        self._striking = striking

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            try:
                with tracing(self._striking):
                    waits = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                return
            error = None
            try:
                yield waits
            except BaseException as thrown:  # a cancellation
                error = thrown


async def upgraded_async(client: AsyncClient, name: str) -> None:
    async with client.rw_lock(name, lease=LEASE).upgradeable() as reader:
        writer = await reader.upgrade()
        assert writer is not None
        await writer.release()


async def acquired_async(client: AsyncClient, name: str) -> None:
    hold = await client.lock(name, lease=LEASE).acquire()
    assert hold is not None
    await hold.release()


async def released_by_lock_async(client: AsyncClient, name: str) -> None:
    lock = client.lock(name, lease=LEASE)
    await lock.acquire()
    await lock.release()


async def nested_async(client: AsyncClient, name: str) -> None:
    lock = client.rlock(name, lease=LEASE)
    async with lock, lock:
        pass


async def decorated_async(client: AsyncClient, name: str) -> None:
    @client.lock(name, lease=LEASE)
    async def work() -> None: ...

    await work()


def block_async(make: Callable[[AsyncClient, str], Any]) -> Callable[[AsyncClient, str], Coroutine[Any, Any, None]]:
    async def run(client: AsyncClient, name: str) -> None:
        async with make(client, name):
            pass

    return run


ASYNC_CALLS: dict[str, Callable[[AsyncClient, str], Coroutine[Any, Any, None]]] = {
    "lock": block_async(lambda client, name: client.lock(name, lease=LEASE)),
    "fair": block_async(lambda client, name: client.lock(name, fair=True, lease=LEASE)),
    "rlock": nested_async,
    "reader": block_async(lambda client, name: client.rw_lock(name, lease=LEASE).reader()),
    "writer": block_async(lambda client, name: client.rw_lock(name, lease=LEASE).writer()),
    "upgraded": upgraded_async,
    "semaphore": block_async(lambda client, name: client.semaphore(name, 2, lease=LEASE)),
    "permits": block_async(lambda client, name: client.semaphore(name, 3, lease=LEASE).permits(2)),
    "multi_lock": block_async(lambda client, name: client.multi_lock([name, f"{name}, too"], lease=LEASE)),
    "election": block_async(lambda client, name: client.election(name, lease=LEASE)),
    "acquire and release": acquired_async,
    "release of the lock": released_by_lock_async,
    "decorator": decorated_async,
}


class Struck(BaseException):
    """An exception that asyncio does not treat specially, unlike SystemExit."""


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("error", [Struck, pytest.param(ValueError, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_all_is_free_within_the_lease_while_the_event_loop_runs(
    name: str,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    memory, known, where = Memory(f"struck task: {name}, {error}"), dict[CodeType, set[int]](), dict[str, str]()

    async def body() -> None:
        async with AsyncClient(memory) as client, AsyncClient(memory) as looker:
            for at in itertools.count():
                striking = Striking(at, known, error)
                with suppress(error):
                    await Stepped(ASYNC_CALLS[name](client, f"name {at}"), striking)
                if not striking.where:
                    break
                where[f"name {at}"] = striking.where
            left, until = await looker.holds(), time.monotonic() + LEASE + 1.0
            while left and time.monotonic() < until:
                await asyncio.sleep(0.05)  # this task gets no loss notice, since its block has ended
                left = await looker.holds()
            assert [(info.name, where.get(info.name)) for info in left] == []
            async with client.lock("goes on"):
                pass

    asyncio.run(body())
    record_property("sum:exits at a step", len(where))
    assert len(where) > 50
