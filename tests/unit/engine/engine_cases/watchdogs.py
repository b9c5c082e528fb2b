"""What the tests of the watchdog share: a client on a store that fails on command, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from leasehold._engine.engine import Engine
from leasehold.client import AsyncClient
from leasehold.events import Event
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LEASE = 9.0
DEAD = Fault(Kind.DROP_REQUEST, 60.0)  # as long as the caller's patience


class Switch:
    """A plan that fails on command, from that moment."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.methods = ("try_acquire", "release", "renew")
        self.seen: list[tuple[float, str]] = []
        self.now: Callable[[], float] = float

    def __call__(self, call: Call) -> Fault | None:
        self.seen.append((self.now(), call.method))
        return self.fault if call.method in self.methods else None

    def times(self, method: str) -> list[float]:
        return [when for when, what in self.seen if what == method]


def simulate(body: Callable[[SimulatedHarness, AsyncClient, Switch, list[Event]], object], **options: object) -> None:
    """Run a body with a client on a faulty store, in virtual time."""
    harness, plan, events = SimulatedHarness(), Switch(), []

    async def run(_: Harness) -> None:
        plan.now = harness.now
        client = harness.client(Faulty(Memory(), plan), observer=events.append, **options)
        await body(harness, client, plan, events)  # type: ignore[misc]

    harness.run(run)


def engine(client: AsyncClient) -> Engine:
    return client._engine
