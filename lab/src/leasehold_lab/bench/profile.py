"""Profiles: the processor time of one acquire and release by part, in the client and in the server."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold_lab.bench.contestant import Mode
from leasehold_lab.bench.measures import Measure, Trial
from leasehold_lab.bench.places import StoreKind
from leasehold_lab.bench.processes.server_counters import Counters
from leasehold_lab.bench.trials.sampling import KERNEL
from leasehold_lab.bench.trials.trial_pipe import Outcome


@dataclass(frozen=True, slots=True)
class Profile:
    """Microseconds of processor time for one acquire and release.

    Attributes:
        client: by part, the largest first; time in the kernel counts in its part, and is also listed by itself.
        executing: of the server, in its commands and scripts.
        serving: of the server, in everything else: reading, parsing, writing, its event loop.

    """

    client: dict[str, float]
    executing: float
    serving: float

    @classmethod
    def of(cls, outcome: Outcome, work: Counters) -> Profile:
        """Divide the time of a trial by its acquires."""
        each = 1e6 / max(1, outcome.turns)
        parts = sorted(outcome.profile.items(), key=lambda pair: -pair[1])
        return cls(
            {name: seconds * each for name, seconds in parts},
            work.executed * each,
            max(0.0, work.cpu - work.executed) * each,
        )

    @property
    def lines(self) -> dict[str, float]:
        """Return all figures by name."""
        client = {f"client: {name}": value for name, value in self.client.items() if name != KERNEL}
        return {
            **client,
            f"client: {KERNEL}": self.client.get(KERNEL, 0.0),
            "server: commands and scripts": self.executing,
            "server: reading, parsing, writing, its loop": self.serving,
        }


def may_be_profiled(measure: Measure) -> bool:
    """Return whether a measure can be profiled: it must run in main threads, on Redis."""
    main = measure.mode is Mode.ASYNCIO or measure.processes or measure.concurrency == 1
    redis = measure.place in (StoreKind.REDIS, StoreKind.REDLOCK) and not measure.disturbed
    return redis and main and measure.trial in (Trial.PAIRS, Trial.HANDOVER)
