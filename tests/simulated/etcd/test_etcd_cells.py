"""Cells on etcd: their lifetimes when the leader changes, and the leases of writes that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from leasehold import AsyncClient, StoreUnavailable
from leasehold.primitives.values.register import Body, Register
from leasehold.stores.etcd.http.base import Unanswered
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


# --- leases of writes that fail ---------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "put": lambda client: client.versioned("x").put(1),
    "update": lambda client: client.versioned("x").update(lambda seen: 1),
    "count": lambda client: client.latch("x", 3).count_down(),
    "other ttl": lambda client: client.versioned("v", ttl=60.0).put(2),
}


def lose_replies(client: AsyncClient, to: str, count: int, error: BaseException | None = None) -> None:
    """Carry out such requests without a reply."""
    http = client._engine.store._gateway._http  # type: ignore[attr-defined]
    ask, left = http.ask, [count]

    async def asked(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
        reply = await ask(endpoint, request, until, **options)
        if request.target == "/v3/lease/grant" if to == "grant" else b"request_put" in request.body:
            left[0] -= 1
            if left[0] >= 0:
                raise error or Unanswered("the connection was lost")
        return reply

    http.ask = asked


def leases_in_use(scene: Fetching) -> tuple[list[int], list[int]]:
    cluster = scene.system.cluster
    return sorted(cluster.leases), sorted({pair.lease for pair in cluster.pairs.values()})


@pytest.mark.parametrize("lost", [1, 3, 10**6])
@pytest.mark.parametrize("write", WRITES)
def test_a_grant_without_a_reply_leaves_no_lease_behind(fetching: Fetching, write: str, lost: int) -> None:
    """Nobody would end it for a year. Nothing was written, so the outcome is known."""

    async def story(scene: Fetching) -> None:
        client = scene.machine("one").client(scene.system.opener)
        await client.versioned("v").put(1)
        lose_replies(client, "grant", lost)
        if lost < 10:
            await WRITES[write](client)
        else:
            with pytest.raises(StoreUnavailable) as failed:
                await WRITES[write](client)
            assert not failed.value.unknown
        granted, used = leases_in_use(scene)
        assert len(set(granted) - set(used)) <= (write == "other ttl" and lost < 10), "that of the value before"

    fetching.run(story)


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()])
def test_a_write_without_a_reply_does_not_revoke_the_lease_that_it_may_use(
    fetching: Fetching, error: BaseException | None
) -> None:
    async def story(scene: Fetching) -> None:
        client = scene.machine("one").client(scene.system.opener)
        await client.versioned("v").put(1)
        lose_replies(client, "put", 1, error)
        with suppress(asyncio.CancelledError):
            await client.versioned("v", ttl=60.0).put(2)
        assert (await client.versioned("v").get()).value == 2

    fetching.run(story)


def test_a_lease_is_revoked_if_its_write_fails_before_it_uses_it(fetching: Fetching) -> None:
    """Another client was faster, and then no member answers."""

    async def story(scene: Fetching) -> None:
        client, other = (scene.machine(name).client(scene.system.opener) for name in ("one", "other"))
        http = client._engine.store._gateway._http  # type: ignore[attr-defined]
        ask, reads = http.ask, 0

        async def asked(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            nonlocal reads
            if request.target == "/v3/kv/txn" and b"request_put" not in request.body:
                reads += 1
                if reads > 1:
                    raise Unanswered("the connection was lost")
            elif request.target == "/v3/kv/txn":
                await other.versioned("v", ttl=60.0).put(1)
            return await ask(endpoint, request, until, **options)

        http.ask = asked
        with pytest.raises(StoreUnavailable):
            await client.versioned("v").put(2)
        granted, used = leases_in_use(scene)
        assert granted == used

    fetching.run(story)
