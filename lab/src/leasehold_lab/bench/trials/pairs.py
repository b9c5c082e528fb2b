"""Acquires and releases uncontended names as fast as possible."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from types import ModuleType

from leasehold_lab.bench.subjects.base import AsyncSession, AsyncTurn, Scope, Session, Turn
from leasehold_lab.bench.subjects.floors.tap import NAME
from leasehold_lab.bench.trials.sampling import Sampling
from leasehold_lab.bench.trials.trial_pipe import Outcome, Task, TrialPipe, quantile

WARM = 0.2
"""The length of the warm-up, as a fraction of the trial's."""

FIRST = 8
"""The least names of each thread that are used in the warm-up."""


class NotLocked(RuntimeError):
    """A contestant did not lock, so its figures would mean nothing."""


def shares(names: int, concurrency: int) -> list[list[str]]:
    """Divide that many names among the threads or tasks."""
    each = max(1, names // concurrency)
    return [[NAME % (index * each + at) for at in range(each)] for index in range(concurrency)]


def blocking(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Run with threads."""
    session: Session = subject.blocking(scope)
    runners = [Runner(session, names) for names in shares(task.names, task.concurrency)]
    if task.profile:
        (runner,) = runners
        pipe.ended(_profiled(runner, task.seconds, pipe))
        session.close()
        return
    gate = threading.Barrier(len(runners) + 1)
    threads = [threading.Thread(target=one.run, args=(gate, task.seconds)) for one in runners]
    for thread in threads:
        thread.start()
    gate.wait()
    for one in runners:
        if one.error is not None:
            raise one.error
    check(session)
    pipe.ready()
    cpu, start = time.process_time(), time.perf_counter()
    gate.wait()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    pipe.done()
    for one in runners:
        if one.error is not None:
            raise one.error
    pipe.ended(_outcome([pair for one in runners for pair in one.took], seconds, cpu))
    session.close()


def _profiled(runner: Runner, seconds: float, pipe: TrialPipe) -> Outcome:
    """Run in the main thread, where samples are taken."""
    runner.warm_up(seconds)
    pipe.ready()
    sampling, cpu, start = Sampling(), time.process_time(), time.perf_counter()
    sampling.start()
    runner.measure(seconds)
    profile = sampling.stop()
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    pipe.done()
    return replace(_outcome(runner.took, took, cpu), profile=profile)


def _outcome(took: list[float], seconds: float, cpu: float) -> Outcome:
    return Outcome(len(took), len(took), seconds, cpu, quantile(took, 0.5), quantile(took, 0.99))


class Runner:
    """One thread with its names."""

    def __init__(self, session: Session, names: list[str]) -> None:
        self._session = session
        self._names = names
        self._turns: list[Turn] = []
        self.took: list[float] = []
        self.error: BaseException | None = None

    def run(self, gate: threading.Barrier, seconds: float) -> None:
        """Warm up, wait for the others, run."""
        try:
            self.warm_up(seconds)
        except BaseException as error:
            self.error = error
        gate.wait()
        gate.wait()
        try:
            self.measure(seconds)
        except BaseException as error:
            self.error = error

    def warm_up(self, seconds: float) -> None:
        """Use each name once, and then all names for a fraction of the trial's length."""
        self._turns = [self._session.turn(name) for name in self._names]
        for turn in self._turns[:FIRST]:
            repeat([turn], 0.0, [])
        repeat(self._turns, time.perf_counter() + seconds * WARM, [])

    def measure(self, seconds: float) -> None:
        """Repeat all turns, and record the duration of each."""
        repeat(self._turns, time.perf_counter() + seconds, self.took)


def repeat(turns: list[Turn], until: float, took: list[float]) -> None:
    """Repeat the turns until the deadline; record the duration of each."""
    clock, note = time.perf_counter, took.append
    before = clock()
    while turns:
        for acquire, release in turns:
            if not acquire():
                raise NotLocked("an acquire of a free name returned nothing")
            release()
            now = clock()
            note(now - before)
            before = now
            if now >= until:
                return


def check(session: Session) -> None:
    """Check that a held name is refused to others, and granted after the release."""
    acquire, release = session.turn(NAME % 0)
    acquire()
    if not session.refused(NAME % 0):
        raise NotLocked("two held one name at the same time")
    release()
    if not acquire():
        raise NotLocked("a name could not be acquired again after its release")
    release()


async def awaiting(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Run with asyncio tasks."""
    session: AsyncSession = await subject.awaiting(scope)
    mine = [[await session.turn(name) for name in names] for names in shares(task.names, task.concurrency)]
    until = time.perf_counter() + task.seconds * WARM
    await asyncio.gather(*[arepeat(turns, until, []) for turns in mine])
    await acheck(session)
    pipe.ready()
    sampling = Sampling() if task.profile else None
    cpu, start = time.process_time(), time.perf_counter()
    took: list[float] = []
    if sampling is not None:
        sampling.start()
    await asyncio.gather(*[arepeat(turns, start + task.seconds, took) for turns in mine])
    profile = {} if sampling is None else sampling.stop()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    pipe.done()
    pipe.ended(replace(_outcome(took, seconds, cpu), profile=profile))
    await session.close()


async def arepeat(turns: list[AsyncTurn], until: float, took: list[float]) -> None:
    """Do as `repeat` does."""
    clock, note = time.perf_counter, took.append
    before = clock()
    while turns:
        for acquire, release in turns:
            if not await acquire():
                raise NotLocked("an acquire of a free name returned nothing")
            await release()
            now = clock()
            note(now - before)
            before = now
            if now >= until:
                return


async def acheck(session: AsyncSession) -> None:
    """Do as `check` does."""
    acquire, release = await session.turn(NAME % 0)
    await acquire()
    if not await session.refused(NAME % 0):
        raise NotLocked("two held one name at the same time")
    await release()
    if not await acquire():
        raise NotLocked("a name could not be acquired again after its release")
    await release()
