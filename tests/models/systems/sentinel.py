"""A primary of Redis and its replica, under three sentinels; replication takes its time.

The store is the shipped one: it asks the sentinels, subscribes to them, and follows the primary. A failover
loses what was written in the last moments before it, since the replica has an earlier state. The old primary may go on
answering clients that have a connection, until a sentinel notifies them of the new one.

One sentinel leads a failover. It raises its epoch at once, and names the old primary in its state until the replicas
follow the new one; then it notifies its clients. The others learn of the failover after a moment; one that was cut off
together with the old primary learns of it when that is reachable again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.sentinel.sentinel import SWITCHED, SentinelSettings
from leasehold.stores.redis.sentinel.store import SentinelStore
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Host
from models.redis.lua import Keys
from models.redis.server import RedisServerModel, Words
from models.redis.transport import transports
from models.scenario import OF_CLIENTS, Kind, Menu, Strike
from models.system import Spoilt, System
from models.systems.redis import AWAY, LOCKS

NAME = "models"
PORT = 6379
LAG = 1.0
"""Seconds of writes that a failover may lose."""

HEARD = 2.0
"""Seconds after a promotion in which the other sentinels learn of it: how often one greets the others."""

FOLLOWED = 20.0
"""Seconds after a promotion in which the other replicas follow: for so long the leader names the old primary."""


class SentinelModel(RedisServerModel):
    """A sentinel: it knows the primary, and tells of another."""

    def __init__(self, scheduler: Scheduler, name: str, primary: str) -> None:
        super().__init__(scheduler, name=name)
        self.primary = primary
        self.promoted = primary
        self.epoch = 1

    def answer(self, words: Words) -> Any:
        """Answer a question for the primary."""
        match words[:2]:
            case [b"SENTINEL", b"MASTERS"]:
                return [self._facts()]
            case [b"SENTINEL", b"MASTER"]:
                return self._facts()
            case [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME"]:
                return [self.promoted.encode(), str(PORT).encode()]
        return super().answer(words)

    def lead(self, primary: str, epoch: int) -> None:
        """Promote a replica: from now on it is the primary of a new epoch, and the state names the old one."""
        self.promoted, self.epoch = primary, epoch

    def switch(self, primary: str, epoch: int) -> None:
        """Learn of a new primary, or end a failover, and tell."""
        if epoch >= self.epoch:
            before, self.primary = self.primary, primary
            self.lead(primary, epoch)
            self.model.publish(SWITCHED, f"{NAME} {before} {PORT} {primary} {PORT}".encode())

    def _facts(self) -> list[bytes]:
        flags = "master" if self.primary == self.promoted else "master,failover_in_progress"
        facts = {"name": NAME, "ip": self.primary, "port": str(PORT), "flags": flags, "config-epoch": str(self.epoch)}
        return [word.encode() for pair in facts.items() for word in pair]


@dataclass(frozen=True)
class SimulatedSentinel(InVirtualTime):
    """Opens the store under Sentinel on models of its servers."""

    servers: list[RedisServerModel]
    sentinels: list[SentinelModel]

    def open(self, runtime: Runtime, namespace: str) -> SentinelStore:
        """Open the store for one client."""
        asked = [Settings(where=f"the model {one.machine.name}", mode="sentinel") for one in self.sentinels]
        watched = SentinelSettings(NAME, asked, Settings(where="the primary"))
        return SentinelStore(runtime, watched, namespace, make=transports([*self.servers, *self.sentinels]))


class SentinelSystem(System):
    """The word is kept if the new primary has all that the old one answered; else a failover loses the last writes."""

    name = "sentinel"
    menu = Menu(LOCKS, (*OF_CLIENTS, Kind.DEAF, Kind.MOVE, Kind.MOVE, Kind.RESTART), (Kind.FAILOVER, Kind.FORWARD))
    passes_over = True
    reconnects = 1.7
    """The guide is asked for up to a second, and its answer is waited for in pauses of half a second."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        scheduler = harness.scheduler
        self.servers = [
            RedisServerModel(scheduler, rate=rate, name=name, rewrite=spoilt.rewrite) for name in ("r0", "r1")
        ]
        self.servers[1].role = b"slave"
        self.sentinels = [SentinelModel(scheduler, name, "r0") for name in ("s0", "s1", "s2")]
        self.hosts = [*self.servers, *self.sentinels]
        self.opener = SimulatedSentinel(self.servers, self.sentinels)
        self._primary = 0
        self._epoch = 1
        self._behind: dict[float, Keys] = {}

    @property
    def serving(self) -> Sequence[Host]:
        """Sentinels are asked, and left again: no connection ends."""
        return self.servers

    def foresee(self, one: Strike) -> None:
        """Keep, before a failover, what its replica will have."""
        if one.kind is Kind.FAILOVER:
            when = max(0.0, one.at - one.luck * LAG)
            self.harness.scheduler.at(when, self.harness.fate, lambda: self._keep(one.at))

    def restart(self, one: Strike) -> float:
        """Restart the primary with what it had, before a sentinel noticed."""
        seconds = 0.05 + one.luck * AWAY
        self.servers[self._primary].restart(seconds)
        return seconds

    def forward(self, one: Strike) -> float:
        """Set the primary's clock forward."""
        self.servers[self._primary].step(one.luck * 5.0)
        return 0.0

    def move(self, one: Strike) -> float:
        """Hand over to a replica that has all."""
        keys = self.servers[self._primary].model.keys()
        return self._switch(keys, one.luck, 0.0)

    def failover(self, one: Strike) -> float:
        """Hand over to a replica that lacks the last writes; the old primary may go on for a while."""
        alongside = one.seconds if one.luck * 10 % 1 < 0.5 else 0.0
        return self._switch(self._behind[one.at], one.luck, alongside)

    def _keep(self, at: float) -> None:
        self._behind[at] = self.servers[self._primary].model.keys()

    def _switch(self, keys: Keys, luck: float, alongside: float) -> float:
        away = 0.05 + luck * AWAY
        old, self._primary = self.servers[self._primary], 1 - self._primary
        new = self.servers[self._primary]
        new.note(f"takes over in {away:.6f} s")
        new.model.take_keys(keys)
        new.role = b"slave"
        now, at = self.harness.scheduler.time, self.harness.scheduler.at
        if alongside:
            at(now + alongside, self.harness.fate, lambda: self._demote(old, new))
        else:
            self._demote(old, new)
        at(now + away, self.harness.fate, lambda: self._promote(new, luck, now + alongside))
        return max(away, alongside)

    def _demote(self, old: RedisServerModel, new: RedisServerModel) -> None:
        if self.servers[self._primary] is new:
            old.role = b"slave"
            old.hang_up(arrives=False)

    def _promote(self, new: RedisServerModel, luck: float, reachable: float) -> None:
        if self.servers[self._primary] is not new:
            return
        new.role = b"master"
        self._epoch += 1
        name, epoch = new.machine.name, self._epoch
        leader, cut_off = (self.sentinels[(int(luck * 1000) + more) % len(self.sentinels)] for more in (0, 1))
        leader.lead(name, epoch)
        now, at = self.harness.scheduler.time, self.harness.scheduler.at
        for sentinel in self.sentinels:
            when = now + luck * (FOLLOWED if sentinel is leader else HEARD)
            when = max(when, reachable) if sentinel is cut_off else when
            at(when, self.harness.fate, partial(sentinel.switch, name, epoch))
