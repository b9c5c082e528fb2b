"""One run: each measure has several rounds; each round has one trial of every contestant, in a rotating order."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from leasehold_lab.bench.contestant import Contestant, Role
from leasehold_lab.bench.contestants import CONTESTANTS
from leasehold_lab.bench.deployments import OpenStore, OpenStores
from leasehold_lab.bench.machine import facts
from leasehold_lab.bench.measures import MEASURES, Measure, Trial
from leasehold_lab.bench.places import DESCRIPTIONS, StoreKind, store_kind_of
from leasehold_lab.bench.processes.pinning import Cores, Pin
from leasehold_lab.bench.processes.runs import Trials
from leasehold_lab.bench.processes.workers import Worker
from leasehold_lab.bench.profile import may_be_profiled
from leasehold_lab.bench.result import Entry, Result, Row, in_order
from leasehold_lab.servers.base import MissingServer


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run.

    Attributes:
        url: the store, whose kind decides what is measured; None measures all kinds, on servers started for the run.
        seconds: length of a trial.
        rounds: trials of each contestant in each measure.
        only: keys of measures, or prefixes of them; empty means all.
        full: whether to include the measures that take long.
        peers_python: the interpreter with other libraries; None measures those installed here.
        profile: whether to profile leasehold and the floor, on Redis.
        pin: which measures run on chosen cores, if the server is started here and the system supports it.
        among: for each measure the keys of the contestants that are measured; empty means all.

    """

    url: str | None = None
    seconds: float = 0.5
    rounds: int = 3
    only: Sequence[str] = ()
    full: bool = False
    peers_python: str | None = None
    pin: Pin = Pin.ALONE
    profile: bool = False
    among: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])

    @property
    def again(self) -> str:
        """The command that repeats the run; the URL is a placeholder, since it may have a password."""
        words = ["leasehold", "bench", *(["URL"] if self.url else []), "--pin", self.pin.value]
        words += ["--seconds", f"{self.seconds:g}", "--rounds", str(self.rounds)]
        words += [word for key in self.only for word in ("--only", key)]
        words += ["--full"] * self.full + ["--profile"] * self.profile
        return " ".join(words + ["--peers-python peers/bin/python"] * (self.peers_python is not None))

    def measures(self) -> list[Measure]:
        """Choose the measures.

        Raises:
            ValueError: there is no such measure for the store at the URL, or the URL cannot be measured.

        """
        place = store_kind_of(self.url) if self.url else None
        offered = [one for one in MEASURES if place in (None, one.place) and not (self.url and one.disturbed)]
        for word in self.only:
            if not any(measure.is_called(word) for measure in offered):
                known = ", ".join(measure.key for measure in offered)
                where = f" on {DESCRIPTIONS[place].title}" if place else ""
                raise ValueError(f"there is no measure{where} {word!r}; known measures: {known}")
        if self.only:
            return [measure for measure in offered if any(map(measure.is_called, self.only))]
        return [measure for measure in offered if self.full or not measure.full]

    def includes(self, contestant: Contestant, measure: Measure) -> bool:
        """Return whether a contestant is measured there."""
        return takes_part(contestant, measure) and contestant.key in self.among.get(measure.key, (contestant.key,))


class Progress(Protocol):
    """Displays the progress of a run."""

    def trial_begins(self, measure: Measure, contestant: Contestant, done: int, of: int) -> None:
        """Show the trial that begins."""
        ...

    def row_ends(self, row: Row) -> None:
        """Show the result of a measure."""
        ...


def run(settings: Settings, progress: Progress) -> Result:
    """Measure. Skips a store whose server or driver is not installed, and records that in the result.

    Raises:
        MissingServer: no store can be measured; the message names what to install.
        LeaseholdError: the server at the URL cannot be used.

    """
    measures, start = settings.measures(), time.monotonic()
    with ExitStack() as stack:
        stores, missing = OpenStores(stack, settings.url), dict[str, str]()
        for place in dict.fromkeys(measure.place for measure in measures):
            try:
                stores.open(place)
            except MissingServer as error:
                missing[DESCRIPTIONS[place].title] = str(error)
        if not stores.opened:
            raise MissingServer("; ".join(f"{title}: {why}" for title, why in missing.items()))
        measures = [measure for measure in measures if measure.place in stores.opened]
        workers = _workers(stack, measures, settings, missing)
        trials = Trials(settings.seconds, stores.opened, workers, _cores(settings, stores.opened))
        bench = Bench(settings, workers, trials, progress)
        rows = bench.rows(measures)
        versions = {one.title: workers[one.key].version for one in CONTESTANTS if one.key in workers}
        run_facts = facts(
            _servers(stores.opened), settings.seconds, settings.rounds, versions, own=settings.url is None
        )
        run_facts |= (
            {"again": settings.again}
            | trials.facts()
            | {"disk": f"files of servers and locks are below {stores.folder.rpartition('/')[0]}"}
        )
    notes = {one.title + _where(one): one.settings for one in CONTESTANTS if one.key in workers}
    return Result(rows, run_facts, notes, missing, time.monotonic() - start)


def _servers(stores: Mapping[StoreKind, OpenStore]) -> list[str]:
    return [store.observer.version for store in stores.values() if store.observer.version]


def _cores(settings: Settings, stores: Mapping[StoreKind, OpenStore]) -> Cores:
    return Cores(settings.pin, stores[StoreKind.REDIS].server if StoreKind.REDIS in stores else None)


def _where(contestant: Contestant) -> str:
    """Distinguish contestants with the same title."""
    alike = [one for one in CONTESTANTS if one.title == contestant.title]
    return "" if len(alike) == 1 else f" ({', '.join(DESCRIPTIONS[place].title for place in contestant.places)})"


def takes_part(contestant: Contestant, measure: Measure) -> bool:
    """Return whether a contestant takes part in a measure."""
    if measure.disturbed or contestant.disturbance is not None:
        return measure.disturbed and contestant.role is Role.OURS
    if contestant.role is Role.FLOOR:
        return contestant.key in (measure.floor, *measure.also)
    if measure.place not in contestant.places or measure.mode not in contestant.modes:
        return False
    match measure.trial:
        case Trial.HANDOVER:
            return measure.concurrency <= contestant.contenders
        case Trial.HELD:
            return contestant.role is Role.OURS  # no other library renews by default without a thread for each lock
        case Trial.WAITING:
            return contestant.idle
        case Trial.PAIRS:
            return True


def _workers(
    stack: ExitStack, measures: Sequence[Measure], settings: Settings, missing: dict[str, str]
) -> dict[str, Worker]:
    found = dict[str, Worker]()
    for contestant in CONTESTANTS:
        if any(settings.includes(contestant, measure) for measure in measures):
            worker = stack.enter_context(Worker(contestant, settings.peers_python))
            if worker.missing:
                missing[contestant.title] = worker.missing
            else:
                found[contestant.key] = worker
    return found


class Bench:
    """Runs all trials in order."""

    def __init__(self, settings: Settings, workers: Mapping[str, Worker], trials: Trials, progress: Progress) -> None:
        self._settings = settings
        self._workers = workers
        self._trials = trials
        self._progress = progress
        self._done = 0
        self._of = 0

    def rows(self, measures: Sequence[Measure]) -> list[Row]:
        """Run one measure after the other."""
        rows = [Row(measure, [Entry(one) for one in self._for(measure)]) for measure in measures]
        self._of = sum(len(row.entries) for row in rows) * self._settings.rounds
        for row in rows:
            self._measure(row)
            row.entries = in_order(row.entries, row.measure.floor)
            self._progress.row_ends(row)
        return rows

    def _for(self, measure: Measure) -> list[Contestant]:
        return [one for one in CONTESTANTS if one.key in self._workers and self._settings.includes(one, measure)]

    def _measure(self, row: Row) -> None:
        for number in range(self._settings.rounds):
            at = number % len(row.entries)
            for entry in row.entries[at:] + row.entries[:at]:
                self._progress.trial_begins(row.measure, entry.contestant, self._done, self._of)
                self._done += 1
                if not entry.error:
                    self._trials.one(row.measure, entry)
        if self._settings.profile and may_be_profiled(row.measure):
            for one in (row.floor, row.ours):
                if one is not None:
                    self._trials.profile(row.measure, one)
