"""Guarded writes to etcd whose requests have no response: each is made once and in order, with an exact result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from leasehold import AsyncClient, LeaseLost, StoreUnavailable
from leasehold.guards.etcd import AsyncEtcdGuard
from leasehold.stores.etcd.http.base import Unanswered
from leasehold.stores.etcd.keys import b64
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = 30.0

LATE = 3.0
"""Seconds after which a stopped member goes on, and carries out the request that it has."""

KEY = "stock"

MAKES: dict[str, Callable[[AsyncClient], Any]] = {
    "lock": lambda client: client.lock("a", lease=LEASE),
    "writer": lambda client: client.rw_lock("a", lease=LEASE).writer(),
    "permit": lambda client: client.semaphore("a", 1, lease=LEASE).permits(1),
}


class Play:
    """A client with a hold, and its cluster."""

    def __init__(self, harness: SimulatedHarness) -> None:
        self.harness = harness
        self.system = EtcdSystem(harness, 1.0, GOOD)
        self.machine: SimulatedMachine = harness.machine("client")
        self.client = self.machine.client(self.system.opener)

    @property
    def value(self) -> bytes | None:
        pair = self.system.cluster.pairs.get(KEY.encode())
        return None if pair is None else pair.value

    def keys(self, what: str) -> list[bytes]:
        return [key for key in self.system.cluster.pairs if f"/{what}/".encode() in key]

    def break_lock(self) -> None:
        """Delete the lock's key, as an operator does."""
        for key in self.keys("lock"):
            del self.system.cluster.pairs[key]

    def next_write(self, *, late: float | None, then: Callable[[], object] = lambda: None, times: int = 1) -> None:
        """Let the next guarded write have no response: it is carried out at once, or ``late``; then call ``then``."""
        http: Any = self.client._engine.store._gateway._http  # type: ignore[attr-defined]
        ask, left = http.ask, [times]

        async def unanswered(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            if b64(KEY).encode() not in request.body:
                return await ask(endpoint, request, until, **options)
            left[0] -= 1
            if not left[0]:
                http.ask = ask

            async def carry_out() -> None:
                await self.harness.sleep(late or 0.0)
                with suppress(Unanswered):
                    await ask(endpoint, request, until + LATE, **options)

            job = self.machine.spawn(carry_out)
            if late is None:
                await job.result()
            then()
            raise Unanswered("it answered too slowly")

        http.ask = unanswered


def run(body: Callable[[Play], Awaitable[None]]) -> None:
    harness = SimulatedHarness(1)

    async def play(_: Harness) -> None:
        await body(Play(harness))

    with quiet():
        harness.run(play)


@pytest.mark.parametrize("kind", MAKES)
def test_a_copy_of_a_write_that_arrives_late_does_not_undo_later_writes(kind: str) -> None:
    async def body(play: Play) -> None:
        hold = await MAKES[kind](play.client).acquire()
        guard = AsyncEtcdGuard(hold)
        play.next_write(late=LATE)
        await guard.put(KEY, b"17")
        await AsyncEtcdGuard(hold).put(KEY, b"16")
        await play.harness.sleep(2 * LATE)
        assert play.value == b"16"
        play.next_write(late=LATE)
        await guard.put(KEY, b"15")
        await guard.delete(KEY)
        await play.harness.sleep(2 * LATE)
        assert play.value is None
        assert not hold.lost

    run(body)


def test_a_write_without_any_response_is_made_before_the_next_one_or_not_at_all() -> None:
    async def body(play: Play) -> None:
        client = play.machine.client(play.system.opener, response_timeout=1.0)
        play.client = client
        hold: Any = await client.lock("a", lease=LEASE).acquire()
        guard = AsyncEtcdGuard(hold)
        for late, left in ((LATE, b"2"), (None, b"4")):
            play.next_write(late=late, times=1000)
            with pytest.raises(StoreUnavailable) as failed:
                await guard.put(KEY, b"%d" % (int(left) - 1))
            assert failed.value.unknown
            del client._engine.store._gateway._http.ask  # type: ignore[attr-defined]  # it answers again
            assert await guard.put(KEY, left) == play.system.cluster.pairs[KEY.encode()].written
            await play.harness.sleep(3 * LATE)
            assert play.value == left

    run(body)


def test_a_write_that_was_made_before_the_lock_was_lost_returns_its_revision() -> None:
    async def body(play: Play) -> None:
        hold: Any = await play.client.lock("a", lease=LEASE).acquire()
        guard = AsyncEtcdGuard(hold)
        await guard.put(KEY, b"1")
        play.next_write(late=None, then=play.break_lock)
        assert await guard.put(KEY, b"2") == play.system.cluster.pairs[KEY.encode()].written
        with pytest.raises(LeaseLost):
            await guard.put(KEY, b"3")
        assert play.value == b"2"

    run(body)


def test_a_write_that_the_lost_lock_refused_is_never_made() -> None:
    async def body(play: Play) -> None:
        hold: Any = await play.client.lock("a", lease=LEASE).acquire()
        guard = AsyncEtcdGuard(hold)
        await guard.put(KEY, b"1")
        play.next_write(late=LATE, then=play.break_lock)
        with pytest.raises(LeaseLost):
            await guard.put(KEY, b"2")
        await play.harness.sleep(2 * LATE)
        assert play.value == b"1"

    run(body)


@pytest.mark.parametrize("late", [None, LATE], ids=["made", "not made"])
def test_a_write_without_a_response_is_unknown_when_the_lease_of_its_lock_has_ended(late: float | None) -> None:
    async def body(play: Play) -> None:
        hold: Any = await play.client.lock("a", lease=LEASE).acquire()
        guard = AsyncEtcdGuard(hold)
        cluster = play.system.cluster
        play.next_write(late=late, then=lambda: [cluster.revoke(lease) for lease in list(cluster.leases)])
        with pytest.raises(StoreUnavailable, match="'a'") as failed:
            await guard.put(KEY, b"1")
        assert failed.value.unknown
        with pytest.raises(LeaseLost):
            await guard.put(KEY, b"2")
        await play.harness.sleep(2 * LATE)
        assert play.value == (b"1" if late is None else None)

    run(body)


@pytest.mark.parametrize("kind", MAKES)
def test_many_writes_at_once_are_all_made_and_leave_nothing_behind(kind: str) -> None:
    async def body(play: Play) -> None:
        async with play.client.lock("busy", lease=LEASE):
            hold = await MAKES[kind](play.client).acquire()
            guards = [AsyncEtcdGuard(hold) for _ in range(3)]
            jobs = [
                play.machine.spawn(partial(guard.put, f"{KEY}/{number}", b""))
                for guard in guards
                for number in range(20)
            ]
            revisions = [await job.result() for job in jobs]
            assert len({*revisions}) == len(jobs)
            assert await hold.release()
            assert play.keys("grave") == []

    run(body)
