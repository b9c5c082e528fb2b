"""SIGKILL after the k-th effect, for all k, in every operation of every primitive that holds something in a store.

The client is killed by its own hand as it has read its k-th answer (see `kill_client`). It works alone, or beside
another client that holds what it needs and releases it a little later. Then that other client gets all of it within the
time that the page of its system states, with higher tokens; it keeps it until the time of the dead is over, and nobody
took it away; and when it has released it, nothing of the dead is left in the store: no key, no row, no node.
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
from kill_sweep import NO_LOCKS, NOISE, Bound, Party, Sweep, Victim
from places import SYSTEMS, Place, place_of

from leasehold._runtimes.base import Flavor
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness
from leasehold_lab.servers.zookeeper import TICK
from support.missed_turns import Missed, turns_missed

MOST = 200
"""Effects that no operation has."""


LEASED = Bound(2.0, 2.0 + 0.25)
AT_ONE_STROKE = Bound(2.0, 1.0)
"""The connection ends with its process, and with SQLite the process counts itself."""

BOUNDS = {
    **dict.fromkeys(SYSTEMS, LEASED),
    **dict.fromkeys(("postgresql-session", "mariadb-session", "sqlite"), AT_ONE_STROKE),
    "redlock": Bound(3.0, 3.0 + 0.25),
    "etcd": Bound(2.0, 2.0 + 1.0),
    "zookeeper": Bound(2.5, 2.5 + TICK, "?session_timeout=2.5"),
}

ALIKE = ("replicas", "sentinel")
"""Systems that do nothing of their own in an operation: swept by night."""

FOR_THE_DAY = (
    "acquire",
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
"""Operations that are swept by day, besides `turns`; the others are a part of one of these, or hold nothing."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.nightly] if name in ALIKE else []) for name in SYSTEMS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(scope="module")
def party(outlive: set[int]) -> Iterator[Party]:
    made = Party()
    outlive.add(made.child.pid)
    yield made
    made.close()


async def some(sweep: Sweep) -> None:
    """Kill a few victims in each of the day's operations, after as many effects as chance says."""
    victims = list[Victim]()
    for name, times in {**dict.fromkeys(FOR_THE_DAY, 1), "turns": 3}.items():
        if name in sweep.effects:
            for waits in (False, True)[: 1 if name in NO_LOCKS else 2]:
                effects = random.sample(range(1, sweep.effects[name] + 1), times)
                victims += [Victim(name, waits, number) for number in effects]
    await asyncio.gather(*map(sweep.kill, victims))


async def all_(sweep: Sweep) -> None:
    """Kill victims after each effect that there is."""
    await asyncio.gather(
        *(
            after_each(sweep, name, waits)
            for name in sweep.effects
            for waits in (False, True)
            if not (waits and name in (*NO_LOCKS, "attempt"))
        )
    )


async def after_each(sweep: Sweep, name: str, waits: bool) -> None:
    """Kill a victim after each effect of an operation, which may have more than it had in peace."""
    first, last = 1, sweep.effects[name]
    while first < MOST:
        had = await asyncio.gather(*(sweep.kill(Victim(name, waits, number)) for number in range(first, last + 1)))
        if not any(had):
            return
        first, last = last + 1, last + 2
    raise AssertionError("it never ends")


@pytest.mark.timeout(1800)  # by night ZooKeeper alone has 1,600 kills, twelve at a time, of 4.5 s each
@pytest.mark.parametrize("which", [some, pytest.param(all_, marks=pytest.mark.nightly)])
def test_a_kill_after_every_effect(place: Place, party: Party, which: Any, record_property: Any) -> None:
    async def body(harness: Harness) -> Sweep:
        sweep = Sweep(harness, place, party, f"kills-{secrets.token_hex(4)}", BOUNDS[place.system])
        async with party.heard():
            await sweep.in_peace()
            await which(sweep)
            await sweep.nothing_is_left()
        return sweep

    with turns_missed(Flavor.ASYNC) as missed:
        sweep = AsyncioHarness().run(body)
    late = sweep.late(missed)
    assert {"acquire", "several", "turns"} <= sweep.effects.keys()
    assert any(sweep.left) or place.url.endswith("session"), "some die with something in their hands; a session, too"
    record_property(f"sum:kill sweep: kills, {place.system}", len(late))
    record_property(f"spread:kill sweep: free after, {place.system}", late)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_sweep_sees_what_is_late_and_what_is_left(
    place: Place, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_sweep, "SOON", 0.2)
    victims = Victim("acquire", False, 9), Victim("several_in_vain", False, 1)  # after these the next alone has all

    async def body(harness: Harness) -> None:
        sweep = Sweep(harness, place, party, f"kills-{secrets.token_hex(4)}", Bound(2.0, -NOISE))
        async with party.heard():
            await sweep.in_peace()
            assert all(await asyncio.gather(*(sweep.kill(victim) for victim in victims)))
            with pytest.raises(AssertionError, match=r"alone.\d: free after"):
                sweep.late(Missed())
            await sweep.nothing_is_left()
            async with harness.client(place.url, namespace=f"{sweep.space}.acquire.alone.8").lock("another"):
                pass
            with pytest.raises(AssertionError, match=r"left in the store: .*acquire.alone.8.*another"):
                await sweep.nothing_is_left()

    AsyncioHarness().run(body)
