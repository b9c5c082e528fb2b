"""SIGKILL after the k-th effect, for all k, on real servers: free within the bound, and nobody's hold is released.

An effect is a reply that the server sent, so that what was asked for is done, and that its client never saw; for SQLite
it is a statement. The client takes a lock twice, renews and releases it; or it waits for it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient
from leasehold.stores.url import Secret, parse
from leasehold.testing.faults import Side
from leasehold.verify.clients import Links

PARTY = Path(__file__).with_name("kill_party.py")
AT_ONCE = 10
NOISE = 0.25
"""Seconds of a busy machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and how long it keeps what a dead client had: ``free`` seconds after the kill."""

    url: str
    lease: float
    free: float
    least: int  # effects that the scenario has at least


@pytest.fixture(params=["redis", "sqlite", "postgresql", "mariadb", "etcd", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "redis":
            return Place(request.getfixturevalue("redis_server").url, 2.0, 2.0 + 0.25, 10)
        case "sqlite":  # the process is gone, whatever its lease
            return Place(f"sqlite:{tmp_path}/locks.db", 2.0, 1.0, 20)
        case "postgresql":
            return Place(request.getfixturevalue("postgres_server").url, 2.0, 2.0 + 0.25, 15)
        case "mariadb":
            return Place(request.getfixturevalue("mariadb_url"), 2.0, 2.0 + 0.25, 15)
        case "etcd":  # it looks for leases that have ended twice a second
            return Place(request.getfixturevalue("etcd_server").url, 2.0, 2.0 + 1.0, 8)
        case _:  # a session and a tick
            url = request.getfixturevalue("zookeeper_server").url + "/sweep?session_timeout=4"
            return Place(url, 3.0, 4.0 + 2.0, 10)


@dataclass
class Nursery:
    """The process that makes the victims, and what they say."""

    child: asyncio.subprocess.Process
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self) -> None:
        assert self.child.stdout is not None
        while line := await self.child.stdout.readline():
            facts = json.loads(line)
            async with self.news:
                self.said.setdefault(facts.get("id", ""), {}).update(facts)
                self.news.notify_all()

    async def hear(self, who: str, *words: str) -> dict[str, Any]:
        async with self.news:
            await self.news.wait_for(lambda: any(word in self.said.get(who, {}) for word in words))
        return self.said[who]

    async def bear(self, **order: Any) -> int:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        return int((await self.hear(order["id"], "pid"))["pid"])


@contextlib.asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, str(PARTY), stdin=pipe, stdout=pipe)
    found = Nursery(child)
    ears = asyncio.create_task(found.listen())
    try:
        await found.hear("", "ready")
        yield found
    finally:
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()
        await ears


@dataclass
class Sweep:
    """One store, one way in which the victim comes to its lock."""

    place: Place
    nursery: Nursery
    locks: AsyncClient
    namespace: str
    waits: bool
    late: list[float] = field(default_factory=list)

    async def kill_after(self, effects: int) -> bool:
        """Kill a victim after so many effects; return whether it had as many."""
        name, place = f"{'wait' if self.waits else 'hold'}-{effects}", self.place
        sqlite = place.url.startswith("sqlite:")
        links = Links(parse(Secret(place.url)), through=True)
        caught = [proxy.hold(Side.REPLIES, nth=effects) for proxy in links.proxies]
        first = await self.locks.lock(name, lease=place.lease).acquire() if self.waits else None
        try:
            order = {
                "id": name,
                "url": links.url.reveal(),
                "namespace": self.namespace,
                "name": name,
                "lease": place.lease,
                "colour": "asyncio" if effects % 2 else "blocking",
                "statements": effects if sqlite else 0,
            }
            pid = await self.nursery.bear(**order)
            releases = asyncio.create_task(self._release_later(first))
            await self._until(lambda: any(fault.hits for fault in caught) or self._ended(name))
            assert "failed" not in self.nursery.said[name], self.nursery.said[name]
            if "done" in self.nursery.said[name]:
                await releases
                return False
            if not sqlite:
                os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
        finally:
            links.close()
        released = await releases
        await self._next_gets_it(name, max(killed, released))
        return True

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():  # noqa: ASYNC110 - a proxy tells it from a thread of its own
            await asyncio.sleep(0.005)

    def _ended(self, name: str) -> bool:
        return bool(self.nursery.said[name].keys() & {"done", "failed", "killed"})

    async def _release_later(self, first: Any) -> float:
        if first is not None:
            await asyncio.sleep(self.place.lease * 0.6)
            await first.release()
        return time.monotonic() if first is not None else 0.0

    async def _next_gets_it(self, name: str, since: float) -> None:
        hold = await self.locks.lock(name, lease=self.place.lease).acquire(timeout=self.place.free + 10)
        assert hold is not None
        self.late.append(time.monotonic() - since)
        assert self.late[-1] <= self.place.free + NOISE, f"{name}: free after {self.late[-1]:.3f} s"
        await asyncio.sleep(self.place.lease * 1.2)
        hold.check()  # what the dead had on its way releases nobody
        await hold.extend()
        await hold.release()


async def sweep(place: Place, namespace: str, *, waits: bool, step: int) -> tuple[int, list[float]]:
    """Kill after each ``step``-th effect, until the victim has done all; return after how many, and how late."""
    async with nursery() as found, AsyncClient.from_url(place.url, namespace=namespace) as locks:
        one = Sweep(place, found, locks, namespace, waits)
        effects = 1 + secrets.randbelow(step)
        while True:
            some = range(effects, effects + step * AT_ONCE, step)
            had = await asyncio.gather(*map(one.kill_after, some))
            if not all(had):
                assert await locks.holds() == []
                return sum(had) * step + effects - 1, one.late
            effects += step * AT_ONCE


@pytest.mark.timeout(240)
@pytest.mark.parametrize("waits", [False, True], ids=["holds", "waits"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_a_kill_after_every_effect(place: Place, namespace: str, waits: bool, step: int, record_property: Any) -> None:
    effects, late = asyncio.run(sweep(place, namespace, waits=waits, step=step))
    assert effects + step >= place.least, "the scenario has that many"
    record_property("sum:kill sweep: kills", len(late))
    record_property("spread:kill sweep: free after", late)
