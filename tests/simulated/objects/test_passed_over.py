"""A fair waiter whose connection is down when its turn comes.

On Redis and PostgreSQL it is passed over, as a dead one is, and is next when it is back. A server passes over only whom
it knows to be gone: the end of a connection takes as long to reach it as any message. The tests decide which comes
first, the end or the hand-over, and play both orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

from leasehold import AsyncLock
from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.net import Host
from models.sql.mysql import MySQLModel
from models.sql.postgres import PostgresModel
from models.system import GOOD, System
from models.systems import SYSTEMS

APART = 0.1
"""Seconds between two arrivals."""

HOLDS = 0.5
"""Seconds for which each holds: less than a place is kept for, and more than a client needs to be back."""

AWAY = 0.05
"""Seconds for which a client cannot connect."""

LATE = 0.02
"""Seconds after which a server learns of the end of a connection, when it learns that after the release."""

IN_ORDER = ["first", "second", "third", "fourth"]

POSTGRES = ["postgres", "postgres without functions"]
MYSQL = ["mysql", "mysql without functions"]
"""With the functions of the plain case a release begins with another request, so both are played with each seed."""


@dataclass
class Play:
    """Four come in turn while a fifth holds; one is cut off as that releases.

    Attributes:
        cut: who is cut off, if it is one of the four.
        late: seconds after which the server learns of that; 0: before the release.
        entered: who entered, in order.
        seen: who held and who waited after the release, while the one was cut off.

    """

    system: str
    seed: int
    cut: str = "nobody"
    late: float = 0.0
    entered: list[str] = field(default_factory=list[str])
    seen: tuple[list[str], list[str]] = ([], [])
    machines: dict[str, SimulatedMachine] = field(default_factory=dict[str, SimulatedMachine])

    def __post_init__(self) -> None:
        self.harness = SimulatedHarness(self.seed)
        with quiet():
            self.harness.run(self._play)

    async def _play(self, harness: Harness) -> None:
        name, _, without = self.system.partition(" without ")
        self.servers: System = SYSTEMS[name](self.harness, 1.0, GOOD)
        for host in self.servers.hosts:
            if isinstance(host, PostgresModel | MySQLModel):
                host.plain = not without
        self.machines |= {name: self.harness.machine(name) for name in ("holder", *IN_ORDER)}
        holder = await self._lock("holder").acquire()
        assert holder is not None
        jobs = list[Job[None]]()
        for name in IN_ORDER:
            jobs.append(self.machines[name].spawn(partial(self._work, name)))
            await harness.sleep(APART)
        if self.cut in self.machines:
            until = max(self._cut_off(host) for host in self.servers.hosts)
            if not self.late:
                await harness.sleep(until - self.harness.scheduler.time)
        await holder.release()
        if self.cut in self.machines:
            await self._look()
        for job in jobs:
            await job.result()

    def _cut_off(self, host: Host) -> float:
        """End the connections of one; return when the server knows it at the latest."""
        link, now = host.link(self.cut), self.harness.scheduler.time
        link.refused, link.requests_held = now + AWAY, now + self.late
        host.hang_up(self.machines[self.cut].machine, arrives=True)
        return now + self.late + link.latency[1]

    async def _look(self) -> None:
        info = await self.harness.client(self.servers.opener).inspect("a")
        assert info is not None
        assert self.harness.scheduler.time < self.servers.hosts[0].link(self.cut).refused, "it is still cut off"
        self.seen = [str(one.meta) for one in info.holders], [str(one.meta) for one in info.waiters]

    async def _work(self, name: str) -> None:
        async with self._lock(name):
            self.entered.append(name)
            await self.harness.sleep(HOLDS)

    def _lock(self, name: str) -> AsyncLock:
        client = self.machines[name].client(self.servers.opener)
        return client.lock("a", fair=True, lease=10.0, meta=name)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", ["redis", "sentinel", "cluster", *POSTGRES])
def test_who_is_cut_off_when_its_turn_comes_is_next_when_it_is_back(system: str, seed: int) -> None:
    play = Play(system, seed, cut="first")
    assert play.seen == (["second"], ["first", "third", "fourth"]), "no waiter waits for a client that may be dead"
    assert play.entered == ["second", "first", "third", "fourth"], "it has kept its place"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", POSTGRES)
def test_who_is_granted_the_lock_before_the_server_learns_that_it_is_cut_off_finds_the_grant(
    system: str, seed: int
) -> None:
    """The server sends the message to a connection that has ended, so it is lost; no other waiter is notified."""
    play = Play(system, seed, cut="first", late=LATE)
    assert play.seen == (["first"], ["second", "third", "fourth"]), "the server does not know that it is cut off"
    assert play.entered == IN_ORDER, "it asks again when it is back, within its lease"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", ["redis", *POSTGRES, *MYSQL, "etcd", "zookeeper"])
def test_who_is_cut_off_while_another_has_its_turn_is_not_overtaken(system: str, seed: int) -> None:
    assert Play(system, seed, cut="third").entered == IN_ORDER
    assert Play(system, seed).entered == IN_ORDER


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("system", [*MYSQL, "etcd", "zookeeper"])
def test_elsewhere_nobody_is_passed_over(system: str, seed: int) -> None:
    """Their queue is made of keys or rows, which live as long as leases or sessions, with or without listeners."""
    play = Play(system, seed, cut="first")
    assert play.seen == (["first"], ["second", "third", "fourth"])
    assert play.entered == IN_ORDER
