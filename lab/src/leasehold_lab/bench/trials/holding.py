"""Holds many locks, or waits with many tasks for one: measures processor time and memory of idle locks."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from leasehold_lab.bench.subjects.base import AsyncSession, Scope, Session
from leasehold_lab.bench.subjects.floors.tap import NAME
from leasehold_lab.bench.trials.pairs import NotLocked
from leasehold_lab.bench.trials.trial_pipe import Outcome, Task, TrialPipe

AT_ONCE = 100
"""Tasks that acquire at the same time before the run: more at once would need more memory, which is not measured."""

EACH_WITHIN = 0.0005
"""Seconds in which one of them has sent its request and received the answer to wait."""

SETTLES = 1.0
"""Seconds between the last acquire and the run."""


def blocking(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Hold ``concurrency`` names, as one thread that acquired them one after the other."""
    session: Session = subject.blocking(scope)
    warm, cool = session.turn(NAME % task.concurrency)
    warm()
    cool()
    before = memory()
    turns = [session.turn(NAME % index) for index in range(task.concurrency)]
    kept = [acquire() for acquire, _ in turns]  # a hold without a reference would be released
    if not all(kept):
        raise NotLocked("an acquire of a free name returned nothing")
    each = (memory() - before) / task.concurrency
    time.sleep(SETTLES)
    pipe.ready()
    cpu, start = time.process_time(), time.perf_counter()
    time.sleep(task.seconds)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    pipe.done()
    if not session.refused(NAME % 0):
        raise NotLocked("a lock was not held any more at the end")
    pipe.ended(_outcome(task, seconds, cpu, each))


async def awaiting(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Hold ``concurrency`` names; or hold one name, for which that many tasks wait."""
    session: AsyncSession = await subject.awaiting(scope)
    warm, cool = await session.turn(NAME % task.concurrency)
    await warm()
    await cool()
    tasks, kept = list[asyncio.Task[None]](), list[object]()
    before = memory()
    if task.trial == "held":
        kept = await _hold_all(session, task.concurrency)
    else:
        kept = [await (await session.turn(NAME % 0))[0]()]
        for some in _parts(task.concurrency):
            tasks += [asyncio.create_task(_wait(session, NAME % 0)) for _ in some]
            await asyncio.sleep(len(some) * EACH_WITHIN)
        await asyncio.sleep(SETTLES)
    each = (memory() - before) / task.concurrency
    await asyncio.sleep(SETTLES)
    pipe.ready()
    cpu, start = time.process_time(), time.perf_counter()
    await asyncio.sleep(task.seconds)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    pipe.done()
    if not await session.refused(NAME % 0):
        raise NotLocked("a lock was not held any more at the end")
    if any(one.done() for one in tasks) or not all(kept):
        raise NotLocked("a task that should wait does not wait")
    pipe.ended(_outcome(task, seconds, cpu, each))


async def _hold_all(session: AsyncSession, count: int) -> list[object]:
    async def hold(name: str) -> object:
        acquire, release = await session.turn(name)
        got = await acquire()
        return (got, release) if got else None

    kept = list[object]()
    for some in _parts(count):
        kept += await asyncio.gather(*[hold(NAME % index) for index in some])
    if not all(kept):
        raise NotLocked("an acquire of a free name returned nothing")
    return kept


def _parts(count: int) -> Iterator[range]:
    for start in range(0, count, AT_ONCE):
        yield range(start, min(start + AT_ONCE, count))


async def _wait(session: AsyncSession, name: str) -> None:
    acquire, release = await session.turn(name)
    await acquire()
    await release()


def _outcome(task: Task, seconds: float, cpu: float, each: float) -> Outcome:
    return Outcome(
        task.concurrency,
        task.concurrency,
        seconds,
        cpu,
        0.0,
        0.0,
        memory=each,
        threads=threading.active_count(),
    )


def memory() -> int:
    """Return the resident memory of this process, in bytes."""
    gc.collect()
    path = Path("/proc/self/statm")
    if path.exists():
        return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the peak: macOS reports no other value
