"""Nodes of a cluster that take over and give back, one soon after the other: no two clients hold at once."""

from __future__ import annotations

from functools import partial

import pytest

from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD
from models.systems.cluster import ClusterSystem

HOLDS = 0.1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("apart", [0.01, 0.3])
@pytest.mark.parametrize("fair", [False, True])
def test_waiters_enter_in_turn_while_a_node_takes_over_and_gives_back(seed: int, apart: float, fair: bool) -> None:
    harness, inside, entered = SimulatedHarness(seed), set[str](), list[str]()

    async def body(_: Harness) -> None:
        system = ClusterSystem(harness, 1.0, GOOD)
        machines = [harness.machine(name) for name in ("holder", "first", "second", "third")]
        holder = await machines[0].client(system.opener).lock("a", lease=10.0).acquire()
        assert holder is not None
        jobs: list[Job[None]] = [machine.spawn(partial(work, machine, system)) for machine in machines[1:]]
        await harness.sleep(0.1)
        (shard,) = {system.cluster.view.shard(slot) for slot in system.cluster.slots_in_use()}
        for _number in range(2):
            system.cluster.hand_over(shard)
            await harness.sleep(apart)
        await holder.release()
        for job in jobs:
            await job.result()

    async def work(machine: SimulatedMachine, system: ClusterSystem) -> None:
        name = machine.machine.name
        hold = await machine.client(system.opener).lock("a", fair=fair, lease=10.0).acquire()
        assert hold is not None
        assert not inside, "two hold what only one may"
        inside.add(name)
        entered.append(name)
        await machine.sleep(HOLDS)
        inside.remove(name)
        await hold.release()

    with quiet():
        harness.run(body)
    assert sorted(entered) == ["first", "second", "third"]
