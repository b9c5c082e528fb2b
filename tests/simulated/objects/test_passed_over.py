"""A fair waiter whose connection is down when its turn comes.

On Redis and PostgreSQL it is passed over, as a dead one is, and is next when it is back.
"""

from __future__ import annotations

from functools import partial

import pytest

from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD, System
from models.systems import SYSTEMS

APART = 0.1
"""Seconds between two arrivals."""

HOLDS = 0.5
"""Seconds for which each holds: less than a place is kept for, and more than a client needs to be back."""

AWAY = 0.05
"""Seconds for which a client cannot connect."""


def served(seed: int, system: str, cut: str, away: float) -> list[str]:
    """Let four come in turn while a fifth holds; cut one off as that leaves; return who entered, in order."""
    harness, entered = SimulatedHarness(seed), list[str]()

    async def body(_: Harness) -> None:
        servers = SYSTEMS[system](harness, 1.0, GOOD)
        machines = {name: harness.machine(name) for name in ("holder", "first", "second", "third", "fourth")}
        holder = await machines["holder"].client(servers.opener).lock("a", fair=True, lease=10.0).acquire()
        assert holder is not None
        jobs = list[Job[None]]()
        for name in ("first", "second", "third", "fourth"):
            jobs.append(machines[name].spawn(partial(work, name, machines[name], servers)))
            await harness.sleep(APART)
        for host in servers.hosts:
            if cut in machines:
                host.link(cut).refused = harness.now() + away
                host.hang_up(machines[cut].machine, arrives=True)
        await holder.release()
        for job in jobs:
            await job.result()

    async def work(name: str, machine: SimulatedMachine, servers: System) -> None:
        lock = machine.client(servers.opener).lock("a", fair=True, lease=10.0)
        async with lock:
            entered.append(name)
            await machine.sleep(HOLDS)

    with quiet():
        harness.run(body)
    return entered


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", ["redis", "sentinel", "postgres"])
def test_who_is_cut_off_when_its_turn_comes_is_next_when_it_is_back(system: str, seed: int) -> None:
    entered = served(seed, system, "first", AWAY)
    assert entered[0] == "second", "nobody waits for a client that may be dead"
    assert entered[1] == "first", "it has kept its place"
    assert entered[2:] == ["third", "fourth"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", ["redis", "postgres", "etcd", "zookeeper"])
def test_who_is_cut_off_while_another_has_its_turn_is_not_overtaken(system: str, seed: int) -> None:
    assert served(seed, system, "third", AWAY) == ["first", "second", "third", "fourth"]
    assert served(seed, system, "nobody", 0.0) == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", ["etcd", "zookeeper"])
def test_elsewhere_nobody_is_passed_over(system: str, seed: int) -> None:
    """Their queue is made of the waiters' own keys, which live as long as leases or sessions, whoever listens."""
    assert served(seed, system, "first", AWAY) == ["first", "second", "third", "fourth"]
