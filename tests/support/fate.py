"""Pauses and kills workers of a simulated history, and waits for their end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from leasehold_lab.runtimes.harnesses import Job, SimulatedHarness, SimulatedMachine


class Doer(Protocol):
    """A worker on its own machine."""

    @property
    def machine(self) -> SimulatedMachine: ...


async def disturb(
    harness: SimulatedHarness,
    workers: Sequence[Doer],
    chance: random.Random,
    times: int,
    lease: float,
    *,
    pause: float,
    kills: float,
) -> None:
    """Repeatedly kill a random worker, or pause it for up to three leases.

    Args:
        harness: of the workers.
        workers: the possible victims.
        chance: decides.
        times: the number of disturbances.
        lease: in seconds.
        pause: the longest time between two disturbances, in leases.
        kills: the fraction of disturbances that are kills.

    """
    for _ in range(times):
        await harness.sleep(chance.uniform(0.0, pause * lease))
        machine = chance.choice(workers).machine
        if machine.machine.killed:
            continue
        if chance.random() < kills:
            machine.kill()
        else:
            machine.stall(chance.uniform(0.1, 3 * lease))


async def all_end(
    harness: SimulatedHarness, workers: Sequence[Doer], jobs: Sequence[Job[Any]], lease: float, *, by: float = 1000.0
) -> None:
    """Wait until each job has ended or its worker is killed, at most until ``by``; raise the error of a failed job."""
    for worker, job in zip(workers, jobs, strict=True):
        while not await job.join(lease) and not worker.machine.machine.killed:
            assert harness.scheduler.time < by, "a worker waits for ever"
        if job.done():
            await job.result()
