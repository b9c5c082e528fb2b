"""Locks as decorators, and calls of functions, in both flavors: each runs under the lock; what cannot is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from leasehold import AcquireTimeout, AsyncClient, Client
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Faulty

LOCKS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a"),
    "rlock": lambda client: client.rlock("a"),
    "reader": lambda client: client.rw_lock("a").reader(),
    "semaphore": lambda client: client.semaphore("a", 2),
    "permits": lambda client: client.semaphore("a", 2).permits(2),
    "multi_lock": lambda client: client.multi_lock(["a", "b"]),
    "election": lambda client: client.election("a"),
}
some = pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)


@some
def test_each_call_runs_under_the_lock(make: Callable[[Any], Any]) -> None:
    with Client.from_url("memory:decorating") as client:

        @make(client)
        def held(more: int, *, text: str) -> str:
            """Say who holds."""
            assert client.holds()
            if more:
                raise ZeroDivisionError
            return text

        assert (held.__name__, held.__doc__) == ("held", "Say who holds.")
        for _ in range(2):
            assert held(0, text="fine") == "fine"
            with pytest.raises(ZeroDivisionError):
                held(1, text="")
            assert client.holds() == []


@some
def test_each_call_runs_under_the_lock_under_asyncio(make: Callable[[Any], Any]) -> None:
    async def body() -> None:
        async with AsyncClient.from_url("memory:decorating") as client:

            @make(client)
            async def held(text: str) -> str:
                await asyncio.sleep(0)
                assert await client.holds()
                return text

            assert await asyncio.gather(held("one"), held("two")) == ["one", "two"]
            assert await client.holds() == []

    asyncio.run(body())


def test_a_call_that_does_not_get_the_lock_is_not_made() -> None:
    with Client.from_url("memory:decorating") as client, client.lock("a"):

        @client.lock("a", timeout=0.01)
        def never() -> None:
            raise AssertionError

        with pytest.raises(AcquireTimeout):
            never()


def test_the_other_flavor_and_generators_are_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    def plain() -> None: ...

    def hidden() -> Any:
        return coroutine()

    with Client.from_url("memory:decorating") as client:
        for function in (coroutine, generator, 7):
            with pytest.raises(TypeError):
                client.lock("a")(function)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="returned a coroutine"):
            client.lock("a")(hidden)()
        assert client.holds() == []

    async def body() -> None:
        async with AsyncClient.from_url("memory:decorating") as client:
            for function in (plain, generator, 7):
                with pytest.raises(TypeError):
                    client.lock("a")(function)  # type: ignore[arg-type]

    asyncio.run(body())


# --- calls of functions -----------------------------------------------------------------------------------------------

RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "once": lambda client, work: client.once("a", ttl=60).run(work),
    "scheduled": lambda client, work: client.scheduled("a", at_most=60).run(work, tick=1),
    "election": lambda client, work: client.election("a").run(work),
}
numbers = count()
runs = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def generator(*_: object) -> Any:
    yield


async def async_generator(*_: object) -> Any:
    yield


@runs
@pytest.mark.parametrize("work", [generator, async_generator, partial(generator)])
def test_a_call_of_a_generator_is_refused(run: Callable[[Any, Any], Any], work: Any) -> None:
    """Its body would not run, or run without the lock; and the call would count as done."""
    store = Faulty(Memory("generators"), lambda _: None)
    with Client(store) as client, pytest.raises(TypeError, match=r"^\w*generator is a generator"):
        run(client, work)

    async def body() -> None:
        async with AsyncClient(store) as client:
            with pytest.raises(TypeError, match=r"^\w*generator is a generator"):
                await run(client, work)

    asyncio.run(body())
    assert store.calls == []


@runs
@pytest.mark.parametrize("made", [generator, async_generator])
def test_a_generator_that_a_call_returns_is_refused(run: Callable[[Any, Any], Any], made: Any) -> None:
    def hidden(*_: object) -> Any:
        return made()

    with Client(Memory(f"hidden-{next(numbers)}")) as client:
        with pytest.raises(TypeError, match="hidden returned a generator"):
            run(client, hidden)
        assert client.holds() == []
        assert not client.once("a", ttl=60).done()

    async def body() -> None:
        async with AsyncClient(Memory(f"hidden-{next(numbers)}")) as client:
            with pytest.raises(TypeError, match="hidden returned a generator"):
                await run(client, hidden)

    asyncio.run(body())
