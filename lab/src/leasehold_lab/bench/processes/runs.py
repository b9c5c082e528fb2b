"""Runs trials: a contestant's process runs each, while the counters of the server are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from leasehold_lab.bench.contestant import Contestant
from leasehold_lab.bench.deployments import OpenStore, through
from leasehold_lab.bench.machine import MachineLoad
from leasehold_lab.bench.measures import LONG_SECONDS, Measure
from leasehold_lab.bench.places import StoreKind
from leasehold_lab.bench.processes.disturbances import inject_disturbance
from leasehold_lab.bench.processes.pinning import Cores
from leasehold_lab.bench.processes.program import TrialFailed
from leasehold_lab.bench.processes.workers import Worker
from leasehold_lab.bench.profile import Profile
from leasehold_lab.bench.result import Entry, Sample
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.trials.trial_pipe import Outcome, Task

PROFILED = 4
"""How many times longer a profiled trial is than others."""

COUNTING = 0.1
"""The longest trial, in seconds, in which requests are counted."""


class Trials:
    """Runs trials on all stores."""

    def __init__(
        self, seconds: float, stores: Mapping[StoreKind, OpenStore], workers: Mapping[str, Worker], cores: Cores
    ) -> None:
        self._seconds = seconds
        self._stores = stores
        self._workers = workers
        self._cores = cores
        self._requests: dict[tuple[str, str], float] = {}
        self._number = 0
        self._others: list[float] = []

    def one(self, measure: Measure, entry: Entry) -> None:
        """Run one trial of a contestant, and record its sample or its error."""
        store, contestant = self._stores[measure.place], entry.contestant
        self._number += 1
        namespace = f"{store.scope.namespace}-{contestant.key}-{self._number}"
        try:
            requests = self._count(measure, contestant, store, f"{namespace}-0")
            entry.samples.append(self._sample(measure, contestant, store, namespace, requests))
        except TrialFailed as error:
            entry.error = str(error)
        finally:
            store.observer.clean(namespace)

    def profile(self, measure: Measure, entry: Entry) -> None:
        """Run one more trial of a contestant, and record its profile."""
        store, contestant = self._stores[measure.place], entry.contestant
        self._number += 1
        namespace = f"{store.scope.namespace}-{contestant.key}-{self._number}"
        worker, observer = self._workers[contestant.key], store.observer
        try:
            task = self._task(measure, contestant, store.scope, namespace, self._seconds * PROFILED)
            worker.begin(replace(task, profile=True))
            before = observer.read()
            worker.go()
            work = observer.read().since(before)
            outcome = Outcome(**worker.outcome())
            entry.profile = Profile.of(outcome, work)
        except TrialFailed as error:
            entry.error = str(error)
        finally:
            store.observer.clean(namespace)

    def facts(self) -> dict[str, str]:
        """Return facts about the environment."""
        told = {"cores": str(self._cores)}
        if self._others:
            usual, worst = median(self._others), max(self._others)
            told["others"] = f"used {usual:.2f} cores during a trial (median), {worst:.2f} at most: the less the better"
        return told

    def _sample(
        self, measure: Measure, contestant: Contestant, store: OpenStore, namespace: str, requests: float
    ) -> Sample:
        worker, observer = self._workers[contestant.key], store.observer
        with inject_disturbance(contestant.disturbance, store) as fail:
            empty = observer.read()
            worker.begin(self._task(measure, contestant, store.scope, namespace, self._length(measure)))
            before, load = observer.read(), MachineLoad()
            fail()
            worker.go()
            after, busy = observer.read(), load.seconds()
            outcome = Outcome(**worker.outcome())
        work = after.since(before)
        if busy is not None:
            self._others.append(max(0.0, busy - outcome.cpu - work.cpu) / outcome.seconds)
        reads = work.reads or requests * outcome.turns
        return Sample(outcome, work.commands, reads, work.cpu, after.memory - empty.memory)

    def _count(self, measure: Measure, contestant: Contestant, store: OpenStore, namespace: str) -> float:
        """Return the requests for one acquire and release, counted once by a relay; 0 without a relay."""
        key = measure.key, contestant.key
        if store.relay is None or key in self._requests:
            return self._requests.get(key, 0.0)
        worker = self._workers[contestant.key]
        worker.begin(self._task(measure, contestant, through(store), namespace, min(self._seconds, COUNTING)))
        store.relay.take()
        worker.go()
        requests = store.relay.requests
        turns = Outcome(**worker.outcome()).turns
        found = self._requests[key] = requests / turns if turns else 0.0
        return found

    def _task(self, measure: Measure, contestant: Contestant, scope: Scope, namespace: str, seconds: float) -> Task:
        return Task(
            contestant.module,
            measure.trial.value,
            measure.mode.value,
            measure.concurrency,
            measure.processes,
            measure.work,
            seconds,
            scope.url,
            namespace,
            scope.folder,
            self._cores.share(measure),
            measure.names,
        )

    def _length(self, measure: Measure) -> float:
        return max(self._seconds, LONG_SECONDS) if measure.idle else self._seconds
