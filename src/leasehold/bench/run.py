"""One run: each measure in several rounds, in each round every contestant once, in an order that moves on."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from leasehold.bench.contestants import CONTESTANTS, Contestant, Mode, Role
from leasehold.bench.machine import Bustle, facts
from leasehold.bench.measures import LONG_SECONDS, MEASURES, Measure, Trial
from leasehold.bench.pinning import Cores, Pin
from leasehold.bench.result import Entry, Result, Row, Sample, in_order
from leasehold.bench.server import Observer
from leasehold.bench.subjects.base import Scope
from leasehold.bench.trials.talk import Outcome, Task
from leasehold.bench.workers import TrialFailed, Worker
from leasehold.testing.servers.redis import RedisServer


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run.

    Attributes:
        url: the server; None starts one.
        seconds: length of a trial.
        rounds: trials of each contestant in each measure.
        only: keys of measures, or beginnings of them; none means all.
        full: with the measures that take long.
        peers_python: the interpreter that has further libraries; None measures what is installed here.
        pin: which measures run on chosen cores, where the server is started here and the system can.

    """

    url: str | None = None
    seconds: float = 0.5
    rounds: int = 3
    only: Sequence[str] = ()
    full: bool = False
    peers_python: str | None = None
    pin: Pin = Pin.ALONE

    def measures(self) -> list[Measure]:
        """Choose the measures.

        Raises:
            ValueError: nothing is called so.

        """
        for word in self.only:
            if not any(measure.is_called(word) for measure in MEASURES):
                known = ", ".join(measure.key for measure in MEASURES)
                raise ValueError(f"no measure is called {word!r}; there are: {known}")
        if self.only:
            return [measure for measure in MEASURES if any(map(measure.is_called, self.only))]
        return [measure for measure in MEASURES if self.full or not measure.full]


class Progress(Protocol):
    """Who is told how far it is."""

    def trial_begins(self, measure: Measure, contestant: Contestant, done: int, of: int) -> None:
        """Hear what runs now."""
        ...

    def row_ends(self, row: Row) -> None:
        """Hear what a measure came to."""
        ...


def run(settings: Settings, progress: Progress) -> Result:
    """Measure.

    Raises:
        MissingServer: there is no server program to start; the message says what to install.
        OSError: the server does not answer.

    """
    measures, start = settings.measures(), time.monotonic()
    with ExitStack() as stack:
        server = None if settings.url else stack.enter_context(RedisServer())
        url = settings.url if server is None else server.url
        assert url is not None
        cores = Cores(settings.pin, server)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-"))
        scope = Scope(url, f"bench-{secrets.token_hex(4)}", 1, folder)
        observer = stack.enter_context(Observer(scope))
        stack.callback(observer.clean, scope.namespace)
        workers, missing = _workers(stack, measures, settings)
        bench = Bench(settings, scope, observer, workers, progress, cores)
        rows = bench.rows(measures)
        versions = {one.title: workers[one.key].version for one in CONTESTANTS if one.key in workers}
        told = facts(observer.version, settings.seconds, settings.rounds, versions, own_server=settings.url is None)
        told["cores"] = str(cores)
        if bench.others:
            usual, worst = median(bench.others), max(bench.others)
            told["others"] = f"used {usual:.2f} cores during a trial (median), {worst:.2f} at most: the less the better"
    notes = {one.title: one.settings for one in CONTESTANTS if one.key in workers}
    return Result(rows, told, notes, missing, time.monotonic() - start)


def takes_part(contestant: Contestant, measure: Measure) -> bool:
    """Say whether a contestant is run in a measure."""
    if contestant.role is Role.FLOOR:
        return contestant.key == measure.floor
    if measure.mode not in contestant.modes:
        return False
    match measure.trial:
        case Trial.HANDOVER:
            return contestant.contends
        case Trial.HELD:
            return contestant.role is Role.OURS  # of the others none renews by default without a thread for each
        case Trial.WAITING:
            return contestant.rests
        case Trial.PAIRS:
            return True


def _workers(
    stack: ExitStack, measures: Sequence[Measure], settings: Settings
) -> tuple[dict[str, Worker], dict[str, str]]:
    found, missing = dict[str, Worker](), dict[str, str]()
    for contestant in CONTESTANTS:
        if any(takes_part(contestant, measure) for measure in measures):
            worker = stack.enter_context(Worker(contestant, settings.peers_python))
            if worker.missing:
                missing[contestant.title] = worker.missing
            else:
                found[contestant.key] = worker
    return found, missing


class Bench:
    """The measuring itself."""

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        observer: Observer,
        workers: Mapping[str, Worker],
        progress: Progress,
        cores: Cores,
    ) -> None:
        self._cores = cores
        self._settings = settings
        self._scope = scope
        self._observer = observer
        self._workers = workers
        self._progress = progress
        self._done = 0
        self._of = 0
        self.others: list[float] = []
        """Cores that other processes used during each trial."""

    def rows(self, measures: Sequence[Measure]) -> list[Row]:
        """Take one measure after the other."""
        rows = [Row(measure, [Entry(one) for one in self._for(measure)]) for measure in measures]
        self._of = sum(len(row.entries) for row in rows) * self._settings.rounds
        for row in rows:
            self._measure(row)
            row.entries = in_order(row.entries)
            self._progress.row_ends(row)
        return rows

    def _for(self, measure: Measure) -> list[Contestant]:
        return [one for one in CONTESTANTS if one.key in self._workers and takes_part(one, measure)]

    def _measure(self, row: Row) -> None:
        for number in range(self._settings.rounds):
            at = number % len(row.entries)
            for entry in row.entries[at:] + row.entries[:at]:
                self._progress.trial_begins(row.measure, entry.contestant, self._done, self._of)
                self._done += 1
                if not entry.error:
                    self._try(row.measure, entry)

    def _try(self, measure: Measure, entry: Entry) -> None:
        worker = self._workers[entry.contestant.key]
        try:
            entry.samples.append(self._sample(measure, entry.contestant, worker))
        except TrialFailed as error:
            entry.error = str(error)

    def _sample(self, measure: Measure, contestant: Contestant, worker: Worker) -> Sample:
        namespace = f"{self._scope.namespace}-{contestant.key}-{self._done}"
        task = Task(
            contestant.module,
            measure.trial.value,
            Mode(measure.mode).value,
            measure.concurrency,
            measure.processes,
            measure.work,
            self._seconds(measure),
            f"sqlite:{self._scope.folder}/locks.db" if measure.mode is Mode.FILE else self._scope.url,
            namespace,
            self._scope.folder,
            self._cores.share(measure),
        )
        empty = self._observer.look()
        worker.begin(task)
        before, bustle = self._observer.look(), Bustle()
        worker.go()
        after, busy = self._observer.look(), bustle.seconds()
        outcome = Outcome(**worker.outcome())
        work = after.since(before)
        self._note_others(busy, outcome, work.cpu)
        self._observer.clean(namespace)
        if measure.mode is Mode.FILE:
            return Sample(outcome, {}, 0, 0.0, 0)
        return Sample(outcome, work.commands, work.reads, work.cpu, after.memory - empty.memory)

    def _note_others(self, busy: float | None, outcome: Outcome, server: float) -> None:
        if busy is not None:
            self.others.append(max(0.0, busy - outcome.cpu - server) / outcome.seconds)

    def _seconds(self, measure: Measure) -> float:
        return max(self._settings.seconds, LONG_SECONDS) if measure.rests else self._settings.seconds
