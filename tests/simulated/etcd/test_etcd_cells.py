"""Cells on etcd: their lifetimes when the leader changes, and the leases of writes that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from leasehold.primitives.values.register import Body, Register
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

HOUR, TTL, EARLY = 3600.0, 7200.0, 600.0


class Fetching:
    """Clients that share a token which is valid for two hours; each fetch returns the next number."""

    def __init__(self) -> None:
        self.harness, self.fetches = SimulatedHarness(1), 0

    def run(self, story: Callable[[Fetching], Awaitable[None]]) -> None:
        async def body(_: Harness) -> None:
            self.system = EtcdSystem(self.harness, 1.0, GOOD)
            await story(self)

        with quiet():
            self.harness.run(body)

    def machine(self, name: str) -> SimulatedMachine:
        return self.harness.machine(name, offset=0.0, rate=1.0)

    def token(self, machine: SimulatedMachine) -> Any:
        async def fetch() -> int:
            self.fetches += 1
            return self.fetches

        return machine.client(self.system.opener).cached("token", TTL, fetch, early=EARLY)

    async def at(self, seconds: float, *, leader: bool = False) -> None:
        """Wait until so long after the start; with ``leader`` there is another one then."""
        await self.harness.sleep(seconds - self.harness.scheduler.time)
        if leader:
            self.system.cluster.elect(self.harness.scheduler.time + 0.5)
            await self.harness.sleep(5.0)


@pytest.fixture
def fetching() -> Iterator[Fetching]:
    return Fetching()


def test_no_token_is_used_after_its_end_though_the_leader_has_changed(fetching: Fetching) -> None:
    """etcd's leases begin again then. The token is still fetched early, and by one client."""

    async def story(scene: Fetching) -> None:
        token, other = scene.token(scene.machine("one")), scene.token(scene.machine("other"))
        assert [await token.get(), await other.get()] == [1, 1]
        await scene.at(1.5 * HOUR, leader=True)
        assert [await token.get(), await other.get()] == [1, 1]
        await scene.at(TTL - EARLY + 10.0)
        assert [await token.get(), await other.get()] == [2, 2], "early"
        began = scene.harness.scheduler.time
        await scene.at(began + HOUR, leader=True)
        await scene.at(began + TTL - EARLY - 60.0, leader=True)
        assert [await token.get(), await other.get()] == [2, 2]
        await scene.at(began + TTL + 5.0)
        assert [await token.get(), await other.get()] == [3, 3]

    fetching.run(story)


@pytest.mark.parametrize("hours", [-1000.0, 1000.0])
def test_a_wrong_clock_costs_one_fetch_more(fetching: Fetching, hours: float) -> None:
    async def story(scene: Fetching) -> None:
        machine = scene.machine("wrong")
        machine.machine.wall = hours * HOUR
        token, wrong = scene.token(scene.machine("right")), scene.token(machine)
        assert await token.get() == 1
        got = {await one.get() for one in 5 * (wrong, token)}
        assert got == ({1} if hours < 0 else {2})
        await scene.at(TTL + 10.0)
        fetched = scene.fetches
        got = {await one.get() for one in 5 * (token, wrong)}
        assert scene.fetches <= fetched + 2

    fetching.run(story)


def test_clients_of_the_version_before_share_the_values(fetching: Fetching) -> None:
    """They read and write a random number in the place of the end."""

    async def story(scene: Fetching) -> None:
        machine = scene.machine("one")
        token = scene.token(machine)
        assert await token.get() == 1
        for kind in ("shared", "bloom"):
            register = Register(token._engine, kind, "token")
            seen = await register.read()
            assert seen.value == 1 if kind == "shared" else seen.version
        other = Register(token._engine, "shared", "token")
        runtime: Any = machine.runtime
        for high in (b"\x01", b"\xff"):
            runtime.random_bytes = lambda n, high=high: high * n
            await other.write(Body.of("theirs"), ttl=TTL, fence=10**9, only=True)
            assert await token.get() == "theirs"

    fetching.run(story)
