"""What befalls the workers of a simulated history, and how long it goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from leasehold_lab.runtimes.harnesses import Job, SimulatedHarness, SimulatedMachine


class Doer(Protocol):
    """Who does something on a machine of its own."""

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
    """So often, after a pause of at most so many seconds, kill a worker, or stop it for up to three leases.

    Args:
        harness: where they are.
        workers: of whom one is struck at a time.
        chance: what decides.
        times: how often.
        lease: in seconds.
        pause: the longest pause, in leases.
        kills: how many of those who are struck are killed, of one.

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
    """Wait until each job has ended or its worker is killed, by a time of the harness; raise what ended one."""
    for worker, job in zip(workers, jobs, strict=True):
        while not await job.join(lease) and not worker.machine.machine.killed:
            assert harness.scheduler.time < by, "somebody waits for ever"
        if job.done():
            await job.result()
