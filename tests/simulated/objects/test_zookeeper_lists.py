"""ZooKeeper: a list of names takes several requests, one after the other. Each of them has time, not all together."""

from __future__ import annotations

from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.system import GOOD
from models.systems.zookeeper import ZooKeeperSystem
from models.zookeeper.transport import SimulatedZooKeeper


def test_a_list_may_take_longer_than_each_of_its_requests() -> None:
    harness = SimulatedHarness(1)

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        machine = harness.machine("first")
        client = machine.client(SimulatedZooKeeper(system.members, 60.0))
        names = [f"stock:{number}" for number in range(5)]
        holds = [await client.lock(name).acquire(timeout=5) for name in names]
        assert None not in holds
        holds.append(await client.semaphore("permits", 2).acquire(timeout=5))
        for member in system.members:
            member.link("first").latency = (0.6, 0.7)
        start = harness.now()
        assert [info.name for info in await client.holds()] == ["permits", *names]
        assert harness.now() - start > 6.0, "longer than one request may take"

    harness.run(body)
