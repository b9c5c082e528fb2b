"""Values on ZooKeeper keep their lifetime, however slow the answer was from which the server's clock was read."""

from __future__ import annotations

from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.system import GOOD
from models.systems.zookeeper import ZooKeeperSystem

TTL = 3.0
SLOW = 1.9
"""Seconds for which no answer reaches the reader."""

WAY = 0.001
"""Seconds that a message takes to or from the reader."""


def test_a_value_does_not_expire_early_for_a_client_that_read_the_clock_slowly() -> None:
    harness, found = SimulatedHarness(1), list[object]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        writer = harness.machine("writer", rate=1.0).client(system.opener).versioned("v", ttl=TTL)
        machine = harness.machine("reader", rate=1.0)
        reader = machine.client(system.opener).versioned("v", ttl=TTL)
        assert (await reader.get()).value is None  # it connects
        await writer.put("first")
        for member in system.members:
            member.link("reader").latency = (WAY, WAY)
        reading = machine.spawn(reader.get)
        await harness.sleep(2.5 * WAY)  # it has the value, and now waits for the clock
        for member in system.members:
            member.link("reader").replies_held = harness.scheduler.time + SLOW
        await reading.result()
        await writer.put("second")
        await harness.sleep(TTL - 1.0)
        found.append((await reader.get()).value)
        await harness.sleep(1.1)
        found.append((await reader.get()).value)

    with quiet():
        harness.run(body)
    assert found == ["second", None]
