"""One trial: a contestant's process does it, and what the server did for it is counted meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from leasehold_lab.bench.contestants import Contestant
from leasehold_lab.bench.deployments import Site, through
from leasehold_lab.bench.machine import Bustle
from leasehold_lab.bench.measures import LONG_SECONDS, Measure
from leasehold_lab.bench.places import Place
from leasehold_lab.bench.processes.disturbances import harmed
from leasehold_lab.bench.processes.pinning import Cores
from leasehold_lab.bench.processes.workers import TrialFailed, Worker
from leasehold_lab.bench.profile import Profile
from leasehold_lab.bench.result import Entry, Sample
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.trials.talk import Outcome, Task

PROFILED = 4
"""Times the length of others that a trial lasts in which samples are taken."""

COUNTING = 0.1
"""Seconds at most of the trial in which requests are counted."""


class Tries:
    """Makes trials, on all stores."""

    def __init__(
        self, seconds: float, sites: Mapping[Place, Site], workers: Mapping[str, Worker], cores: Cores
    ) -> None:
        self._seconds = seconds
        self._sites = sites
        self._workers = workers
        self._cores = cores
        self._requests: dict[tuple[str, str], float] = {}
        self._number = 0
        self._others: list[float] = []

    def one(self, measure: Measure, entry: Entry) -> None:
        """Try a contestant once, and note its sample or its error."""
        site, contestant = self._sites[measure.place], entry.contestant
        self._number += 1
        namespace = f"{site.scope.namespace}-{contestant.key}-{self._number}"
        try:
            requests = self._count(measure, contestant, site, f"{namespace}-0")
            entry.samples.append(self._sample(measure, contestant, site, namespace, requests))
        except TrialFailed as error:
            entry.error = str(error)
        finally:
            site.observer.clean(namespace)

    def profile(self, measure: Measure, entry: Entry) -> None:
        """Try a contestant once more, and note where the time goes."""
        site, contestant = self._sites[measure.place], entry.contestant
        self._number += 1
        namespace = f"{site.scope.namespace}-{contestant.key}-{self._number}"
        worker, observer = self._workers[contestant.key], site.observer
        try:
            task = self._task(measure, contestant, site.scope, namespace, self._seconds * PROFILED)
            worker.begin(replace(task, profile=True))
            before = observer.look()
            worker.go()
            work = observer.look().since(before)
            outcome = Outcome(**worker.outcome())
            entry.profile = Profile.of(outcome, work)
        except TrialFailed as error:
            entry.error = str(error)
        finally:
            site.observer.clean(namespace)

    def facts(self) -> dict[str, str]:
        """Return what was found out about the circumstances."""
        told = {"cores": str(self._cores)}
        if self._others:
            usual, worst = median(self._others), max(self._others)
            told["others"] = f"used {usual:.2f} cores during a trial (median), {worst:.2f} at most: the less the better"
        return told

    def _sample(self, measure: Measure, contestant: Contestant, site: Site, namespace: str, requests: float) -> Sample:
        worker, observer = self._workers[contestant.key], site.observer
        with harmed(contestant.harm, site) as fail:
            empty = observer.look()
            worker.begin(self._task(measure, contestant, site.scope, namespace, self._length(measure)))
            before, bustle = observer.look(), Bustle()
            fail()
            worker.go()
            after, busy = observer.look(), bustle.seconds()
            outcome = Outcome(**worker.outcome())
        work = after.since(before)
        if busy is not None:
            self._others.append(max(0.0, busy - outcome.cpu - work.cpu) / outcome.seconds)
        reads = work.reads or requests * outcome.turns
        return Sample(outcome, work.commands, reads, work.cpu, after.memory - empty.memory)

    def _count(self, measure: Measure, contestant: Contestant, site: Site, namespace: str) -> float:
        """Return the requests for one acquire and release, counted once by a relay; 0 where there is none."""
        key = measure.key, contestant.key
        if site.relay is None or key in self._requests:
            return self._requests.get(key, 0.0)
        worker = self._workers[contestant.key]
        worker.begin(self._task(measure, contestant, through(site), namespace, min(self._seconds, COUNTING)))
        site.relay.take()
        worker.go()
        requests = site.relay.requests
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
        return max(self._seconds, LONG_SECONDS) if measure.rests else self._seconds
