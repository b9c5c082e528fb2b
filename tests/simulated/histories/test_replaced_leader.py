"""A leader of etcd that was stopped and replaced goes on, and answers keep-alives: no client trusts them.

A holder reaches that member only, and is cut off when it was renewed, or when it has acquired under a lease that was
renewed; a rival waits at another. When all of that happens is drawn from the seed.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

from leasehold import AsyncClient, AsyncHold, AsyncLock, LeaseLost, StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.broken import MISTAKES
from models.etcd.state import LEAST_TTL
from models.history import quiet
from models.system import GOOD, Spoilt
from models.systems.etcd import EtcdSystem

HISTORIES = 200
FOUND_WITHIN = 1000
FOREVER = 1e6
ELECTION = 0.2
LEASE = float(LEAST_TTL)
BELIEVES = "believes a leader that was replaced, etcd"


class Play:
    """One history."""

    def __init__(self, seed: int, spoilt: Spoilt) -> None:
        self.chance = random.Random(seed)
        self.harness = SimulatedHarness(seed)
        self.spoilt = spoilt
        self.believed = 0.0  # seconds that the holder still believed when the rival was in

    async def body(self, _: Harness) -> None:
        system = EtcdSystem(self.harness, 1.0, self.spoilt)
        opener = self.spoilt.wrap(system.opener)
        leader, *others = system.members
        holder, rival = self.harness.machine("holder"), self.harness.machine("rival")
        for member, kept_away in ((leader, "rival"), *((one, "holder") for one in others)):
            member.link(kept_away).refused = FOREVER
        locks = holder.client(opener, response_timeout=LEASE)
        hold = await self.lock(locks).acquire()
        if claims := self.chance.random() < 0.5:
            await hold.release()  # its session stays, and ends if it is not renewed
        else:
            entering = rival.spawn(partial(self.enter, rival.client(opener), hold))
            await self.harness.sleep(self.chance.uniform(0.0, LEASE))
        await self.harness.sleep(self.chance.uniform(0.0, LEASE / 2))
        stopped, unaware = self.chance.uniform(0.3, LEASE), self.chance.uniform(0.0, 0.2)
        leader.is_replaced(stopped, unaware)
        system.cluster.elect(self.harness.scheduler.time + ELECTION)
        await self.harness.sleep(stopped)
        if claims:
            hold = await self.lock(locks).acquire()
            entering = rival.spawn(partial(self.enter, rival.client(opener), hold))
        else:
            await self.harness.sleep(unaware + self.chance.uniform(0.0, 0.3))
        leader.link("holder").refused = FOREVER
        leader.hang_up(holder.machine, arrives=True)
        await entering.result()
        with suppress(LeaseLost, StoreUnavailable):
            await hold.release()

    async def enter(self, locks: AsyncClient, hold: AsyncHold) -> None:
        async with self.lock(locks):
            left = hold.remaining
            with suppress(LeaseLost):
                hold.raise_if_lost()
                self.believed = left

    @staticmethod
    def lock(locks: AsyncClient) -> AsyncLock:
        return locks.lock("a", lease=LEASE)


def believed(seed: int, spoilt: Spoilt) -> float:
    play = Play(seed, spoilt)
    with quiet():
        play.harness.run(play.body)
    return play.believed


def test_nobody_believes_a_leader_that_was_replaced() -> None:
    assert [seed for seed in range(HISTORIES) if believed(seed, GOOD)] == []


def test_who_believes_it_is_found() -> None:
    found = [seed for seed in range(FOUND_WITHIN) if believed(seed, MISTAKES[BELIEVES].spoilt)]
    print(f"found in {len(found)} of {FOUND_WITHIN} histories")
    assert found


def test_a_value_lives_for_its_life_though_a_replaced_leader_renewed_its_lease() -> None:
    """Its lease is renewed once more if the write tells that there is another leader."""
    harness, found = SimulatedHarness(1), list[object]()

    async def body(_: Harness) -> None:
        system = EtcdSystem(harness, 1.0, GOOD)
        leader, *others = system.members
        writer = harness.machine("writer").client(system.opener)
        for member in others:
            member.link("writer").refused = FOREVER
        value = writer.versioned("v", ttl=LEASE)
        await value.put("first")
        await harness.sleep(0.2)
        leader.is_replaced(LEASE * 0.8, 0.1)
        system.cluster.elect(harness.scheduler.time + ELECTION)
        await harness.sleep(LEASE * 0.8)
        written = harness.scheduler.time
        await value.put("second")
        await harness.sleep(written + LEASE - 0.01 - harness.scheduler.time)
        found.append((await writer.versioned("v", ttl=LEASE).get()).value)

    with quiet():
        harness.run(body)
    assert found == ["second"]


def test_no_hold_is_lost_because_a_replaced_leader_does_not_know_its_session() -> None:
    """The new leader granted it, and the old one is asked to renew it."""
    harness, lost = SimulatedHarness(1), list[bool]()

    async def body(_: Harness) -> None:
        system = EtcdSystem(harness, 1.0, GOOD)
        leader, *others = system.members
        locks = harness.machine("holder").client(system.opener)
        leader.is_replaced(0.0, LEASE * 0.45)
        system.cluster.elect(harness.scheduler.time)
        leader.link("holder").refused = LEASE * 0.1
        hold = await Play.lock(locks).acquire()
        await harness.sleep(LEASE * 0.1)
        for member in others:
            member.link("holder").refused = FOREVER
            member.hang_up(arrives=True)
        await harness.sleep(LEASE * 3)
        lost.append(hold.lost)

    with quiet():
        harness.run(body)
    assert lost == [False]
