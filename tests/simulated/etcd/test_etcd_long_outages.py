"""A ticket on etcd expires in an outage, while its session lives on: its acquire continues, and is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold import AsyncClient
from leasehold.stores.etcd.http.base import Unanswered
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.etcd.state import LEAST_TTL
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = float(LEAST_TTL)

LONG_LEASE = 30.0
"""The usual one."""

SERVED_WITHIN = 1.0
"""Seconds after the release, or after the outage."""


class Play:
    """A client, its cluster, and a rival."""

    def __init__(self, harness: SimulatedHarness) -> None:
        self.harness = harness
        self.system = EtcdSystem(harness, 1.0, GOOD)
        self.machine: SimulatedMachine = harness.machine("client")
        self.client = self.machine.client(self.system.opener)
        self.rival: AsyncClient = harness.machine("rival").client(self.system.opener)
        self.store: Any = self.client._engine.store

    @property
    def now(self) -> float:
        return self.harness.scheduler.time

    def keys(self, what: str) -> list[bytes]:
        return [key for key in self.system.cluster.pairs if f"/{what}/".encode() in key]

    def leave_unanswered(self, *, carried_out: bool) -> None:
        """Let the next acquire request have no response; the leader dies, and the new one counts all leases anew."""
        http = self.store._gateway._http
        ask = http.ask

        async def unanswered(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            if request.target != "/v3/kv/txn" or b"request_put" not in request.body:
                return await ask(endpoint, request, until, **options)
            http.ask = ask
            if carried_out:
                await ask(endpoint, request, until, **options)
            left = until - self.machine.runtime.now()
            self.system.cluster.elect(self.now + left - 0.05)
            await self.machine.sleep(left)
            raise Unanswered("it answered too slowly")

        http.ask = unanswered

    async def hold_back_replies(self, seconds: float) -> None:
        """Let no reply reach the client; near the end, another leader counts all leases anew."""
        ends = self.now + seconds
        self.system.cluster.elect(self.now + seconds * 0.98)
        for member in self.system.members:
            member.link("client").replies_held = ends
            member.hang_up(arrives=True)
        await self.harness.sleep(seconds + 5.0)


def run(body: Callable[[Play], Awaitable[None]]) -> None:
    harness = SimulatedHarness(1)

    async def play(_: Harness) -> None:
        await body(Play(harness))

    with quiet():
        harness.run(play)


@pytest.mark.parametrize("carried_out", [False, True])
def test_an_acquire_whose_first_request_had_no_response_for_a_lease_gets_the_free_lock(carried_out: bool) -> None:
    async def body(play: Play) -> None:
        async with play.client.lock("busy", lease=LEASE):
            pass
        await play.harness.sleep(0.6)  # what is left of the lease is less than the time for a response
        play.leave_unanswered(carried_out=carried_out)
        begun = play.now
        assert await play.client.lock("a", lease=LEASE).acquire(timeout=30.0) is not None
        assert play.now - begun < LEASE + SERVED_WITHIN
        assert play.keys("grave") == [], "its own acquire found the key, or that there was none"

    run(body)


@pytest.mark.parametrize("seconds", [21.0, 23.0, 25.0, 26.0, 27.0, 29.0])
@pytest.mark.parametrize("begins", [0.5, 2.0, 4.0, 6.0, 8.0, 9.5])
def test_a_waiter_is_served_after_an_outage_of_nearly_its_lease(begins: float, seconds: float) -> None:
    async def body(play: Play) -> None:
        held = await play.rival.lock("a", lease=4 * LONG_LEASE).acquire()
        assert held is not None
        served = list[float]()

        async def wait() -> None:
            if await play.client.lock("a", lease=LONG_LEASE).acquire(timeout=300.0) is not None:
                served.append(play.now)

        waiting = play.machine.spawn(wait)
        await play.harness.sleep(begins)
        await play.hold_back_replies(seconds)
        await held.release()
        released = play.now
        await waiting.result()
        assert len(served) == 1
        assert served[0] - released < SERVED_WITHIN

    run(body)


def expire(play: Play, name: str) -> Any:
    """Let a ticket expire, as after an outage in which another one kept its session alive; return its state."""
    (state,) = [one for one in play.store._states.values() if one.name == name]
    state.until = play.machine.runtime.now()
    return state


def test_a_waiter_whose_session_lives_on_keeps_its_place_when_it_retries() -> None:
    async def body(play: Play) -> None:
        held = await play.rival.lock("a", lease=4 * LONG_LEASE).acquire()
        assert held is not None
        first = play.machine.spawn(lambda: play.client.lock("a", lease=LONG_LEASE).acquire(timeout=60.0))
        await play.harness.sleep(1.1)
        second = play.harness.spawn(lambda: play.rival.lock("a", lease=LONG_LEASE).acquire(timeout=60.0))
        await play.harness.sleep(1.1)
        expire(play, "a").set()
        await play.harness.sleep(0.1)
        await held.release()
        hold = await first.result()
        assert hold is not None
        assert not second.done()
        await hold.release()
        assert await second.result() is not None

    run(body)


def test_a_waiter_that_another_acquire_removed_is_served_under_another_session() -> None:
    """A deletion of its old key may arrive late, and its old tombstone lives as long as the old session."""

    async def body(play: Play) -> None:
        held = await play.rival.lock("a", lease=4 * LONG_LEASE).acquire()
        assert held is not None
        waiting = play.machine.spawn(lambda: play.client.lock("a", lease=LONG_LEASE).acquire(timeout=60.0))
        await play.harness.sleep(1.1)
        old = expire(play, "a")
        old.unknown = True
        assert await play.client.lock("b", lease=LONG_LEASE).acquire() is not None
        await play.harness.sleep(0.5)
        (new,) = [one for one in play.store._states.values() if one.name == "a"]
        assert new.session is not old.session
        await held.release()
        released = play.now
        assert await waiting.result() is not None
        assert play.now - released < SERVED_WITHIN
        for name in ("c", "d"):
            async with play.client.lock(name, lease=LONG_LEASE):
                (shared,) = {one.session for one in play.store._states.values() if one.name in ("a", name)}
                assert shared is new.session, "one new session serves all"

    run(body)


def test_a_session_that_was_replaced_is_forgotten_when_it_has_ended() -> None:
    async def body(play: Play) -> None:
        for _ in range(10):
            hold = await play.client.lock("a", lease=LEASE).acquire()
            assert hold is not None
            expire(play, "a")
            async with play.client.lock("b", lease=LEASE):
                pass
            await play.harness.sleep(3 * LEASE)
        assert len(play.store._sessions._all) <= 2

    run(body)
