"""A connection to Redis dies without a word, as in a load balancer that drops it: the next one serves."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.system import GOOD
from models.systems.redis import RedisSystem

DEAD = 3600.0
"""Seconds for which nothing that is sent on the connection reaches the server."""


@pytest.mark.parametrize("lease", [0.3, 0.6, 0.9, 1.4, 2.5, 6.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_hold_survives_a_dead_connection(seed: int, lease: float) -> None:
    """However short its lease is: a renewal that is late ends the connection, and the next one makes another."""
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        system, machine = RedisSystem(harness, 1.0, GOOD), harness.machine("holder")
        hold = await machine.client(system.opener, namespace="n").lock("x", lease=lease).acquire()
        assert hold is not None
        await harness.sleep(lease * harness.scheduler.random.random())
        for line in system.server.lines.values():
            line.held = harness.now() + DEAD
        await harness.sleep(3 * lease)
        assert await hold.release() is True

    with quiet():
        harness.run(body)
