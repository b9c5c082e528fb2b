"""ZooKeeper keeps cells until a client removes them: expired ones do not pile up, however few each program writes."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from leasehold import Conflict
from leasehold.client import AsyncClient
from leasehold.stores.zookeeper.cells import SWEPT
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.system import GOOD
from models.systems.zookeeper import ZooKeeperSystem

TTL = 1.0

KEPT = 200
"""Nodes of expired cells that may be left, of several times as many."""


def nodes(system: ZooKeeperSystem) -> int:
    return sum("~cells/" in path for path in system.ensemble.tree.nodes)


async def write(client: AsyncClient, name: str) -> None:
    await client.versioned(name, ttl=TTL).put("done")


@pytest.mark.parametrize("seed", range(3))
def test_one_client_that_writes_ever_new_cells_leaves_few(seed: int) -> None:
    harness, most = SimulatedHarness(seed), list[int]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        client = harness.machine("one").client(system.opener)
        for number in range(600):
            await write(client, f"a:{number}")
            await harness.sleep(TTL)
            most.append(nodes(system))

    with quiet():
        harness.run(body)
    assert len(most) == 600
    assert max(most) <= KEPT


@pytest.mark.parametrize("seed", range(3))
def test_many_programs_that_write_a_few_cells_each_leave_few(seed: int) -> None:
    harness, most = SimulatedHarness(seed), list[int]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        for program in range(100):
            client = harness.machine(f"m{program}").client(system.opener)
            for number in range(5):
                await write(client, f"a:{program}:{number}")
            await client.close()
            await harness.sleep(2 * TTL)
            most.append(nodes(system))

    with quiet():
        harness.run(body)
    assert len(most) == 100
    assert max(most) <= KEPT


def test_short_programs_find_expired_cells_where_the_first_cells_live() -> None:
    """None of them sweeps twice, so each must begin elsewhere."""
    harness, left = SimulatedHarness(1), list[int]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        first = harness.machine("first").client(system.opener)
        for number in range(2 * SWEPT):
            await first.versioned(f"a:{number}", ttl=3600.0).put("lives")
        for program in range(150):
            client = harness.machine(f"m{program}").client(system.opener)
            for number in range(5):
                await write(client, f"b:{program}:{number}")
            await client.close()
            await harness.sleep(2 * TTL)
        left.append(nodes(system) - 2 * SWEPT)

    with quiet():
        harness.run(body)
    assert left[0] <= KEPT


@pytest.mark.parametrize("seed", range(10))
def test_one_of_two_clients_writes_an_expired_cell(seed: int) -> None:
    """Both find it expired, and write on the condition that there is none."""
    harness, won, versions = SimulatedHarness(seed), list[str](), list[int]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        machines = {name: harness.machine(name) for name in ("first", "second")}
        cells = {name: machine.client(system.opener).versioned("v", ttl=TTL) for name, machine in machines.items()}
        await cells["first"].put("old")
        await cells["second"].get()
        for _ in range(3):
            await harness.sleep(2 * TTL)

            async def put(name: str) -> None:
                with suppress(Conflict):
                    versions.append(await cells[name].put(name, if_version=0))
                    won.append(name)

            jobs = [machine.spawn(partial(put, name)) for name, machine in machines.items()]
            for job in jobs:
                await job.result()
            assert (await cells["first"].get()).value == won[-1]
        versions.append(await cells["second"].put("another", if_version=1))

    with quiet():
        harness.run(body)
    assert len(won) == 3
    assert versions == [1, 1, 1, 2]


def test_a_sweep_that_fails_does_not_fail_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell is written by then; whoever was told otherwise might write it again."""
    harness, failed = SimulatedHarness(1), list[bool]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        client = harness.machine("one").client(system.opener, response_timeout=1.0)
        sweep = client.store._cells._sweep  # type: ignore[attr-defined]

        async def cut_off(until: float) -> None:
            failed.append(True)
            for member in system.members:
                member.restart(30.0)
            await sweep(until)

        monkeypatch.setattr(client.store._cells, "_sweep", cut_off)  # type: ignore[attr-defined]
        number = 0
        while not failed:
            number += 1
            await write(client, f"a:{number}")
        assert any(path.endswith(f"a:{number}") for path in system.ensemble.tree.nodes)

    with quiet():
        harness.run(body)
    assert failed == [True]
