"""Makes a history that fails small: leaves out clients, operations and faults as long as it fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) on the scenario:
parts are left out in halves, quarters and so on down to single ones, until nothing more can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from leasehold.testing.models.party import Outcome, play
from leasehold.testing.models.scenario import Actor, Scenario
from leasehold.testing.models.system import GOOD, Spoilt

T = TypeVar("T")

MOST_RUNS = 400
"""Histories that are played at most to make one small."""

Play = Callable[[Scenario], Outcome]


def shrink(outcome: Outcome, spoilt: Spoilt = GOOD) -> Outcome:
    """Return the outcome of the smallest scenario found that breaks the same promise."""
    best = outcome
    left: int = MOST_RUNS
    smaller = True
    while smaller:
        smaller = False
        for scenario in _smaller(best.scenario):
            left -= 1
            if left < 0:
                return best
            found = play(scenario, spoilt)
            if found.broken == outcome.broken:
                best, smaller = found, True
                break
    return best


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with less in them, those first that leave out most."""
    for strikes in _without(scenario.strikes):
        yield replace(scenario, strikes=strikes)
    for actors in _without(scenario.actors, least=1):
        yield replace(scenario, actors=actors)
    for number, actor in enumerate(scenario.actors):
        for tasks in _fewer_operations(actor):
            actors = (*scenario.actors[:number], replace(actor, tasks=tasks), *scenario.actors[number + 1 :])
            yield replace(scenario, actors=actors)
    for heirs in _without(scenario.heirs):
        yield replace(scenario, heirs=heirs)
    for number, strike in enumerate(scenario.strikes):
        if strike.seconds > 0.1:
            shorter = replace(strike, seconds=strike.seconds / 2)
            yield replace(scenario, strikes=(*scenario.strikes[:number], shorter, *scenario.strikes[number + 1 :]))


def _fewer_operations(actor: Actor) -> Iterator[tuple[tuple[int, ...], ...]]:
    yield from _without(actor.tasks, least=1)
    for number, task in enumerate(actor.tasks):
        for rest in _without(task, least=1):
            yield (*actor.tasks[:number], rest, *actor.tasks[number + 1 :])


def _without(parts: Sequence[T], least: int = 0) -> Iterator[tuple[T, ...]]:
    """Yield what is left without a half, a quarter and so on, at last without single ones."""
    size = len(parts)
    while size > 0:
        for start in range(0, len(parts), size):
            rest = (*parts[:start], *parts[start + size :])
            if len(rest) >= least and len(rest) < len(parts):
                yield rest
        size = size // 2 if size > 1 else 0
