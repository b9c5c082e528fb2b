"""SIGKILL after the k-th effect, for all k, in every operation of every primitive that holds something in a store.

The client kills itself when it has read its k-th reply (see `kill_client`). It works alone, or it waits for another
client that holds what it needs and releases it a little later. After the kill, the other client

1. acquires everything within the time that the page of the system states, with higher tokens;
2. keeps it until the leases of the dead client have surely expired: no late request takes it away;
3. releases it. Then nothing of the dead client is left in the store: no key, no row, no node.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kill_sweep
import pytest
from kill_sweep import NO_LOCKS, NOISE, Bound, Sweep, Victim, VictimForker
from sweeping.places import SYSTEMS, Place, place_of

from leasehold._runtimes.base import Flavor
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness
from leasehold_lab.servers.zookeeper import TICK
from support.missed_turns import Missed, turns_missed

MOST = 200
"""More effects than any operation has."""


LEASED = Bound(2.0, 2.0 + 0.25)
AT_ONCE = Bound(2.0, 1.0)
"""A session ends with the connection of its process. With SQLite, a lock of a dead process is free at once."""

BOUNDS = {
    **dict.fromkeys(SYSTEMS, LEASED),
    **dict.fromkeys(("postgresql-session", "mariadb-session", "sqlite"), AT_ONCE),
    "redlock": Bound(3.0, 3.0 + 0.25),
    "etcd": Bound(2.0, 2.0 + 1.0),
    "zookeeper": Bound(2.5, 2.5 + TICK, "?session_timeout=2.5"),
}

ALIKE = ("replicas", "sentinel")
"""Systems whose operations are the same as on Redis: swept only in nightly runs."""

BY_DAY = (
    "acquire",
    "in_turn",
    "nested",
    "upgrade",
    "step_down",
    "permits",
    "several",
    "several_kinds",
    "lead",
    "latch",
    "meeting",
)
"""Operations that are swept by day, in addition to `turns`. The others are a part of one of these, or hold nothing."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.nightly] if name in ALIKE else []) for name in SYSTEMS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(scope="module")
def forker(outlive: set[int]) -> Iterator[VictimForker]:
    made = VictimForker()
    outlive.add(made.child.pid)
    yield made
    made.close()


async def some(sweep: Sweep) -> None:
    """Kill a few victims in each operation of `BY_DAY`, each after a random number of effects."""
    victims = list[Victim]()
    for name, times in {**dict.fromkeys(BY_DAY, 1), "turns": 3}.items():
        if name in sweep.effects:
            for waits in (False, True)[: 1 if name in NO_LOCKS else 2]:
                effects = random.sample(range(1, sweep.effects[name] + 1), times)
                victims += [Victim(name, waits, number) for number in effects]
    await asyncio.gather(*map(sweep.kill, victims))


async def all_(sweep: Sweep) -> None:
    """Kill a victim after each effect of each operation."""
    await asyncio.gather(
        *(
            after_each(sweep, name, waits)
            for name in sweep.effects
            for waits in (False, True)
            if not (waits and name in (*NO_LOCKS, "attempt"))
        )
    )


async def after_each(sweep: Sweep, name: str, waits: bool) -> None:
    """Kill a victim after each effect of an operation. There may be more effects than without contention."""
    first, last = 1, sweep.effects[name]
    while first < MOST:
        had = await asyncio.gather(*(sweep.kill(Victim(name, waits, number)) for number in range(first, last + 1)))
        if not any(had):
            return
        first, last = last + 1, last + 2
    raise AssertionError("it never ends")


@pytest.mark.timeout(1800)  # a nightly run has 1,600 kills on ZooKeeper alone, twelve at a time, of 4.5 s each
@pytest.mark.parametrize("which", [some, pytest.param(all_, marks=pytest.mark.nightly)])
def test_a_kill_after_every_effect(place: Place, forker: VictimForker, which: Any, record_property: Any) -> None:
    async def body(harness: Harness) -> Sweep:
        sweep = Sweep(harness, place, forker, f"kills-{secrets.token_hex(4)}", BOUNDS[place.system])
        async with forker.receiving():
            await sweep.run_without_kills()
            await which(sweep)
            await sweep.nothing_is_left()
        return sweep

    with turns_missed(Flavor.ASYNC) as missed:
        sweep = AsyncioHarness().run(body)
    late = sweep.late(missed)
    assert {"acquire", "several", "turns"} <= sweep.effects.keys()
    assert any(sweep.left) or place.url.endswith("session"), (
        "some die while they hold a lock; with sessions, such a lock may be free at once"
    )
    record_property(f"sum:kill sweep: kills, {place.system}", len(late))
    record_property(f"spread:kill sweep: free after, {place.system}", late)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_sweep_finds_late_locks_and_leftovers(
    place: Place, forker: VictimForker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_sweep, "SOON", 0.2)
    victims = (
        Victim("acquire", False, 9),
        Victim("several_in_vain", False, 1),
    )  # after these kills, the next client can acquire everything

    async def body(harness: Harness) -> None:
        sweep = Sweep(harness, place, forker, f"kills-{secrets.token_hex(4)}", Bound(2.0, -NOISE))
        async with forker.receiving():
            await sweep.run_without_kills()
            assert all(await asyncio.gather(*(sweep.kill(victim) for victim in victims)))
            with pytest.raises(AssertionError, match=r"alone.\d: free after"):
                sweep.late(Missed())
            await sweep.nothing_is_left()
            async with harness.client(place.url, namespace=f"{sweep.space}.acquire.alone.8").lock("another"):
                pass
            with pytest.raises(AssertionError, match=r"left in the store: .*acquire.alone.8.*another"):
                await sweep.nothing_is_left()

    AsyncioHarness().run(body)
