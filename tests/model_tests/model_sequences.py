"""Random sequences on a model and on a real server: their seeds, what each step chooses, the smallest that differs.

Each step chooses by a chance of its own, which its sequence's seed and its number decide. So a sequence without some of
its steps does in the others what it did before, as far as there is anything to do it to; and one that differs is made
small by leaving out steps.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leasehold_lab.runtimes.virtual import Machine
from models.net import Link
from models.shrinking import smallest, without

SEED = "LEASEHOLD_MODEL_SEED"
"""The variable of the environment that gives the first seed."""

MOST_RUNS = 60
"""Sequences that are played at most to make one small."""

Steps = Sequence[int]
Play = Callable[[int, Steps], Iterable[str]]
"""Plays the steps with these numbers of a seed's sequence on both, and returns what there was to see. A difference is
an `AssertionError` that says what was done."""


def first_seed() -> int:
    """Return the seed of the first sequence, and print it: the others count on from there."""
    first = int(os.environ.get(SEED, "0")) or secrets.randbits(40)
    print(f"sequences from seed {first}: {SEED}={first} plays them again")
    return first


def chance(seed: int, step: int) -> random.Random:
    """Return the chance by which a step chooses."""
    return random.Random(f"{seed}/{step}")


@dataclass(frozen=True)
class Difference:
    """Steps of a sequence after which model and server differ, and what was done."""

    steps: tuple[int, ...]
    error: AssertionError


def compare_many(play: Play, count: int, length: int) -> Counter[str]:
    """Play so many sequences, each of so many steps; return how often there was what to see.

    Raises:
        AssertionError: the model differs from the server; it has the smallest steps found that show it.

    """
    first, seen = first_seed(), Counter[str]()
    for seed in range(first, first + count):
        try:
            seen.update(play(seed, range(length)))
        except AssertionError as error:
            raise AssertionError(told(play, seed, Difference(tuple(range(length)), error))) from None
    return seen


def differs(play: Play, count: int, length: int) -> bool:
    """Say whether one of so many sequences shows a difference: of a model with a mistake one must."""
    first = first_seed()
    return any(_difference(play, seed, tuple(range(length))) for seed in range(first, first + count))


def told(play: Play, seed: int, difference: Difference) -> str:
    """Make a difference small, and say it."""

    def smaller(best: Difference) -> Iterator[tuple[int, ...]]:
        return without(best.steps, least=1)

    def fails(steps: tuple[int, ...]) -> Difference | None:
        return _difference(play, seed, steps)

    least = smallest(difference, smaller, fails, MOST_RUNS)
    return f"{SEED}={seed} differs; of its steps, {list(least.steps)} are enough:\n{least.error}"


def _difference(play: Play, seed: int, steps: tuple[int, ...]) -> Difference | None:
    try:
        play(seed, steps)
    except AssertionError as error:
        return Difference(steps, error)
    return None


@dataclass(eq=False)
class Ear:
    """A connection to a model that keeps what it is told, in the place of a `Connection`.

    Attributes:
        number: of all connections of its host.
        replies: answers, in order.
        messages: what it did not ask for.

    """

    number: int
    open: bool = True
    client: Machine = field(default_factory=lambda: Machine("ear"))
    link: Link = field(default_factory=Link)
    replies: list[Any] = field(default_factory=list[Any])
    messages: list[Any] = field(default_factory=list[Any])

    def tell(self, reply: Any, message: bool = False) -> None:
        """Take what the model says."""
        (self.messages if message else self.replies).append(reply)
