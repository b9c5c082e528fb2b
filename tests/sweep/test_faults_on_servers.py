"""The k-th request or reply is lost, doubled, refused or reset, for all k, on real servers: all comes right again.

Two clients take turns at a lock; one of them meets the fault. Nobody ever believes to hold beside the other, tokens
rise, and when all is over the next has the lock as soon as what was left behind has ended.

How soon that is follows from what the server has of the name by then. Nothing: at once. A ticket: after its lease, for
nobody renews it. Several, one behind the other, as when a call took longer than its client has patience: after a lease
each, since one that is dead may still be handed the name. Then the next asks once more. What asking costs is not the
protocol's but the machine's, and is measured meanwhile, at a name of which nobody wants anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold._url import Secret, parse
from leasehold.stores import registry
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth
from leasehold_lab.proxy.faults import Side
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.verify.clients.process import Connections

AT_ONCE = 8
NOISE = 0.25
"""Seconds of a busy machine."""

REQUESTS = 4
"""That the last acquire takes at most: a claim, a row for the name, a claim again, and one when a lease has ended."""

PAUSE = 0.1
"""Seconds between two measurements of what asking costs."""

MOST = 200
"""Requests that no scenario has."""

ON_CONNECTIONS: dict[str, Callable[[FaultProxy, int], Any]] = {
    "reply-lost": lambda proxy, k: proxy.drop_reply(nth=k),
    "request-lost": lambda proxy, k: proxy.cut_at(nth=k),
    "reset": lambda proxy, k: proxy.cut_at(nth=k, side=Side.REPLIES),
}
"""Faults of connections: by the k-th chunk of bytes of the client."""

CALLS = {
    "call-doubled": Kind.DUPLICATE,
    "call-refused": Kind.REFUSE,
    "call-lost": Kind.DROP_REQUEST,
    "answer-lost": Kind.DROP_REPLY,
}
"""Faults of calls of the store: by the k-th call."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and how long it keeps what a dead client had: ``free`` seconds at most."""

    url: str
    lease: float
    free: float


@pytest.fixture(params=["redis", "sqlite", "postgresql", "mariadb", "etcd", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "redis":
            return Place(request.getfixturevalue("redis_server").url, 2.0, 2.0 + 0.25)
        case "sqlite":
            return Place(f"sqlite:{tmp_path}/locks.db", 2.0, 1.0)
        case "postgresql":
            return Place(request.getfixturevalue("postgres_server").url, 2.0, 2.0 + 0.25)
        case "mariadb":
            return Place(request.getfixturevalue("mariadb_url"), 2.0, 2.0 + 0.25)
        case "etcd":  # it looks for leases that have ended twice a second
            return Place(request.getfixturevalue("etcd_server").url, 2.0, 2.0 + 1.0)
        case _:  # a session and a tick
            url = request.getfixturevalue("zookeeper_server").url + "/sweep?session_timeout=4"
            return Place(url, 3.0, 4.0 + 2.0)


class Room:
    """What the lock protects: it notices two at once, and a token that does not rise."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.tokens: list[int] = []

    def enter(self, hold: Any) -> None:
        alongside = [(other, other.remaining) for other in self.inside if other.remaining > 0]
        assert not alongside, f"two valid holds at one time: {hold} of {hold.name!r} beside {alongside}"
        assert hold.token > max(self.tokens, default=0), "tokens rise"
        self.tokens.append(hold.token)
        self.inside.append(hold)


class StallDetector:
    """What one request costs now: the server, the machine, and some tens of clients that share one loop here."""

    def __init__(self, locks: AsyncClient) -> None:
        self._locks = locks
        self._asks: list[tuple[float, float]] = []
        self._due = 0.0  # when the one begins that comes next, or began that is under way

    async def beat(self) -> None:
        """Ask without end, many times a second."""
        now = asyncio.get_running_loop().time
        self._due = now()
        while True:
            async with self._locks.lock("pulse", lease=30.0):
                pass
            self._asks.append((self._due, now()))
            self._due = now() + PAUSE
            await asyncio.sleep(PAUSE)

    def slowest(self, since: float) -> float:
        """Return the longest time that was needed, from when it was due, to acquire and release, then or later."""
        under_way = asyncio.get_running_loop().time() - self._due
        return max([0.0, under_way, *(end - due for due, end in self._asks if end >= since)])


@contextlib.asynccontextmanager
async def pulse(locks: AsyncClient) -> AsyncIterator[StallDetector]:
    found = StallDetector(locks)
    beats = asyncio.create_task(found.beat())
    try:
        yield found
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats


async def visit(locks: AsyncClient, name: str, lease: float, room: Room) -> None:
    """Hold twice, each time for longer than a renewal; every error of ours is an answer, a wrong hold is not."""
    for _ in range(2):
        with contextlib.suppress(StoreUnavailable, LeaseLost):
            hold = await locks.lock(name, lease=lease).acquire(timeout=4 * lease)
            if hold is None:
                continue
            try:
                hold.raise_if_lost()
                room.enter(hold)
                await asyncio.sleep(lease * 0.4)
                with contextlib.suppress(StoreUnavailable):
                    await hold.renew()
            finally:
                await hold.release()


def visit_in_a_thread(url: str, namespace: str, name: str, lease: float) -> None:
    """Do as `visit` does, in the other flavor, where other tasks run meanwhile."""
    with Client.from_url(url, namespace=namespace, response_timeout=2.0) as locks:
        for _ in range(2):
            with contextlib.suppress(StoreUnavailable, LeaseLost):
                hold = locks.lock(name, lease=lease).acquire(timeout=4 * lease)
                if hold is not None:
                    hold.raise_if_lost()
                    with contextlib.suppress(StoreUnavailable):
                        hold.renew()
                    hold.release()


async def meet(place: Place, namespace: str, deed: str, k: int, others: AsyncClient, beats: StallDetector) -> bool:
    """Let one of two clients meet a fault; return whether there was a k-th of what it is done to."""
    name, room = f"{deed}-{k}", Room()
    if deed in CALLS:
        store = Faulty(registry.opener(place.url), nth(k, Fault(CALLS[deed])))
        async with AsyncClient(store, namespace=namespace, response_timeout=2.0) as locks:
            await asyncio.gather(visit(locks, name, place.lease, room), visit(others, name, place.lease, room))
        met = len(store.calls) > k
    else:
        links = Connections(parse(Secret(place.url)), through=True)
        faults = [ON_CONNECTIONS[deed](proxy, k) for proxy in links.proxies]
        try:
            url = links.url.reveal()
            if k % 2:
                async with AsyncClient.from_url(url, namespace=namespace, response_timeout=2.0) as locks:
                    await asyncio.gather(visit(locks, name, place.lease, room), visit(others, name, place.lease, room))
            else:
                thread = asyncio.to_thread(visit_in_a_thread, url, namespace, name, place.lease)
                await asyncio.gather(thread, visit(others, name, place.lease, room))
            met = any(fault.hits for fault in faults)
        finally:
            await asyncio.to_thread(links.close)
    await next_gets_it(place, name, others, beats, room)
    return met


async def next_gets_it(place: Place, name: str, others: AsyncClient, beats: StallDetector, room: Room) -> None:
    """Acquire what all have done with, in the time that follows from what they left behind."""
    now = asyncio.get_running_loop().time
    begin = now()
    seen = await others.inspect(name)
    left = 0 if seen is None else len(seen.holders) + len(seen.waiters)
    hold = await others.lock(name, lease=place.lease).acquire(timeout=(left + 1) * place.free + 30)
    assert hold is not None
    took, cost = now() - begin, REQUESTS * beats.slowest(begin)
    assert took <= left * place.free + NOISE + cost, f"{name}: {took:.3f} s, of which {cost:.3f} for asking; {seen}"
    assert hold.token > max(room.tokens, default=0)
    await hold.release()


async def sweep(place: Place, namespace: str, deed: str, step: int) -> int:
    """Meet each ``step``-th; return how many were met. The first differs by deed, so that both flavors come."""
    begin, count = 1 + deeds(place).index(deed) % step, 0
    async with AsyncClient.from_url(place.url, namespace=namespace) as others:
        async with pulse(others) as beats:
            for first in range(begin, MOST, step * AT_ONCE):
                some = range(first, first + step * AT_ONCE, step)
                met = await asyncio.gather(*(meet(place, namespace, deed, k, others, beats) for k in some))
                count += sum(met)
                if not all(met):
                    break
            else:
                raise AssertionError("it never ends")
        assert await others.holds() == []
    return count


def deeds(place: Place) -> list[str]:
    return list(CALLS) if place.url.startswith("sqlite:") else [*ON_CONNECTIONS, "call-doubled"]


BY_NIGHT = ("postgresql", "mariadb")
"""Their rows are tested fault by fault by day; so many clients at once wait there for each other's connections."""

PLACES = [
    pytest.param(kind, marks=pytest.mark.nightly) if kind in BY_NIGHT else kind
    for kind in ("redis", "sqlite", "postgresql", "mariadb", "etcd", "zookeeper")
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_a_fault_at_every_request(place: Place, namespace: str, step: int, record_property: Any) -> None:
    async def all_deeds() -> list[int]:
        return await asyncio.gather(*(sweep(place, f"{namespace}-{deed}", deed, step) for deed in deeds(place)))

    met = asyncio.run(all_deeds())
    assert all(met), "each was met"
    record_property("sum:fault sweep: faults", sum(met))


def test_the_room_sees_two_at_once_and_tokens_that_do_not_rise(tmp_path: Path) -> None:
    with Client.from_url(f"sqlite:{tmp_path}/locks.db") as locks:
        first, second = locks.lock("a").acquire(), locks.lock("b").acquire()
        assert first is not None
        assert second is not None
        room = Room()
        room.enter(first)
        with pytest.raises(AssertionError, match="two valid holds"):
            room.enter(second)
        first.release()
        with pytest.raises(AssertionError, match="tokens rise"):
            room.enter(first)
        second.release()


def test_a_plan_counts_calls_from_zero() -> None:
    plan = nth(2, Fault(Kind.REFUSE))
    assert [plan(Call(number, "try_acquire", "x")) is not None for number in range(4)] == [False, False, True, False]
