"""Makes a history that fails small: leaves out clients, operations and faults as long as it fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) on the scenario:
parts are left out in halves, quarters and so on down to single ones, until nothing more can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from models.history import Outcome, play
from models.scenario import Actor, Scenario
from models.system import GOOD, Spoilt

T = TypeVar("T")
F = TypeVar("F")

MOST_RUNS = 400
"""Histories that are played at most to make one small."""


def shrink(outcome: Outcome, spoilt: Spoilt = GOOD) -> Outcome:
    """Return the outcome of the smallest scenario found that breaks the same promise."""

    def fails(scenario: Scenario) -> Outcome | None:
        found = play(scenario, spoilt)
        return found if found.broken == outcome.broken else None

    return smallest(outcome, lambda best: _smaller(best.scenario), fails, MOST_RUNS)


def smallest(best: F, smaller: Callable[[F], Iterator[T]], fails: Callable[[T], F | None], runs: int) -> F:
    """Return the smallest failure found.

    Args:
        best: the failure that there is.
        smaller: what to try instead of a failure, those first that leave out most.
        fails: plays one of them, and returns its failure if it fails in the same way.
        runs: how many are played at most.

    """
    found: F | None = best
    while found is not None:
        best, found = found, None
        for one in smaller(best):
            if runs == 0:
                return best
            runs -= 1
            if (found := fails(one)) is not None:
                break
    return best


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with less in them, those first that leave out most."""
    for strikes in without(scenario.strikes):
        yield replace(scenario, strikes=strikes)
    for actors in without(scenario.actors, least=1):
        yield replace(scenario, actors=actors)
    for number, actor in enumerate(scenario.actors):
        for tasks in _fewer_operations(actor):
            actors = (*scenario.actors[:number], replace(actor, tasks=tasks), *scenario.actors[number + 1 :])
            yield replace(scenario, actors=actors)
    for next_waiters in without(scenario.next_waiters):
        yield replace(scenario, next_waiters=next_waiters)
    for number, strike in enumerate(scenario.strikes):
        if strike.seconds > 0.1:
            shorter = replace(strike, seconds=strike.seconds / 2)
            yield replace(scenario, strikes=(*scenario.strikes[:number], shorter, *scenario.strikes[number + 1 :]))


def _fewer_operations(actor: Actor) -> Iterator[tuple[tuple[int, ...], ...]]:
    yield from without(actor.tasks, least=1)
    for number, task in enumerate(actor.tasks):
        for rest in without(task, least=1):
            yield (*actor.tasks[:number], rest, *actor.tasks[number + 1 :])


def without(parts: Sequence[T], least: int = 0) -> Iterator[tuple[T, ...]]:
    """Yield what is left without a half, a quarter and so on, at last without single ones."""
    size = len(parts)
    while size > 0:
        for start in range(0, len(parts), size):
            rest = (*parts[:start], *parts[start + size :])
            if len(rest) >= least and len(rest) < len(parts):
                yield rest
        size = size // 2 if size > 1 else 0
