"""Many contenders for one name: measures the hand-over, and checks that never two hold it."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import select
import signal
import time
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from leasehold_lab.bench.subjects.base import AsyncTurn, AsyncTurns, Scope, Turns
from leasehold_lab.bench.subjects.floors.tap import NAME
from leasehold_lab.bench.trials.pairs import NotLocked
from leasehold_lab.bench.trials.sampling import Sampling, added
from leasehold_lab.bench.trials.trial_pipe import Outcome, Task, TrialPipe, quantile
from leasehold_lab.lifetime import end_with

WARM = 0.3
"""The least seconds of the warm-up."""

WARM_AT_MOST = 3.0
"""The most seconds of the warm-up, which ends when each contender has had the lock; some contenders starve."""

ENDS_WITHIN = 5.0
"""Seconds in which contenders must see the end of the run; some poll slowly."""

NAME_OF_ALL = NAME % 0

INSIDE, LAST, TOKEN, FREED, START, UNTIL, CELLS = range(7)
"""Indexes of the shared cells: the current holder, the last one, its token, its release (ns), start and end of the run.
After them one cell for each contender, which is set when it has had the lock."""


@dataclass(slots=True)
class Tally:
    """The counts of one contender. Only the holder of the lock reads and writes the shared cells."""

    me: int
    cells: Any
    turns: int = 0
    switches: int = 0
    overlaps: int = 0
    took: list[float] = field(default_factory=list[float])

    def enter(self, got: object, now: int) -> None:
        """Record an acquire."""
        cells = self.cells
        token = getattr(got, "token", None)
        if not got:
            raise NotLocked("an acquire without a time limit returned nothing")
        if cells[INSIDE] or (isinstance(token, int) and token <= cells[TOKEN]):
            self.overlaps += 1
        cells[INSIDE] = self.me
        if isinstance(token, int):
            cells[TOKEN] = token
        if cells[START] <= now < cells[UNTIL]:
            self.turns += 1
            if cells[LAST] != self.me:
                self.switches += 1
                self.took.append((now - cells[FREED]) / 1e9)
        cells[LAST] = self.me
        cells[CELLS + self.me] = 1

    def leave(self) -> None:
        """Record that a release follows."""
        if self.cells[INSIDE] != self.me:
            self.overlaps += 1
        self.cells[INSIDE] = 0
        self.cells[FREED] = time.monotonic_ns()


def blocking(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Run with processes."""
    cells = shared_cells(task.concurrency)
    if hasattr(subject, "prepare"):
        subject.prepare(scope, NAME_OF_ALL)
    cells[START] = cells[UNTIL] = far()
    contenders = [Contender(subject, scope, task, Tally(index + 1, cells)) for index in range(task.concurrency)]
    for one in contenders:
        one.ready()
    for one in contenders:
        one.go()
    warm_up(cells, task.concurrency)
    pipe.ready()
    measure(cells, task.seconds)
    pipe.done()
    parts = [one.result(time.monotonic() + ENDS_WITHIN) for one in contenders]
    pipe.ended(total(parts, task.seconds))


def size(concurrency: int) -> int:
    """Return the bytes of the cells of so many contenders."""
    return 8 * (CELLS + 1 + concurrency)


def shared_cells(concurrency: int) -> memoryview:
    """Make cells that children share."""
    return memoryview(mmap.mmap(-1, size(concurrency))).cast("q")


def warm_up(cells: Any, concurrency: int) -> None:
    """Wait until each contender has had the lock, or the warm-up is over."""
    time.sleep(WARM)
    until = time.monotonic() + WARM_AT_MOST - WARM
    while sum(cells[CELLS + 1 : CELLS + 1 + concurrency]) < concurrency and time.monotonic() < until:
        time.sleep(0.01)


def measure(cells: Any, seconds: float) -> None:
    """Let the turns of so many seconds count."""
    start = time.monotonic_ns()
    cells[UNTIL] = start + int(seconds * 1e9)
    cells[START] = start
    time.sleep(seconds)


class Contender:
    """A contending process, as the trial sees it."""

    def __init__(self, subject: ModuleType, scope: Scope, task: Task, tally: Tally) -> None:
        self._from_it, its_end = os.pipe()
        waits, self._to_it = os.pipe()
        us, self._pid = os.getpid(), os.fork()
        if self._pid == 0:
            end_with(us)
            _contend_and_end(subject, scope, task, tally, waits, its_end)
        os.close(its_end)
        os.close(waits)

    def ready(self) -> None:
        """Wait until it has connected."""
        if not os.read(self._from_it, 1):
            raise RuntimeError("a contender could not connect; its message is above")

    def go(self) -> None:
        """Let it contend."""
        os.write(self._to_it, b"g")

    def result(self, until: float) -> dict[str, Any]:
        """Wait for its counts until the deadline, then end it."""
        data = b""
        while select.select([self._from_it], [], [], max(0.0, until - time.monotonic()))[0]:
            more = os.read(self._from_it, 1 << 20)
            if not more:
                break
            data += more
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        found: dict[str, Any] = json.loads(data) if data.endswith(b"}") else {}
        if "error" in found:
            raise NotLocked(found["error"])
        return found


def _contend_and_end(subject: ModuleType, scope: Scope, task: Task, tally: Tally, waits: int, says: int) -> None:
    try:
        session: Turns = subject.blocking(scope)
        acquire, release = session.turn(NAME_OF_ALL)
        os.write(says, b"r")
        os.read(waits, 1)
        cells, cpu, running = tally.cells, 0.0, False
        sampling = Sampling()
        while True:
            got = acquire()
            now = time.monotonic_ns()
            if not running and now >= cells[START]:
                cpu, running = time.process_time(), True
                if task.profile:
                    sampling.start()
            tally.enter(got, now)
            if task.work:
                time.sleep(task.work)
            tally.leave()
            release()
            if now >= cells[UNTIL]:
                break
        profile = sampling.stop() if task.profile and running else {}
        said = _part(tally, time.process_time() - cpu if running else 0.0, profile)
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    data = json.dumps(said).encode()
    while data:
        data = data[os.write(says, data) :]
    os._exit(0)


def _part(tally: Tally, cpu: float, profile: dict[str, float]) -> dict[str, Any]:
    return {
        "turns": tally.turns,
        "switches": tally.switches,
        "overlaps": tally.overlaps,
        "cpu": cpu,
        "took": tally.took,
        "profile": profile,
    }


def total(parts: list[dict[str, Any]], seconds: float) -> Outcome:
    """Add up the counts of all contenders."""
    turns = [part.get("turns", 0) for part in parts]
    took = [one for part in parts for one in part.get("took", ())]
    return Outcome(
        sum(part.get("switches", 0) for part in parts),
        sum(turns),
        seconds,
        sum(part.get("cpu", 0.0) for part in parts),
        quantile(took, 0.5),
        quantile(took, 0.99),
        overlaps=sum(part.get("overlaps", 0) for part in parts),
        fewest=min(turns),
        most=max(turns),
        profile=added(part.get("profile", {}) for part in parts),
    )


async def awaiting(subject: ModuleType, scope: Scope, task: Task, pipe: TrialPipe) -> None:
    """Run with asyncio tasks of one process."""
    cells = [0] * (CELLS + 1 + task.concurrency)
    cells[START] = cells[UNTIL] = far()
    if hasattr(subject, "prepare"):
        subject.prepare(scope, NAME_OF_ALL)
    session: AsyncTurns = await subject.awaiting(scope)
    tallies = [Tally(index + 1, cells) for index in range(task.concurrency)]
    turns = [await session.turn(NAME_OF_ALL) for _ in tallies]
    tasks = [asyncio.create_task(_contend(*one, task.work)) for one in zip(turns, tallies, strict=True)]
    await asyncio.sleep(WARM)
    until = time.monotonic() + WARM_AT_MOST - WARM
    while sum(cells[CELLS + 1 :]) < task.concurrency and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pipe.ready()
    sampling = Sampling()
    if task.profile:
        sampling.start()
    cpu = time.process_time()
    start = time.monotonic_ns()
    cells[START], cells[UNTIL] = start, start + int(task.seconds * 1e9)
    await asyncio.sleep(task.seconds)
    cpu = time.process_time() - cpu
    profile = sampling.stop() if task.profile else {}
    pipe.done()
    ended, late = await asyncio.wait(tasks, timeout=ENDS_WITHIN)
    for one in late:
        one.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for one in ended:
        one.result()
    outcome = total([_part(tally, 0.0, {}) for tally in tallies], task.seconds)
    pipe.ended(replace(outcome, cpu=cpu, profile=profile))
    await session.close()


async def _contend(turn: AsyncTurn, tally: Tally, work: float) -> None:
    acquire, release = turn
    cells = tally.cells
    while True:
        got = await acquire()
        now = time.monotonic_ns()
        tally.enter(got, now)
        if work:
            await asyncio.sleep(work)
        tally.leave()
        await release()
        if now >= cells[UNTIL]:
            return


def far() -> int:
    """Return a moment that never comes."""
    return time.monotonic_ns() + 10**15
