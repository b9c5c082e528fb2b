"""``mode=session`` on PostgreSQL: a fair waiter is reported as queued when the server's queue has it, not before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from leasehold.events import Event, Queued
from leasehold.stores._sql.transport import Statement
from leasehold.stores.postgres import advisory
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.net import Connection
from models.sql.postgres import PostgresModel
from models.sql.postgres_transport import SimulatedPostgres

LATE = 0.3
"""Seconds by which the first wait reaches the server later than what was sent at the same time."""


class SlowToQueue(PostgresModel):
    """The first request for a place in the queue takes its time; others overtake it on their own connections."""

    late = LATE

    def receive(self, line: Connection, request: Sequence[Statement]) -> None:
        if any(text == advisory.WAIT for text, _ in request):
            late, self.late = self.late, 0.0
            self.scheduler.at(self.scheduler.time + late, self.machine, partial(super().receive, line, request))
        else:
            super().receive(line, request)


def test_who_asks_when_a_fair_waiter_was_told_of_its_place_comes_after_it() -> None:
    harness, told, entered = SimulatedHarness(1), list[float](), list[str]()

    async def body(_: Harness) -> None:
        opener = SimulatedPostgres(SlowToQueue(harness.scheduler), session=True)
        holder = await harness.machine("holder").client(opener).lock("a", fair=True).acquire()
        assert holder is not None
        queued = harness.runtime.signal()

        def hear(event: Event) -> None:
            if isinstance(event, Queued) and not told:
                told.append(harness.now())
                queued.set()

        async def work(machine: SimulatedMachine) -> None:
            async with machine.client(opener, observer=hear).lock("a", fair=True):
                entered.append(machine.machine.name)
                await machine.sleep(0.1)

        jobs = [(first := harness.machine("first")).spawn(partial(work, first))]
        assert await queued.wait(10.0)
        jobs.append((second := harness.machine("second")).spawn(partial(work, second)))
        await harness.sleep(1.0)
        await holder.release()
        for job in jobs:
            await job.result()

    harness.run(body)
    assert entered == ["first", "second"]
    assert told[0] >= LATE, "there was no place to be told of"
