"""How the workers of a simulated history are killed and stopped, and the wait for their end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from leasehold_lab.runtimes.harnesses import Job, SimulatedHarness, SimulatedMachine


class Doer(Protocol):
    """A worker on a machine of its own."""

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
    """Kill a worker, or stop it for up to three leases, again and again after a pause.

    Args:
        harness: runs the workers.
        workers: one of them is chosen each time.
        chance: makes the choices.
        times: how often a worker is killed or stopped.
        lease: in seconds.
        pause: the longest pause, in leases.
        kills: the share that is killed, from 0 to 1.

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
    """Wait until each job has ended or its worker is killed; raise the error of a job.

    The harness reaches the time ``by`` only if a job never ends.
    """
    for worker, job in zip(workers, jobs, strict=True):
        while not await job.join(lease) and not worker.machine.machine.killed:
            assert harness.scheduler.time < by, "a worker waits for ever"
        if job.done():
            await job.result()
