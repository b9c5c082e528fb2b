"""One scenario, one history: clients of a shipped store work on a model of its servers, while faults are injected.

Theory of operation
-------------------
The scenario says what happens; delays follow from its seed. So the same seed gives the same history, byte for byte.
The program's own code fails at random, too: observers, `on_lost` callbacks, and filters of the log.

There are two kinds of history. In one, all assumptions are true: the servers keep what they confirmed, and clocks run
at nearly the same rate; then every promise must be kept. In the other the servers forget, or a clock is set. Then two
clients may believe that they hold, but a guarded resource must never apply an older holder's write after a newer one's.
"""

from __future__ import annotations

import gc
import io
import logging
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass

from leasehold_lab.history import History, Verdict
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.clients import ClientGroup, fail_at_random
from models.faults import Fault
from models.scenario import SIZE, Assumptions, Scenario, Size, draw
from models.system import GOOD, Spoilt
from models.systems import SYSTEMS


class SeenByServers(AssertionError):
    """A violation that the servers see, and that clients may not notice."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario."""

    scenario: Scenario
    history: History
    verdict: Verdict
    faults: tuple[Fault, ...]
    error: BaseException | None
    trace: Callable[[], str]

    @property
    def ok(self) -> bool:
        """Whether every promise in force was kept."""
        return self.error is None and self.verdict.ok

    @property
    def broken(self) -> str:
        """The name of the gravest broken promise; empty if none was broken."""
        if self.error is not None:
            return f"{type(self.error).__name__}"
        return "" if self.verdict.ok else self.verdict.violations[0].promise.name


def play(scenario: Scenario, spoilt: Spoilt = GOOD) -> Outcome:
    """Run a scenario, and check its history."""
    harness = SimulatedHarness(scenario.seed)
    groups: list[ClientGroup] = []
    error: BaseException | None = None

    async def body(_: Harness) -> None:
        groups.append(ClientGroup(harness, scenario, spoilt))
        await groups[0].live()

    with failing_log(random.Random(scenario.seed)), uncollected():
        try:
            harness.run(body)
        except Exception as failure:
            if not groups:
                raise
            error = failure
    group = groups[0]
    if error is None and scenario.assumptions is Assumptions.KEPT and (seen := group.system.seen()):
        error = SeenByServers(seen)
    history = group.history()
    return Outcome(
        scenario,
        history,
        group.verdict(history),
        tuple(group.faults),
        error,
        lambda: "\n".join([harness.trace(), *map(repr, group.records)]),
    )


def run(
    seed: int, system: str = "redis", spoilt: Spoilt = GOOD, size: Size = SIZE, *, passed: bool | None = None
) -> Outcome:
    """Draw the scenario of a seed and play it; ``passed`` as for `draw`."""
    return play(draw(seed, system, SYSTEMS[system].menu, size, passed=passed), spoilt)


@contextmanager
def uncollected() -> Generator[None]:
    """Disable the garbage collector: dropped holds must be given up even so."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def failing_log(chance: random.Random) -> Generator[None]:
    """Let the log of the library fail at random moments, as by a filter that needs a web request; nothing is logged."""

    def fail(record: logging.LogRecord) -> bool:
        fail_at_random(chance)
        return False

    logger = logging.getLogger("leasehold")
    logger.addFilter(fail)
    try:
        with redirect_stderr(io.StringIO()):  # each failure is shown there
            yield
    finally:
        logger.removeFilter(fail)


@contextmanager
def quiet() -> Generator[None]:
    """Disable the log of the library: thousands of histories contain expected errors."""
    logger = logging.getLogger("leasehold")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
