"""`Cancellation.cancel` while the acquire request is under way to etcd: nothing is left behind, whenever it arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from leasehold import AsyncClient, Cancellation, LeaseLost, StoreUnavailable
from leasehold.stores.etcd.http.base import Unanswered
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.etcd.state import LEAST_TTL
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = float(LEAST_TTL)
SLOW = 0.05
"""Seconds by which the acquire request is overtaken by its release."""

BUSY = 0.2
"""Seconds that each further hold of the client lasts: too short for a renewal."""

MANY = 40
"""Cancelled acquires: each at another moment of its requests."""

MAKES: dict[str, Callable[[AsyncClient], Any]] = {
    "lock": lambda client: client.lock("a", lease=LEASE),
    "fixed": lambda client: client.lock("a", lease=LEASE, renew=False),
    "reader": lambda client: client.rw_lock("a", lease=LEASE).reader(),
    "permit": lambda client: client.semaphore("a", 2, lease=LEASE).permits(1),
}


class Play:
    """A client, its cluster, and a rival."""

    def __init__(self, harness: SimulatedHarness) -> None:
        self.harness = harness
        self.system = EtcdSystem(harness, 1.0, GOOD)
        self.machine: SimulatedMachine = harness.machine("client")
        self.client = self.machine.client(self.system.opener)
        self.rival = harness.machine("rival").client(self.system.opener)
        self.store: Any = self.client._engine.store

    def cancel_the_next(self, cancel: Cancellation, *, outage: bool) -> None:
        """Cancel while the next acquire request is sent, which arrives later; then there may be an outage."""
        http = self.store._gateway._http
        ask = http.ask

        async def slow(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            if request.target != "/v3/kv/txn" or b"request_put" not in request.body:
                return await ask(endpoint, request, until, **options)
            http.ask = ask
            cancel.cancel()
            await self.machine.sleep(SLOW)
            reply = await ask(endpoint, request, until, **options)
            if outage:
                self.system.cluster.elect(self.harness.scheduler.time + 3 * LEASE)
                for member in self.system.members:
                    member.restart(3 * LEASE)
                raise Unanswered("the connection was lost")
            return reply

        http.ask = slow

    def cancel_the_next_answered(self, cancel: Cancellation) -> None:
        """Cancel when the next acquire request was carried out; its response comes after that to the release."""
        http = self.store._gateway._http
        ask = http.ask

        async def slow(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            reply = await ask(endpoint, request, until, **options)
            if request.target == "/v3/kv/txn" and b"request_put" in request.body:
                http.ask = ask
                cancel.cancel()
                await self.machine.sleep(SLOW)
            return reply

        http.ask = slow

    async def be_busy(self, until: Callable[[], bool]) -> None:
        """Go on with short holds of another name."""
        ends = self.harness.scheduler.time + 6 * LEASE
        while self.harness.scheduler.time < ends and not until():
            with suppress(StoreUnavailable, LeaseLost):
                async with self.client.lock("busy", lease=LEASE):
                    await self.harness.sleep(BUSY)

    def keys(self) -> list[bytes]:
        return [key for key in self.system.cluster.pairs if b"/lock/a/" in key]


def run(body: Callable[[Play], Awaitable[None]]) -> None:
    harness = SimulatedHarness(1)

    async def play(_: Harness) -> None:
        await body(Play(harness))

    with quiet():
        harness.run(play)


@pytest.mark.parametrize("outage", [False, True])
@pytest.mark.parametrize("kind", MAKES)
def test_an_acquire_request_that_arrives_after_its_release_blocks_nobody(kind: str, outage: bool) -> None:
    async def body(play: Play) -> None:
        async with play.client.lock("busy", lease=LEASE):
            pass
        cancel = Cancellation()
        play.cancel_the_next(cancel, outage=outage)
        with suppress(StoreUnavailable):
            assert await MAKES[kind](play.client).acquire(timeout=30.0, cancel=cancel) is None
        assert play.store._sessions._spare == [], "the request may still write under its lease"
        if outage:
            await play.harness.sleep(3 * LEASE)
        await play.be_busy(lambda: not play.keys())
        assert play.keys() == []
        assert await play.rival.lock("a", lease=LEASE).acquire(blocking=False) is not None

    run(body)


def test_a_cancelled_waiter_is_not_listed_any_more_and_the_watch_ends() -> None:
    async def body(play: Play) -> None:
        for member in play.system.members:
            member.link("client").latency = (SLOW / 10, SLOW / 10)
        async with play.client.lock("busy", lease=LEASE):
            pass
        held = await play.rival.rw_lock("a", lease=LEASE).writer().acquire()
        for number in range(MANY):
            cancel = Cancellation()
            reader = play.client.rw_lock("a", lease=LEASE).reader()
            job = play.machine.spawn(lambda reader=reader, cancel=cancel: reader.acquire(timeout=30.0, cancel=cancel))
            await play.harness.sleep(number / MANY * SLOW)
            cancel.cancel()
            assert await job.result() is None
        await held.release()
        await nothing_is_watched(play)

    run(body)


@pytest.mark.parametrize("kind", MAKES)
def test_a_waiter_whose_response_comes_after_its_release_is_not_listed(kind: str) -> None:
    async def body(play: Play) -> None:
        held = await MAKES[kind](play.rival).acquire()
        if kind == "reader":
            await held.release()
            held = await play.rival.rw_lock("a", lease=LEASE).writer().acquire()
        elif kind == "permit":
            await MAKES[kind](play.rival).acquire()
        cancel = Cancellation()
        play.cancel_the_next_answered(cancel)
        assert await MAKES[kind](play.client).acquire(timeout=30.0, cancel=cancel) is None
        await nothing_is_watched(play)

    run(body)


def test_what_cancelled_acquires_leave_behind_is_bounded_though_a_hold_keeps_its_session() -> None:
    """The lease that the first of them shared with the hold lives on, and with it what says that they were given up."""
    at_most = 64

    async def body(play: Play) -> None:
        held = await play.client.lock("keep", lease=LEASE).acquire()
        for number in range(3 * at_most):
            cancel = Cancellation()
            play.cancel_the_next(cancel, outage=False)
            assert await play.client.lock(f"n{number}", lease=LEASE).acquire(cancel=cancel) is None
        await play.harness.sleep(3 * LEASE)
        graves = [key for key in play.system.cluster.pairs if b"/grave/" in key]
        assert len(graves) <= at_most
        assert len(play.system.cluster.leases) == 1, "that of the hold"
        assert held is not None
        held.raise_if_lost()
        assert await held.release()

    run(body)


async def nothing_is_watched(play: Play) -> None:
    await play.harness.sleep(60.0)
    watch = play.store._watch
    assert (dict(watch._waiting), watch._stream, play.store._states) == ({}, None, {})
