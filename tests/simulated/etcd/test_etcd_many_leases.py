"""A client with many holds on etcd that have a lease each (``max_hold``): all are renewed in time on a slow network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.stores.etcd import at_once
from leasehold.stores.etcd.http.base import Unanswered
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.etcd.http import SimulatedEtcd
from models.history import quiet
from models.system import GOOD
from models.systems.etcd import EtcdSystem

LEASE = 2.0
ROUND_TRIP = 0.03
MANY = 200


class Play:
    """Many holds for a few leases."""

    def __init__(self, count: int) -> None:
        self.harness = SimulatedHarness(1)
        self.count = count
        self.unanswered = ""  # the id of a lease of which no keep-alive gets a response
        self.lost = list[int]()  # the numbers of the lost holds

    async def body(self, _: Harness) -> None:
        system = EtcdSystem(self.harness, 1.0, GOOD)
        machine = self.harness.machine("client")
        client = machine.client(SimulatedEtcd(system.members[:1]))  # of several, each has a share of the time
        for member in system.members:
            member.link("client").latency = (ROUND_TRIP / 2, ROUND_TRIP / 2)
        locks = [client.lock(f"a{number}", lease=LEASE, max_hold=600.0) for number in range(self.count)]
        holds = [await job.result() for job in [machine.spawn(lock.acquire) for lock in locks]]
        store: Any = client._engine.store
        first = next(state for state in store._states.values() if state.name == "a0")
        self._leave_unanswered(machine, store._gateway._http, f"{first.session.id}")
        await self.harness.sleep(4 * LEASE)
        self.lost = [number for number, hold in enumerate(holds) if hold is None or hold.lost]

    def _leave_unanswered(self, machine: SimulatedMachine, http: Any, session: str) -> None:
        ask = http.ask

        async def asked(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            if request.target == "/v3/lease/keepalive" and json.loads(request.body)["ID"] == self.unanswered:
                await machine.sleep(max(0.0, until - machine.runtime.now()))
                raise Unanswered("it answered too slowly")
            return await ask(endpoint, request, until, **options)

        self.unanswered = session if self.unanswered else ""
        http.ask = asked


@pytest.fixture(params=[at_once.AT_ONCE, at_once.AT_ONCE_OF_TASKS], autouse=True)
def as_many_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under threads, and as under asyncio."""
    monkeypatch.setattr(at_once, "AT_ONCE_OF_TASKS", request.param)


def test_all_are_renewed_in_time() -> None:
    play = Play(MANY)
    with quiet():
        play.harness.run(play.body)
    assert play.lost == []


def test_a_lease_whose_keep_alive_gets_no_response_costs_no_other_hold() -> None:
    play = Play(2 * at_once.AT_ONCE)
    play.unanswered = "the first"
    with quiet():
        play.harness.run(play.body)
    assert play.lost == [0]
