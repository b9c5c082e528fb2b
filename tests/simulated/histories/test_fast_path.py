"""The fast path does what the general path does: random histories are run on both, and compared.

The general path is the specification: the acquire loop from its first try, as it is where an acquire may be given up
from outside; and the release by its single steps.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from leasehold._engine import fast_path
from leasehold._engine.acquire import AcquireLoop
from leasehold._engine.cancellation import Cancellation
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.releases import release_again
from leasehold._model import AcquireRequest, NotAcquired
from leasehold.errors import LeaseLost
from leasehold.events import Event
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.verify.clients.workload import note_queueing
from models.history import ClientGroup, run
from models.scenario import Scenario
from models.system import Spoilt
from models.systems.redis import RedisSystem

FIRST = 20_261_125
EACH = 40
NIGHTLY = 4_000

USERS = ("locks.lock", "locks.hold", "locks.rlock", "locks.multi_lock", "coordination.barrier_members")
"""The modules that acquire and release leases."""


class Played(NamedTuple):
    """What a history was: each step of its clients and its network, what observers learned, and what was left."""

    steps: list[str]
    events: list[str]
    keys: object
    registered: list[tuple[int, int]]


async def general_acquire(
    engine: Engine, request: AcquireRequest, timeout: float | None, cancel: Cancellation | None = None
) -> LeaseHandle | NotAcquired:
    return await fast_path.acquire(engine, request, timeout, cancel or Cancellation())


async def general_release(engine: Engine, lease: Lease) -> bool:
    engine.attempts[lease] = None
    try:
        if not engine.begin_release(lease):
            raise lease.error()
        was_there = await engine.send_release(lease)
    except (GeneratorExit, LeaseLost):
        raise
    except BaseException:
        await engine.runtime.shield(release_again(engine, [lease]))
        raise
    finally:
        engine.attempts.pop(lease, None)
        engine.wake_close()
    return engine.end_release(lease, was_there)


@contextmanager
def generally() -> Iterator[None]:
    """Acquire and release on the general path."""
    with ExitStack() as stack:
        for user in USERS:
            for name, way in (("acquire", general_acquire), ("release", general_release)):
                if hasattr(_module(user), name):
                    stack.enter_context(patch.object(_module(user), name, way))
        yield


def _module(user: str) -> object:
    return importlib.import_module(f"leasehold.primitives.{user}")


def plain(value: Any) -> object:
    """Return a Lua table as dictionaries."""
    return {key: plain(each) for key, each in value.items()} if hasattr(value, "items") else value


def played(seed: int) -> Played:
    groups: list[ClientGroup] = []
    learned: list[str] = []

    def kept(harness: SimulatedHarness, scenario: Scenario, spoilt: Spoilt) -> ClientGroup:
        groups.append(ClientGroup(harness, scenario, spoilt))
        return groups[0]

    def observe(event: Event) -> None:
        learned.append(repr(event))
        note_queueing(event)

    with patch("models.history.ClientGroup", kept), patch("models.clients.note_queueing", observe):
        outcome = run(seed, "redis")
    assert outcome.ok
    engines = [client._engine for machine in groups[0].machines for client in machine.clients()]
    registered = [(len(engine.attempts), len(engine.watchdog.leases())) for engine in engines]
    assert isinstance(groups[0].system, RedisSystem)
    return Played(outcome.trace().splitlines(), learned, plain(groups[0].system.server.model.keys()), registered)


def check(seeds: Iterable[int]) -> None:
    """Run histories on both paths, and compare; the fast path must be taken, and left, often enough."""
    acquired = left = 0

    def loop(*args: Any, **options: Any) -> AcquireLoop:  # not a mock, which would keep the handles alive
        nonlocal left
        left += 1
        return AcquireLoop(*args, **options)

    for seed in seeds:
        with patch.object(fast_path, "AcquireLoop", loop):
            ours = played(seed)
        with generally():
            theirs = played(seed)
        differs = next((pair for pair in zip(ours.steps, theirs.steps, strict=False) if pair[0] != pair[1]), None)
        assert differs is None, f"seed {seed}: {differs}"
        assert ours == theirs, f"seed {seed}"
        acquired += sum(event.startswith("Acquired(") for event in ours.events)
    assert 0 < left < acquired


def test_histories_are_the_same_on_both_paths() -> None:
    check(range(FIRST, FIRST + EACH))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_histories_are_the_same_on_both_paths_in_a_nightly_run() -> None:
    check(range(first := secrets.randbits(40), first + NIGHTLY))
