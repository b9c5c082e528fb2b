"""An outage of etcd at each request of an acquire and its release: what is left behind ends with its lease.

The client goes on with short holds of another name. So its session lives on, and with it each key that nobody deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from leasehold import AsyncClient, LeaseLost, NameInUse, StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.etcd.state import LATE, LEAST_TTL
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = float(LEAST_TTL)

REQUESTS = 7
"""Those of an acquire and its release, and a few renewals."""

FREE_WITHIN = 2 * LEASE + LATE + 1.0
"""Seconds after the outage: a new leader counts each lease anew, and then comes the next acquire of the client."""

BUSY = 0.2
"""Seconds that each further hold of the client lasts: too short for a renewal."""

Primitive = Callable[[AsyncClient], Any]

PRIMITIVES: dict[str, tuple[Primitive, Primitive, Primitive]] = {
    "lock": (
        lambda client: client.lock("a", lease=LEASE),
        lambda client: client.lock("a", lease=LEASE),
        lambda client: client.lock("a", lease=LEASE),
    ),
    "reader": (
        lambda client: client.rw_lock("a", lease=LEASE).reader(),
        lambda client: client.rw_lock("a", lease=LEASE).reader(),
        lambda client: client.rw_lock("a", lease=LEASE).writer(),
    ),
    "fair reader": (
        lambda client: client.rw_lock("a", lease=LEASE, fair=True).reader(),
        lambda client: client.rw_lock("a", lease=LEASE, fair=True).reader(),
        lambda client: client.rw_lock("a", lease=LEASE, fair=True).writer(),
    ),
    "permit": (
        lambda client: client.semaphore("a", 2, lease=LEASE, fair=True).permits(1),
        lambda client: client.semaphore("a", 2, lease=LEASE, fair=True).permits(1),
        lambda client: client.semaphore("a", 2, lease=LEASE, fair=True).permits(2),
    ),
    "other use": (
        lambda client: client.semaphore("a", 2, lease=LEASE).permits(1),
        lambda client: client.lock("a", lease=LEASE),
        lambda client: client.semaphore("a", 2, lease=LEASE).permits(2),
    ),
}
"""What another client holds, what the client acquires beside it or after it, and what the rival acquires."""


def refused(system: EtcdSystem, machine: SimulatedMachine) -> float:
    """Refuse connections for a moment: nothing is sent."""
    for member in system.members:
        member.link(machine.machine.name).refused = system.harness.scheduler.time + LEASE / 20
        member.hang_up(machine.machine, arrives=True)
    return LEASE / 20


def away(system: EtcdSystem, machine: SimulatedMachine) -> float:
    """Stop all members for more than a lease; the next leader counts all leases anew."""
    system.cluster.elect(system.harness.scheduler.time + 3 * LEASE)
    for member in system.members:
        member.restart(3 * LEASE)
    return 3 * LEASE


class Play:
    """One outage, at a request of the client."""

    def __init__(self, primitive: str, outage: Callable[[EtcdSystem, SimulatedMachine], float], number: int) -> None:
        self.harness = SimulatedHarness(number)
        self.held, self.wanted, self.rival = PRIMITIVES[primitive]
        self.outage = outage
        self.left = number  # requests until the outage begins
        self.reached = False  # whether the acquire and the release sent so many
        self.ends = 0.0  # when it ends
        self.free = False  # whether the rival acquired it

    async def body(self, _: Harness) -> None:
        harness = self.harness
        system = EtcdSystem(harness, 1.0, GOOD)
        machine = harness.machine("client")
        client, other, rival = (
            one.client(system.opener) for one in (machine, harness.machine("other"), harness.machine("rival"))
        )
        held = await self.held(other).acquire()
        async with client.lock("busy", lease=LEASE):
            self._count_requests(client, partial(self.outage, system, machine))
        with suppress(StoreUnavailable, LeaseLost, NameInUse):
            hold = await self.wanted(client).acquire(timeout=LEASE / 2)
            if hold is not None:
                await harness.sleep(LEASE / 4)
                await hold.release()
        if self.left > 0:
            return
        self.reached = True
        await harness.sleep(max(0.0, self.ends - harness.scheduler.time))
        with suppress(StoreUnavailable, LeaseLost):
            await held.release()
        until = harness.scheduler.time + FREE_WITHIN
        acquiring = harness.spawn(partial(self._acquire, rival))
        while harness.scheduler.time < until and not self.free:
            with suppress(StoreUnavailable, LeaseLost):
                async with client.lock("busy", lease=LEASE):
                    await harness.sleep(BUSY)
        await acquiring.join()

    async def _acquire(self, rival: AsyncClient) -> None:
        until = self.harness.scheduler.time + FREE_WITHIN
        while self.harness.scheduler.time < until:
            with suppress(NameInUse):
                hold = await self.rival(rival).acquire(timeout=until - self.harness.scheduler.time)
                if hold is not None:
                    self.free = True
                    await hold.release()
                return
            await self.harness.sleep(BUSY)

    def _count_requests(self, client: AsyncClient, begin: Callable[[], float]) -> None:
        http: Any = client._engine.store._gateway._http  # type: ignore[attr-defined]
        ask = http.ask

        async def counted(*request: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.ends = self.harness.scheduler.time + begin()
            return await ask(*request, **options)

        http.ask = counted


@pytest.mark.parametrize("outage", [refused, away])
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_what_an_outage_leaves_behind_ends_with_its_lease(
    primitive: str, outage: Callable[[EtcdSystem, SimulatedMachine], float]
) -> None:
    plays = [Play(primitive, outage, number) for number in range(1, REQUESTS + 1)]
    for play in plays:
        with quiet():
            play.harness.run(play.body)
    reached = [play.reached for play in plays]
    assert reached.count(True) >= 2, "an acquire and its release are two requests at least"
    assert reached[-1] is False, "there are more requests than those at which an outage began"
    blocked = [number for number, play in enumerate(plays, start=1) if play.reached and not play.free]
    assert blocked == [], "an outage at these requests blocks the rival for as long as the client is busy"
