"""The conformance kit on the stores of this library, in the worlds in which each can live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from leasehold.stores.memory import MemoryStore
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.sqlite.store import SQLiteStore
from leasehold.testing.conformance import Case, cases
from leasehold.testing.servers import RedisServer
from leasehold.testing.worlds import AsyncioWorld, BlockingWorld, SimulatedWorld, World

REAL: dict[str, Callable[[], World]] = {"blocking": BlockingWorld, "asyncio": AsyncioWorld}
SIMULATED: dict[str, Callable[[], World]] = {f"simulated-{seed}": partial(SimulatedWorld, seed) for seed in range(3)}

STORES = {
    "memory": (MemoryStore.capabilities, REAL | SIMULATED),  # simulated time needs a store that lives in it
    "sqlite": (SQLiteStore.capabilities, REAL),
    "redis": (RedisStore.capabilities, REAL),
}
"""What each promises, and in which worlds it can live."""

RUNS = [
    pytest.param(store, world, case, id=f"{store}-{world_name}-{case_name}")
    for store, (promised, worlds) in STORES.items()
    for world_name, world in worlds.items()
    for case_name, case in cases(promised)
]


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    request.node.user_properties.append((f"store:{store}", True))
    if store == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        yield f"sqlite:{folder}/locks.db"
    elif store == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        yield server.url
    else:
        yield "memory:conformance"


@pytest.mark.parametrize(("store", "world", "case"), RUNS)
def test_conformance(store: str, world: Callable[[], World], case: Case, url: str) -> None:
    world().run(lambda world: case(world, url))


def test_every_case_says_what_it_states() -> None:
    stated = dict(cases())
    assert len(stated) == len(list(cases())), "two cases have the same id"
    assert all(case.__doc__ for case in stated.values())
