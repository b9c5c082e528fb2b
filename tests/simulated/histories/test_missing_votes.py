"""Nodes of Redlock that lose their data one after the other, during one hold: each must vote for the holder again.

Some of them answer later than a majority does. A node is down while the lock is acquired.
"""

from __future__ import annotations

import pytest

from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.redis.server import RedisServerModel
from models.system import GOOD
from models.systems.redlock import NODES, RedlockSystem

LEASE = 3.0
"""Seconds; it is renewed at each third of them."""

NEAR, FAR = (0.0001, 0.001), (0.02, 0.08)
"""Seconds that a message takes, at least and at most."""

APART = 2 * LEASE
"""Seconds from the loss of one node's data to that of the next."""


def has_vote(server: RedisServerModel, namespace: str) -> bool:
    return server.answer([b"HGET", keys.node_keys(namespace, "x")[0], b"t"]) is not None


@pytest.mark.parametrize("far", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_a_hold_outlives_the_data_of_every_node(seed: int, far: int) -> None:
    harness, namespace = SimulatedHarness(seed), "n"

    async def body(_: Harness) -> None:
        system, machine = RedlockSystem(harness, 1.0, GOOD), harness.machine("holder")
        chance = harness.scheduler.random
        for number, server in enumerate(chance.sample(system.servers, NODES)):
            server.link(machine.machine.name).latency = FAR if number < far else NEAR
        order = chance.sample(system.servers, NODES)
        order[0].restart(0.5)
        hold = await machine.client(system.opener, namespace=namespace).lock("x", lease=LEASE).acquire()
        assert hold is not None
        for server in order:
            await harness.sleep(APART)
            lacking = [each.machine.name for each in system.servers if not has_vote(each, namespace)]
            assert not lacking, f"at {harness.now():.1f} s the holder lacks the votes of {lacking}"
            server.restart(0.05 + chance.random() * 0.5, lose=True)
        await harness.sleep(APART)
        assert await hold.release() is True

    with quiet():
        harness.run(body)


@pytest.mark.parametrize("seed", range(10))
def test_a_hold_with_a_bare_majority_gets_the_vote_that_replaces_one_of_them(seed: int) -> None:
    """Two nodes were down at the acquire, and are back; before a renewal finds that out, a third one goes down."""
    harness, namespace = SimulatedHarness(seed), "n"

    async def body(_: Harness) -> None:
        system, machine = RedlockSystem(harness, 1.0, GOOD), harness.machine("holder")
        away, lost = (chosen := harness.scheduler.random.sample(system.servers, 3))[:2], chosen[2]
        for server in away:
            server.restart(0.3)
        hold = await machine.client(system.opener, namespace=namespace).lock("x", lease=LEASE).acquire()
        assert hold is not None
        assert not any(has_vote(server, namespace) for server in away)
        await harness.sleep(0.5)
        lost.restart(10 * LEASE)
        await harness.sleep(3 * LEASE)
        assert await hold.release() is True

    with quiet():
        harness.run(body)
