"""The result of a run: medians and ratios over its rounds, as values and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from leasehold_lab.bench.contestant import Contestant, Role
from leasehold_lab.bench.measures import Measure
from leasehold_lab.bench.profile import Profile
from leasehold_lab.bench.trials.trial_pipe import Outcome

FORMAT = 1
"""Version of the JSON."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, with the lowest and the highest value."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        found = sorted(values)
        return cls(median(found), found[0], found[-1])


@dataclass(frozen=True, slots=True)
class Sample:
    """One trial of one contestant in one round, with the counters of the server."""

    outcome: Outcome
    commands: dict[str, int]
    reads: float
    server_cpu: float
    server_memory: int

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.outcome.operations / self.outcome.seconds

    def per_operation(self, amount: float) -> float:
        """Divide an amount by the acquires of this trial; 0 if there were none."""
        return amount / self.outcome.turns if self.outcome.turns else 0.0


@dataclass(slots=True)
class Entry:
    """One contestant in one measure: its samples, one a round, or the reason why there are none."""

    contestant: Contestant
    samples: list[Sample] = field(default_factory=list[Sample])
    error: str = ""
    profile: Profile | None = None

    @property
    def rate(self) -> Spread:
        """Operations per second."""
        return Spread.of(sample.rate for sample in self.samples)

    def median(self, value: str) -> float:
        """Return the median of a figure of the outcomes."""
        return float(median(getattr(sample.outcome, value) for sample in self.samples))

    @property
    def client_us(self) -> float:
        """Microseconds of the client's processor time for one acquire and release."""
        return median(sample.per_operation(sample.outcome.cpu * 1e6) for sample in self.samples)

    @property
    def server_us(self) -> float:
        """Microseconds of the server's processor time for one acquire and release."""
        return median(sample.per_operation(sample.server_cpu * 1e6) for sample in self.samples)

    @property
    def reads(self) -> float:
        """Reads of the server from connections, or requests to it, for one acquire and release."""
        return median(sample.per_operation(sample.reads) for sample in self.samples)

    @property
    def commands(self) -> float:
        """Commands that the server executed for one acquire and release; those inside scripts count."""
        return median(sample.per_operation(sum(sample.commands.values())) for sample in self.samples)

    def share(self, whose: str) -> float:
        """Return the fraction of one core that the ``client`` or the ``server`` used."""
        used = [sample.outcome.cpu if whose == "client" else sample.server_cpu for sample in self.samples]
        return median(cpu / sample.outcome.seconds for cpu, sample in zip(used, self.samples, strict=True))

    @property
    def commands_per_second(self) -> float:
        """Commands that the server executed in a second."""
        return median(sum(sample.commands.values()) / sample.outcome.seconds for sample in self.samples)

    @property
    def server_bytes(self) -> float:
        """Bytes that the server needs for each lock or waiter; connections count."""
        return median(sample.per_operation(sample.server_memory) for sample in self.samples)

    @property
    def overlaps(self) -> int:
        """How often two contenders held the lock at the same time, in all rounds."""
        return sum(sample.outcome.overlaps for sample in self.samples)

    def ratio(self, other: Entry | None) -> Spread | None:
        """Compare rates round by round; None if there is nothing to compare with."""
        if other is None:
            return None
        pairs = zip(self.samples, other.samples, strict=False)
        ratios = [mine.rate / theirs.rate for mine, theirs in pairs if theirs.rate]
        return Spread.of(ratios) if ratios else None

    def cpu_ratio(self, other: Entry | None) -> float | None:
        """Return the client's processor time as a multiple of the other's."""
        return (
            self.client_us / other.client_us if other and other.samples and self.samples and other.client_us else None
        )


@dataclass(slots=True)
class Row:
    """One measure with all its contestants."""

    measure: Measure
    entries: list[Entry]

    @property
    def floor(self) -> Entry | None:
        """The floor."""
        return next((one for one in self.entries if one.contestant.key == self.measure.floor and one.samples), None)

    @property
    def ours(self) -> Entry | None:
        """The entry of leasehold."""
        return next((one for one in self.entries if one.contestant.role is Role.OURS and one.samples), None)


@dataclass(slots=True)
class Result:
    """A whole run.

    Attributes:
        rows: one for each measure.
        facts: machine, versions, settings.
        settings: the settings that are not the default, by the contestant's title.
        missing: the contestants that could not take part, with the reason.
        seconds: the length of the run.

    """

    rows: list[Row]
    facts: dict[str, str]
    settings: dict[str, str]
    missing: dict[str, str]
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether leasehold was measured in all rows, and no two contenders held its lock at once."""
        ours = [entry for row in self.rows for entry in row.entries if entry.contestant.role is Role.OURS]
        return all(not entry.error and not entry.overlaps for entry in ours)

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            "format": FORMAT,
            "seconds": round(self.seconds, 1),
            "facts": self.facts,
            "settings": self.settings,
            "missing": self.missing,
            "measures": [_row(row) for row in self.rows],
        }


def _row(row: Row) -> dict[str, Any]:
    measure = row.measure
    return {
        "key": measure.key,
        "title": measure.title,
        "trial": measure.trial.value,
        "place": measure.place.value,
        "mode": measure.mode.value,
        "concurrency": measure.concurrency,
        "contestants": [_entry(entry, row) for entry in row.entries],
    }


def _entry(entry: Entry, row: Row) -> dict[str, Any]:
    record: dict[str, Any] = {
        "key": entry.contestant.key,
        "title": entry.contestant.title,
        "role": entry.contestant.role.value,
        "error": entry.error or None,
        "rounds": [_sample(sample) for sample in entry.samples],
    }
    if entry.samples:
        record |= {
            "operations_per_second": asdict(entry.rate),
            "of_floor": _spread(entry.ratio(row.floor)),
            "ours_to_this": _spread(row.ours.ratio(entry) if row.ours else None),
            "p50_ms": entry.median("p50") * 1e3,
            "p99_ms": entry.median("p99") * 1e3,
            "client_cpu_us": entry.client_us,
            "server_cpu_us": entry.server_us,
            "server_reads": entry.reads,
            "server_commands": entry.commands,
            "overlaps": entry.overlaps,
        }
    if entry.profile is not None:
        record["profile_us"] = asdict(entry.profile)
    if entry.samples and row.measure.idle:
        record |= {
            "client_cores": entry.share("client"),
            "server_cores": entry.share("server"),
            "commands_per_second": entry.commands_per_second,
            "client_bytes_each": entry.median("memory"),
            "server_bytes_each": entry.server_bytes,
            "client_threads": entry.median("threads"),
        }
    return record


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        **asdict(sample.outcome),
        "commands": sample.commands,
        "reads": sample.reads,
        "server_cpu": sample.server_cpu,
        "server_memory": sample.server_memory,
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def in_order(entries: Sequence[Entry], floor: str) -> list[Entry]:
    """Sort entries: the floor, other floors, leasehold, then the other libraries by rate."""
    ranks = {Role.FLOOR: 1, Role.OURS: 2, Role.PEER: 3}

    def place(one: Entry) -> tuple[int, float]:
        rank = 0 if one.contestant.key == floor else ranks[one.contestant.role]
        return rank, -one.rate.median if one.samples else 0.0

    return sorted(entries, key=place)
