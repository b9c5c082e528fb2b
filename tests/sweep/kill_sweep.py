"""Clients that are killed after their k-th effect, and the next client, which acquires what they held.

See `test_kill_on_servers`.
"""

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

from sweeping.operations import OPERATIONS, PARTIES, check_leftovers, done, in_order
from sweeping.places import Place, stored

from leasehold import AsyncClient, AsyncHold, LockInfo
from leasehold._runtimes.clock import boottime
from leasehold_lab.runtimes.harnesses import Harness
from support.missed_turns import Missed

PROGRAM = Path(__file__).with_name("kill_client.py")

AT_WORK = 4
"""Victims that run at the same time."""

AT_ONCE = 12
"""Victims whose locks other clients wait for at the same time."""

OTHERS_LEASE = 30.0
"""Seconds of the leases of the other clients: longer than a busy machine may keep them from renewing.

So when another client loses a lock, a late request of a victim has released it.
"""

NOISE = 0.25
"""Seconds by which a busy machine may be late, in addition to the time in which this process got no processor."""

SOON = 2.0
"""Seconds that servers may take to remove what has expired."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The lease of the victims, the seconds after a kill within which all must be free, and the URL options."""

    lease: float
    free: float
    options: str = ""


PERMITS_OUTLIVE = 1.0
"""Seconds by which a permit outlives its lease in Redisson's format: clocks may be apart."""

WITH_PERMITS = ("permits", "several_kinds")
"""Operations that acquire permits."""

NO_LOCKS = ("latch", *PARTIES)
"""Operations that acquire no lock. The next client repeats the operation instead."""


ENDS = {"killed", "done", "failed"}
"""The keys of a victim's last report."""

# --- the victims -------------------------------------------------------------------------------------------------


class VictimForker:
    """The process that forks the victims, and their reports."""

    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.reports = defaultdict[str, list[dict[str, Any]]](list)
        self._waiting = dict[str, asyncio.Event]()
        self._unfinished = b""

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Receive reports during a block."""
        assert self.child.stdout is not None
        loop, descriptor = asyncio.get_running_loop(), self.child.stdout.fileno()
        loop.add_reader(descriptor, lambda: self._receive(os.read(descriptor, 1 << 16)))
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def _receive(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if data:
            received = [*map(json.loads, lines)]
        else:
            received = [{"id": who, "failed": "its parent has ended"} for who in self._waiting]
        for facts in received:
            self.reports[facts["id"]].append(facts)
            if facts["id"] in self._waiting:
                self._waiting[facts["id"]].set()

    async def run(self, **order: Any) -> dict[str, Any]:
        """Start a victim with an order; return its last report: it was killed, or has done all. Fail if it failed."""
        me = order["id"]
        assert self.child.stdin is not None
        self._waiting[me] = asyncio.Event()
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        self.child.stdin.flush()
        while (end := next((facts for facts in self.reports[me] if facts.keys() & ENDS), None)) is None:
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


def excluding_locks(client: AsyncClient, name: str, lease: float) -> list[Any]:
    """Return locks whose holder excludes every other client from the names of an operation."""
    match name:
        case "upgrade" | "step_down":
            return [client.rw_lock("a", lease=lease, fair=in_order(client)).writer()]
        case "permits":
            return [client.semaphore("a", 3, lease=lease, fair=in_order(client)).permits(3)]
        case "several":
            return [client.lock(one, lease=lease) for one in ("0", "a", "b")]
        case "several_kinds":
            fair = in_order(client)
            readers, permits = (
                client.rw_lock("0", fair=fair, lease=lease),
                client.semaphore("b", 3, fair=fair, lease=lease),
            )
            return [readers.writer(), client.lock("a", lease=lease), permits.permits(3), client.lock("c", lease=lease)]
        case "several_in_vain":
            return [client.lock(one, lease=lease) for one in "ab"]
        case "lead":
            return [client.election("a", "another", lease=lease)]
        case _:
            return [client.lock("a", lease=lease)]


def delaying_locks(client: AsyncClient, name: str, lease: float) -> list[Any]:
    """Return locks that make an operation wait: in its middle, if a part of it can coexist with such a lock."""
    match name:
        case "upgrade":
            return [client.rw_lock("a", lease=lease).reader()]
        case "permits":
            return [client.semaphore("a", 3, lease=lease, fair=in_order(client))]
        case _:
            return excluding_locks(client, name, lease)


@dataclass(frozen=True, slots=True)
class Victim:
    """A client that does an operation, and is killed after this number of effects. If ``waits``, it must wait first."""

    name: str
    waits: bool
    effects: int

    def __str__(self) -> str:
        return f"{self.name}.{'waits' if self.waits else 'alone'}.{self.effects}"


@dataclass
class Sweep:
    """The sweep of one system.

    Attributes:
        space: the prefix of all namespaces.
        effects: the number of effects of each operation that the system supports, without contention.
        spans: for each victim, from its kill (or from a later release) until the next client had acquired all.
        left: for each victim, whether it left a hold.

    """

    harness: Harness
    place: Place
    forker: VictimForker
    space: str
    bound: Bound
    effects: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[Victim, float, float]] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = self.place.url + self.bound.options
        self._at_work = asyncio.Semaphore(AT_WORK)
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run_without_kills(self) -> None:
        """Do all operations without a kill, to count their effects, and to record what they leave in the store.

        The next client, which acquires all, is a part of this: some stores have a row only for a name that was granted.
        """
        parts = {f"{self.space}.turns": ["turns"], f"{self.space}.others": list(OPERATIONS)}
        await asyncio.gather(*(self._ordered(me, names, self._undisturbed, 0) for me, names in parts.items()))
        reports = [facts for me in parts for facts in self.forker.reports[me]]
        lacking = {facts["lacks"] for facts in reports if "lacks" in facts}
        did = [facts for facts in reports if "did" in facts and facts["did"] not in lacking]
        self.effects |= {facts["did"]: facts["effects"] for facts in did}
        await asyncio.gather(*(self._next_undisturbed(name) for name in self.effects if name not in NO_LOCKS))
        self._baseline = stored(self.place, self.space)

    async def _next_undisturbed(self, name: str) -> None:
        async with AsyncClient.from_url(self.url, namespace=self._undisturbed(name)) as client:
            await self._use(client, name)

    async def kill(self, victim: Victim) -> bool:
        """Run a victim; return whether it had enough effects to be killed."""
        space = f"{self.space}.{victim}"
        async with self._at_once, AsyncClient.from_url(self.url, namespace=space) as client:
            async with self._at_work:
                before = await taken(delaying_locks(client, victim.name, OTHERS_LEASE)) if victim.waits else []
                releasing = asyncio.create_task(self._release_later(before))
                end = await self._ordered(space, [victim.name], lambda name: space, victim.effects)
                released = await releasing
            if "done" in end:
                return False
            tokens = self._tokens(victim, before, found := await client.holds())
            self.left.append(bool(found))
            if victim.name in NO_LOCKS:
                await self._check_next_operation(client, victim, end["at"])
            else:
                await self._check_next_holder(client, victim, max(end["at"], released), tokens)
        return True

    def late(self, missed: Missed) -> list[float]:
        """Return after how many seconds each victim's locks were free; check that this is within the bound."""
        late = [(missed.less(begin, end) - self._outlived(victim), victim) for victim, begin, end in self.spans]
        slowest, victim = max(late, key=lambda one: one[0])
        assert slowest <= self.bound.free + NOISE, f"{victim}: free after {slowest:.3f} s"
        return [took for took, _ in late]

    def _outlived(self, victim: Victim) -> float:
        """Return seconds by which the locks of a victim outlive their lease: permits do that in Redisson's format."""
        return PERMITS_OUTLIVE if self.place.system == "redis-redisson" and victim.name in WITH_PERMITS else 0.0

    async def nothing_is_left(self) -> None:
        """Check that the store contains no more than after the same operations without a kill.

        A dead client's queue entry looks like that of a slow client. The next holder removes it after two leases.
        """
        until = boottime() + 2 * self.bound.lease + SOON
        while more := self._more():
            assert boottime() < until, f"left in the store: {more}"
            await asyncio.sleep(0.2)
            for space in more:
                async with AsyncClient.from_url(self.url, namespace=space) as client:
                    await self._use(client, space.split(".")[1])

    async def _use(self, client: AsyncClient, name: str) -> None:
        if name in NO_LOCKS:
            await done(OPERATIONS[name](self.harness, client, self.bound.lease))
        else:
            for hold in await taken(excluding_locks(client, name, OTHERS_LEASE)):
                await hold.release()

    def _more(self) -> dict[str, set[str]]:
        found = stored(self.place, self.space)
        more = {space: found[space] - self._baseline[self._undisturbed(space.split(".")[1])] for space in found}
        return {space: things for space, things in more.items() if things}

    def _undisturbed(self, name: str) -> str:
        return f"{self.space}.{name}.undisturbed"

    async def _ordered(self, me: str, names: list[str], space: Callable[[str], str], last: int) -> dict[str, Any]:
        work, flavor = [(name, space(name)) for name in names], "asyncio" if last % 2 else "blocking"
        return await self.forker.run(id=me, url=self.url, work=work, lease=self.bound.lease, flavor=flavor, last=last)

    def _tokens(self, victim: Victim, before: list[AsyncHold], after: list[LockInfo]) -> dict[str, int]:
        """Return the highest token of each name so far: of the first holder, of the victim, and in the store."""
        highest = {hold.name: hold.token for hold in before}
        for facts in self.forker.reports[f"{self.space}.{victim}"]:
            if "token" in facts:
                assert facts["token"] > highest.get(facts["of"], 0), f"{victim}: tokens of {facts['of']!r} increase"
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

    async def _check_next_holder(
        self, client: AsyncClient, victim: Victim, since: float, tokens: dict[str, int]
    ) -> None:
        holds = await taken(excluding_locks(client, victim.name, OTHERS_LEASE), timeout=self.bound.free + 10)
        self.spans.append((victim, since, boottime()))
        for hold in holds:
            assert hold.token > tokens.get(hold.name, 0), f"{victim}: tokens of {hold.name!r} increase"
        await self._expired(since)
        for hold in holds:
            hold.raise_if_lost()  # a late request of the victim releases no other hold
            await hold.renew()
            await hold.release()

    async def _check_next_operation(self, client: AsyncClient, victim: Victim, since: float) -> None:
        counted = await check_leftovers(client, victim.name, 0) if victim.name == "latch" else 0
        await done(OPERATIONS[victim.name](self.harness, client, self.bound.lease))
        self.spans.append((victim, since, boottime()))
        await self._expired(since)
        await check_leftovers(client, victim.name, counted)

    async def _expired(self, since: float) -> None:
        """Wait until everything that the victim left has expired."""
        await asyncio.sleep(max(0.0, since + self.bound.free - boottime()))


async def taken(locks: list[Any], **options: Any) -> list[AsyncHold]:
    """Acquire the locks one after the other."""
    holds = [await lock.acquire(**options) for lock in locks]
    assert all(holds), f"not all are free: {list(zip(locks, holds, strict=True))}"
    return holds
