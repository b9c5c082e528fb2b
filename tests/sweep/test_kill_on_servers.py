"""SIGKILL after the k-th effect, for all k, in every operation of every primitive that holds something in a store.

The client is killed by its own hand as it has read its k-th answer (see `kill_client`). It works alone, or beside
another client that holds what it needs and releases it a little later. Then that other client gets all of it within the
time that the page of its system states, with higher tokens; it keeps it until the time of the dead is over, and nobody
took it away; and when it has released it, nothing of the dead is left in the store: no key, no row, no node.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from operations import OPERATIONS, PARTIES, done, nobody_is_there
from places import SYSTEMS, Place, place_of, stored

from leasehold import AsyncClient, AsyncHold, LockInfo
from leasehold._runtimes.base import Flavor
from leasehold._runtimes.clock import boottime
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness
from leasehold_lab.servers.zookeeper import TICK
from support.missed_turns import Missed, turns_missed

PARTY = Path(__file__).with_name("kill_client.py")

AT_WORK = 4
"""Victims that are alive at a time."""

AT_ONCE = 12
"""Victims whose locks are waited for at a time."""

NOISE = 0.25
"""Seconds of a busy machine, besides those in which it let this process wait for its turn."""

SOON = 2.0
"""Seconds that servers may take to tidy up."""

MOST = 200
"""Effects that no operation has."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The leases of the victims, and how many seconds after a kill all must be free; what that needs in the URL."""

    lease: float
    free: float
    options: str = ""


LEASED = Bound(2.0, 2.0 + 0.25)
AT_ONE_STROKE = Bound(2.0, 1.0)
"""The connection ends with its process, and with SQLite the process counts itself."""

BOUNDS = {
    **dict.fromkeys(SYSTEMS, LEASED),
    **dict.fromkeys(("postgresql-session", "mariadb-session", "sqlite"), AT_ONE_STROKE),
    "redlock": Bound(3.0, 3.0 + 0.25),
    "etcd": Bound(2.0, 2.0 + 1.0),
    "zookeeper": Bound(2.5, 2.5 + TICK, "?session_timeout=2.5"),
}

ALIKE = ("replicas", "sentinel")
"""Systems that do nothing of their own in an operation: swept by night."""

FOR_THE_DAY = (
    "acquire",
    "nested",
    "upgrade",
    "step_down",
    "permits",
    "several",
    "several_kinds",
    "lead",
    "latch",
    "meeting",
)
"""Operations that are swept by day, besides `turns`; the others are a part of one of these, or hold nothing."""

NO_LOCKS = ("latch", *PARTIES)
"""Operations in which no lock is taken: the next does the same."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.nightly] if name in ALIKE else []) for name in SYSTEMS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


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


@pytest.fixture(scope="module")
def party(outlive: set[int]) -> Iterator[Party]:
    made = Party()
    outlive.add(made.child.pid)
    yield made
    made.close()


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


# --- the sweep ---------------------------------------------------------------------------------------------------


async def some(sweep: Sweep) -> None:
    """Kill a few victims in each of the day's operations, after as many effects as chance says."""
    victims = list[Victim]()
    for name, times in {**dict.fromkeys(FOR_THE_DAY, 1), "turns": 3}.items():
        if name in sweep.effects:
            for waits in (False, True)[: 1 if name in NO_LOCKS else 2]:
                effects = random.sample(range(1, sweep.effects[name] + 1), times)
                victims += [Victim(name, waits, number) for number in effects]
    await asyncio.gather(*map(sweep.kill, victims))


async def all_(sweep: Sweep) -> None:
    """Kill victims after each effect that there is."""
    await asyncio.gather(
        *(
            after_each(sweep, name, waits)
            for name in sweep.effects
            for waits in (False, True)
            if not (waits and name in (*NO_LOCKS, "attempt"))
        )
    )


async def after_each(sweep: Sweep, name: str, waits: bool) -> None:
    """Kill a victim after each effect of an operation, which may have more than it had in peace."""
    first, last = 1, sweep.effects[name]
    while first < MOST:
        had = await asyncio.gather(*(sweep.kill(Victim(name, waits, number)) for number in range(first, last + 1)))
        if not any(had):
            return
        first, last = last + 1, last + 2
    raise AssertionError("it never ends")


@pytest.mark.timeout(1800)  # by night ZooKeeper alone has 1,600 kills, twelve at a time, of 4.5 s each
@pytest.mark.parametrize("which", [some, pytest.param(all_, marks=pytest.mark.nightly)])
def test_a_kill_after_every_effect(place: Place, party: Party, which: Any, record_property: Any) -> None:
    async def body(harness: Harness) -> Sweep:
        sweep = Sweep(harness, place, party, f"kills-{secrets.token_hex(4)}", BOUNDS[place.system])
        async with party.heard():
            await sweep.in_peace()
            await which(sweep)
            await sweep.nothing_is_left()
        return sweep

    with turns_missed(Flavor.ASYNC) as missed:
        sweep = AsyncioHarness().run(body)
    late = sweep.late(missed)
    assert {"acquire", "several", "turns"} <= sweep.effects.keys()
    assert any(sweep.left) or place.url.endswith("session"), "some die with something in their hands; a session, too"
    record_property(f"sum:kill sweep: kills, {place.system}", len(late))
    record_property(f"spread:kill sweep: free after, {place.system}", late)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_sweep_sees_what_is_late_and_what_is_left(
    place: Place, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SOON", 0.2)
    victims = Victim("acquire", False, 9), Victim("several_in_vain", False, 1)  # after these the next alone has all

    async def body(harness: Harness) -> None:
        sweep = Sweep(harness, place, party, f"kills-{secrets.token_hex(4)}", Bound(2.0, -NOISE))
        async with party.heard():
            await sweep.in_peace()
            assert all(await asyncio.gather(*(sweep.kill(victim) for victim in victims)))
            with pytest.raises(AssertionError, match=r"alone.\d: free after"):
                sweep.late(Missed())
            await sweep.nothing_is_left()
            async with harness.client(place.url, namespace=f"{sweep.space}.acquire.alone.8").lock("another"):
                pass
            with pytest.raises(AssertionError, match=r"left in the store: .*acquire.alone.8.*another"):
                await sweep.nothing_is_left()

    AsyncioHarness().run(body)
