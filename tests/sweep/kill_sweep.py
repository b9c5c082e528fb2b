"""Victims that are killed after their k-th effect, and the next client, which gets what they held: see its tests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operations import OPERATIONS, PARTIES, done, nobody_is_there
from places import Place, stored

from leasehold import AsyncClient, AsyncHold, LockInfo
from leasehold._runtimes.clock import boottime
from leasehold_lab.runtimes.harnesses import Harness
from support.missed_turns import Missed

PARTY = Path(__file__).with_name("kill_client.py")

AT_WORK = 4
"""Victims that are alive at a time."""

AT_ONCE = 12
"""Victims whose locks are waited for at a time."""

NOISE = 0.25
"""Seconds of a busy machine, besides those in which it let this process wait for its turn."""

SOON = 2.0
"""Seconds that servers may take to tidy up."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The leases of the victims, and how many seconds after a kill all must be free; what that needs in the URL."""

    lease: float
    free: float
    options: str = ""


NO_LOCKS = ("latch", *PARTIES)
"""Operations in which no lock is taken: the next does the same."""


ENDS = {"killed", "done", "failed"}
"""How a victim may say that it has come to its end."""

# --- the victims -------------------------------------------------------------------------------------------------


class Party:
    """The process that makes the victims, and what they say."""

    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, str(PARTY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.said = defaultdict[str, list[dict[str, Any]]](list)
        self._waiting = dict[str, asyncio.Event]()
        self._unfinished = b""

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """Listen during a block."""
        assert self.child.stdout is not None
        loop, ears = asyncio.get_running_loop(), self.child.stdout.fileno()
        loop.add_reader(ears, lambda: self._hear(os.read(ears, 1 << 16)))
        try:
            yield
        finally:
            loop.remove_reader(ears)

    def _hear(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        news = [*map(json.loads, lines)] if data else [{"id": who, "failed": "with its party"} for who in self._waiting]
        for facts in news:
            self.said[facts["id"]].append(facts)
            if facts["id"] in self._waiting:
                self._waiting[facts["id"]].set()

    async def end_of(self, **order: Any) -> dict[str, Any]:
        """Give an order and return what the victim says of its end: that it is killed, has done all, or has failed."""
        me = order["id"]
        assert self.child.stdin is not None
        self._waiting[me] = asyncio.Event()
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        self.child.stdin.flush()
        while (end := next((facts for facts in self.said[me] if facts.keys() & ENDS), None)) is None:
            self._waiting[me].clear()
            await self._waiting[me].wait()
        del self._waiting[me]
        assert "failed" not in end, end
        return end

    def close(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


# --- the others --------------------------------------------------------------------------------------------------


def all_of_it(client: AsyncClient, name: str, lease: float) -> list[Any]:
    """Return locks that leave room for nobody else in an operation."""
    match name:
        case "upgrade" | "step_down":
            return [client.rw_lock("a", lease=lease).writer()]
        case "permits":
            return [client.semaphore("a", 3, lease=lease).permits(3)]
        case "several":
            return [client.lock(one, lease=lease) for one in ("0", "a", "b")]
        case "several_kinds":
            readers, permits = client.rw_lock("0", lease=lease), client.semaphore("b", 3, lease=lease)
            return [readers.writer(), client.lock("a", lease=lease), permits.permits(3), client.lock("c", lease=lease)]
        case "several_in_vain":
            return [client.lock(one, lease=lease) for one in "ab"]
        case "lead":
            return [client.election("a", "another", lease=lease)]
        case _:
            return [client.lock("a", lease=lease)]


def in_the_way(client: AsyncClient, name: str, lease: float) -> list[Any]:
    """Return locks that keep an operation waiting: in its middle, where something has a place beside them."""
    match name:
        case "upgrade":
            return [client.rw_lock("a", lease=lease).reader()]
        case "permits":
            return [client.semaphore("a", 3, lease=lease)]
        case _:
            return all_of_it(client, name, lease)


@dataclass(frozen=True, slots=True)
class Victim:
    """Who does an operation alone, or is kept waiting first, and is killed after so many effects."""

    name: str
    waits: bool
    effects: int

    def __str__(self) -> str:
        return f"{self.name}.{'waits' if self.waits else 'alone'}.{self.effects}"


@dataclass
class Sweep:
    """One system, swept.

    Attributes:
        space: what all its namespaces begin with.
        effects: how many each operation has that the system has, when it is alone.
        spans: from each kill, or from the release if that came later, until the next had all of it.
        left: of each victim whether it left a hold behind.

    """

    harness: Harness
    place: Place
    party: Party
    space: str
    bound: Bound
    effects: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[Victim, float, float]] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = self.place.url + self.bound.options
        self._at_work = asyncio.Semaphore(AT_WORK)
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def in_peace(self) -> None:
        """Let clients do all operations, to know how many effects they have, and what they leave in the store.

        What the next leaves who has all of it belongs to that: a file has a row only of names that were granted.
        """
        parts = {f"{self.space}.turns": ["turns"], f"{self.space}.others": list(OPERATIONS)}
        await asyncio.gather(*(self._ordered(me, names, self._peace, 0) for me, names in parts.items()))
        said = [facts for me in parts for facts in self.party.said[me]]
        lacking = {facts["lacks"] for facts in said if "lacks" in facts}
        did = [facts for facts in said if "did" in facts and facts["did"] not in lacking]
        self.effects |= {facts["did"]: facts["effects"] for facts in did}
        await asyncio.gather(*(self._next_in_peace(name) for name in self.effects if name not in NO_LOCKS))
        self._in_peace = stored(self.place, self.space)

    async def _next_in_peace(self, name: str) -> None:
        async with AsyncClient.from_url(self.url, namespace=self._peace(name)) as client:
            await self._ask(client, name)

    async def kill(self, victim: Victim) -> bool:
        """Kill a victim; return whether it had as many effects."""
        space, lease = f"{self.space}.{victim}", self.bound.lease
        async with self._at_once, AsyncClient.from_url(self.url, namespace=space) as client:
            async with self._at_work:
                before = await taken(in_the_way(client, victim.name, lease)) if victim.waits else []
                releasing = asyncio.create_task(self._release_later(before))
                end = await self._ordered(space, [victim.name], lambda name: space, victim.effects)
                released = await releasing
            if "done" in end:
                return False
            tokens = self._tokens(victim, before, found := await client.holds())
            self.left.append(bool(found))
            if victim.name in NO_LOCKS:
                await self._next_does_it(client, victim, end["at"])
            else:
                await self._next_gets_it(client, victim, max(end["at"], released), tokens)
        return True

    def late(self, missed: Missed) -> list[float]:
        """Return in how many seconds each was free, and check that all were in time."""
        late = [(missed.less(begin, end), victim) for victim, begin, end in self.spans]
        slowest, victim = max(late, key=lambda one: one[0])
        assert slowest <= self.bound.free + NOISE, f"{victim}: free after {slowest:.3f} s"
        return [took for took, _ in late]

    async def nothing_is_left(self) -> None:
        """Check that there is no more in the store than after the same operations in peace.

        A place in a line of which nobody knows whether its client is only slow is taken out after two leases, by
        whoever next has the name.
        """
        until = boottime() + 2 * self.bound.lease + SOON
        while more := self._more():
            assert boottime() < until, f"left in the store: {more}"
            await asyncio.sleep(0.2)
            for space in more:
                async with AsyncClient.from_url(self.url, namespace=space) as client:
                    await self._ask(client, space.split(".")[1])

    async def _ask(self, client: AsyncClient, name: str) -> None:
        if name in NO_LOCKS:
            await done(OPERATIONS[name](self.harness, client, self.bound.lease))
        else:
            for hold in await taken(all_of_it(client, name, self.bound.lease)):
                await hold.release()

    def _more(self) -> dict[str, set[str]]:
        found = stored(self.place, self.space)
        more = {space: found[space] - self._in_peace[self._peace(space.split(".")[1])] for space in found}
        return {space: things for space, things in more.items() if things}

    def _peace(self, name: str) -> str:
        return f"{self.space}.{name}.peace"

    async def _ordered(self, me: str, names: list[str], space: Callable[[str], str], last: int) -> dict[str, Any]:
        work, flavor = [(name, space(name)) for name in names], "asyncio" if last % 2 else "blocking"
        return await self.party.end_of(id=me, url=self.url, work=work, lease=self.bound.lease, flavor=flavor, last=last)

    def _tokens(self, victim: Victim, before: list[AsyncHold], after: list[LockInfo]) -> dict[str, int]:
        """Return the highest token of each name so far: of who held it first, of the victim, of what it left."""
        highest = {hold.name: hold.token for hold in before}
        for facts in self.party.said[f"{self.space}.{victim}"]:
            if "token" in facts:
                assert facts["token"] > highest.get(facts["of"], 0), f"{victim}: tokens of {facts['of']!r} rise"
                highest[facts["of"]] = facts["token"]
        for info in after:
            highest[info.name] = max(highest.get(info.name, 0), info.token)
        return highest

    async def _release_later(self, holds: list[AsyncHold]) -> float:
        if not holds:
            return 0.0
        await asyncio.sleep(self.bound.lease * 0.6)
        for hold in holds:
            hold.raise_if_lost()
            await hold.release()
        return boottime()

    async def _next_gets_it(self, client: AsyncClient, victim: Victim, since: float, tokens: dict[str, int]) -> None:
        holds = await taken(all_of_it(client, victim.name, self.bound.lease), timeout=self.bound.free + 10)
        self.spans.append((victim, since, boottime()))
        for hold in holds:
            assert hold.token > tokens.get(hold.name, 0), f"{victim}: tokens of {hold.name!r} rise"
        await self._over(since)
        for hold in holds:
            hold.raise_if_lost()  # what the dead had on its way releases nobody
            await hold.renew()
            await hold.release()

    async def _next_does_it(self, client: AsyncClient, victim: Victim, since: float) -> None:
        counted = await nobody_is_there(client, victim.name, 0) if victim.name == "latch" else 0
        await done(OPERATIONS[victim.name](self.harness, client, self.bound.lease))
        self.spans.append((victim, since, boottime()))
        await self._over(since)
        await nobody_is_there(client, victim.name, counted)

    async def _over(self, since: float) -> None:
        """Wait until the time of the dead is over."""
        await asyncio.sleep(max(0.0, since + self.bound.free - boottime()))


async def taken(locks: list[Any], **options: Any) -> list[AsyncHold]:
    """Acquire one after the other."""
    holds = [await lock.acquire(**options) for lock in locks]
    assert all(holds), f"not all are free: {list(zip(locks, holds, strict=True))}"
    return holds
