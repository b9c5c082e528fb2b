"""ZooKeeper keeps cells until a client removes them: expired ones do not pile up, however few each program writes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from leasehold import Conflict, StoreUnavailable
from leasehold._model import Change
from leasehold.client import AsyncClient
from leasehold.stores.zookeeper.cells import CLOCK_FOR, SWEEP_EVERY, SWEPT
from leasehold.stores.zookeeper.connection.requests import Request
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


async def sweep(client: AsyncClient) -> None:
    cells = client.store._cells  # type: ignore[attr-defined]
    await cells._sweep(cells._runtime.now() + 30.0)


def changes(request: Request, name: str) -> bool:
    """Say whether a request writes or removes the node of a cell, alone or in a transaction."""
    forms = getattr(request.form, "operations", [request.form])
    return any(
        type(form).__name__ in ("SetData", "Delete") and form.path.endswith(f"~cells/versioned%2F{name}")
        for form in forms
    )


def before_change(client: AsyncClient, name: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Stop a client before its next change of a cell, as a pause or an outage does, until others have acted."""
    transport = client.store._transport  # type: ignore[attr-defined]
    ask_all = transport.ask_all

    async def ask_late(requests: Sequence[Request], until: float) -> list[Any]:
        if any(changes(request, name) for request in requests):
            transport.ask_all = ask_all
            await meanwhile()
        answers: list[Any] = await ask_all(requests, until)
        return answers

    transport.ask_all = ask_late


@pytest.mark.parametrize("late", ["write over an expired cell", "write over a live cell", "sweep"])
def test_a_late_change_does_not_meet_a_node_that_was_made_anew(late: str) -> None:
    """Meanwhile others remove the expired node and make another, which has the versions that the first had."""
    harness, outcomes = SimulatedHarness(1), list[object]()
    lives = late == "write over a live cell"

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        slow, sweeper, other = (harness.machine(name).client(system.opener) for name in ("slow", "sweeper", "other"))
        for _ in range(2 if lives else 1):  # the second one begins at another version of the node
            await harness.sleep(2 * TTL)
            await other.versioned("v", ttl=TTL).put("old")
        await harness.sleep(0 if lives else 2 * TTL)

        async def meanwhile() -> None:
            await harness.sleep(2 * TTL)
            await sweep(sweeper)
            for number in range(2 if lives else 1):
                outcomes.append(await other.versioned("v", ttl=3600.0).put("new", if_version=number))

        before_change(slow, "v", meanwhile)
        if late == "sweep":
            await sweep(slow)
        else:
            with pytest.raises(Conflict):
                await slow.versioned("v", ttl=3600.0).put("late", if_version=int(lives))
        outcomes.append((await other.versioned("v", ttl=TTL).get()).value)

    with quiet():
        harness.run(body)
    assert outcomes == [1, *[2] * lives, "new"]


@pytest.mark.parametrize("seed", range(20))
def test_of_late_writers_beside_sweeps_one_writes_an_expired_cell(seed: int) -> None:
    """Each of their requests waits for a while before it is sent."""
    harness, won, values = SimulatedHarness(seed), list[str](), list[object]()
    chance = random.Random(seed)

    def be_late(client: AsyncClient) -> None:
        transport, runtime = client.store._transport, client.store._runtime  # type: ignore[attr-defined]
        ask_all = transport.ask_all

        async def ask_late(requests: Sequence[Request], until: float) -> list[Any]:
            await runtime.sleep(chance.choice((0.0, 0.0, chance.random())))
            answers: list[Any] = await ask_all(requests, until)
            return answers

        transport.ask_all = ask_late

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        machines = {name: harness.machine(name) for name in ("a", "b", "sweeper", "another sweeper")}
        clients = {name: one.client(system.opener, response_timeout=60.0) for name, one in machines.items()}
        await clients["a"].versioned("v", ttl=TTL).put("old")
        await harness.sleep(2 * TTL)
        for client in clients.values():
            be_late(client)

        async def put(name: str) -> None:
            with suppress(Conflict):
                await clients[name].versioned("v", ttl=3600.0).put(name, if_version=0)
                won.append(name)

        writers = [machines[name].spawn(partial(put, name)) for name in ("a", "b")]
        sweepers = [one.spawn(partial(sweep, clients[name])) for name, one in machines.items() if "sweeper" in name]
        for job in (*writers, *sweepers):
            await job.result()
        values.append((await clients["a"].versioned("v", ttl=TTL).get()).value)

    with quiet():
        harness.run(body)
    assert values == won


def test_a_cell_that_is_written_during_a_sweep_does_not_keep_the_others() -> None:
    """A sweep removes all or none of what it found; if that does not fit any more, it looks again."""
    harness, left = SimulatedHarness(1), list[str]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        one, other = (harness.machine(name).client(system.opener) for name in ("one", "other"))
        for number in range(10):
            await write(other, f"a:{number}")
        await harness.sleep(2 * TTL)
        before_change(one, "a:7", lambda: write(other, "a:7"))
        await sweep(one)
        left.extend(path.rpartition("/")[2] for path in system.ensemble.tree.nodes if "~cells/" in path)

    with quiet():
        harness.run(body)
    assert left == ["versioned%2Fa:7"]


def test_the_node_above_the_cells_outlives_them() -> None:
    """The server removes a container some time after its last child; the next one would have the versions again."""
    harness, containers = SimulatedHarness(1), list[bool]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        await write(harness.machine("one").client(system.opener), "v")
        containers.extend(
            node.container for path, node in system.ensemble.tree.nodes.items() if path.endswith("~cells")
        )

    with quiet():
        harness.run(body)
    assert containers == [False]


@pytest.mark.parametrize(
    "data", [b"", b"do not touch", b"\xff", b"5", b"[]", b"{}", b'{"ttl": "long"}', b'{"ttl": null}']
)
def test_a_node_of_another_program_among_the_cells_fails_no_write(data: bytes) -> None:
    """The sweep leaves it as it is, and removes the expired cells beside it. An access to it names its path."""
    harness, left = SimulatedHarness(1), list[str]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        client = harness.machine("one").client(system.opener)
        await write(client, "v")
        transport, runtime = client.store._transport, client.store._runtime  # type: ignore[attr-defined]
        note = transport.create("/default~cells/note", data, 0)
        await transport.ask_all((note,), runtime.now() + 5.0)
        await harness.sleep(2 * TTL)
        for _turn in range(SWEEP_EVERY):  # one of them sweeps
            await write(client, "w")
        with pytest.raises(StoreUnavailable, match="/default~cells/note of ZooKeeper has data that are not ours"):
            await client.store.compare_and_set("note", Change())
        left.extend(path.rpartition("/")[2] for path in system.ensemble.tree.nodes if "~cells/" in path)

    with quiet():
        harness.run(body)
    assert left == ["note", "versioned%2Fw"]


def test_a_read_that_is_cancelled_leaves_no_node_behind() -> None:
    """It may be reading the server's clock."""
    harness, left = SimulatedHarness(3), list[str]()

    async def body(_: Harness) -> None:
        system = ZooKeeperSystem(harness, 1.0, GOOD)
        client = harness.machine("m").client(system.opener)
        await client.versioned("v").put(1)
        for step in range(60):
            await harness.sleep(CLOCK_FOR + 1.0)
            job = harness.spawn(client.versioned("v").get)
            await harness.sleep(0.0005 * (step % 20))
            job.cancel()
            await job.join(5)
        assert (await client.versioned("v").get()).value == 1
        left.extend(path for path in system.ensemble.tree.nodes if "~clock/" in path)

    with quiet():
        harness.run(body)
    assert left == []
