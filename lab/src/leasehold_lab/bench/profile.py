"""Where the time of one acquire and release goes, in the client and in the server, for leasehold and for the floor."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold_lab.bench.contestants import Mode
from leasehold_lab.bench.measures import Measure, Trial
from leasehold_lab.bench.places import Place
from leasehold_lab.bench.processes.server_counters import Look
from leasehold_lab.bench.trials.sampling import KERNEL
from leasehold_lab.bench.trials.talk import Outcome


@dataclass(frozen=True, slots=True)
class Profile:
    """Microseconds of processor time for one acquire and release.

    Attributes:
        client: by part, the largest first; what lies in the kernel is counted in its parts, and once more by itself.
        executing: of the server, in its commands and scripts.
        serving: of the server, in all else: reading, parsing, writing, its loop.

    """

    client: dict[str, float]
    executing: float
    serving: float

    @classmethod
    def of(cls, outcome: Outcome, work: Look) -> Profile:
        """Share out what a trial took among its acquires."""
        each = 1e6 / max(1, outcome.turns)
        parts = sorted(outcome.profile.items(), key=lambda pair: -pair[1])
        return cls(
            {name: seconds * each for name, seconds in parts},
            work.executed * each,
            max(0.0, work.cpu - work.executed) * each,
        )

    @property
    def lines(self) -> dict[str, float]:
        """All of it, by name."""
        client = {f"client: {name}": value for name, value in self.client.items() if name != KERNEL}
        return {
            **client,
            f"client: {KERNEL}": self.client.get(KERNEL, 0.0),
            "server: commands and scripts": self.executing,
            "server: reading, parsing, writing, its loop": self.serving,
        }


def may_be_profiled(measure: Measure) -> bool:
    """Say whether the time of a measure can be looked into: it must pass in main threads, on Redis."""
    main = measure.mode is Mode.ASYNCIO or measure.processes or measure.concurrency == 1
    redis = measure.place in (Place.REDIS, Place.REDLOCK) and not measure.harms
    return redis and main and measure.trial in (Trial.PAIRS, Trial.HANDOVER)
