"""Waiting while other processes are in the way: short sleeps that grow, and turns, so that nobody waits behind a wait.

The calls of one client go to the file one at a time. A call that had the file to itself until its time is over would
take the time of all calls behind it, of which some may have less. So it waits for a turn at most, and stands in line
anew behind the others.
"""

from __future__ import annotations

import random
import time

from leasehold.errors import StoreUnavailable
from leasehold.runtimes.clock import boottime

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0001, 0.005
"""Seconds between two tries to become the writer."""

TURN = 0.01
"""Seconds that a call waits for other processes before other calls of its client have their turn."""


class Busy(StoreUnavailable):
    """Others were in the way until the turn was over, or all of the time; nothing was done."""


class Pauses:
    """Between the tries of all calls of one client: who comes anew does not begin with the shortest."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def over(self) -> None:
        """Nobody was in the way: begin anew."""
        self._next = SHORTEST_PAUSE

    def longest(self) -> float:
        """Return for how long the next may be."""
        return self._next * 1.5

    def sleep(self) -> None:
        """Sleep, and longer the next time."""
        time.sleep(self._next * (0.5 + random.random()))
        self._next = min(self._next * 1.5, LONGEST_PAUSE)


class Turn:
    """How long one call may still wait for other processes."""

    __slots__ = ("_ends", "_pauses")

    def __init__(self, pauses: Pauses, until: float) -> None:
        self._ends = min(until, boottime() + TURN)
        self._pauses = pauses

    def try_again(self, error: Exception, why: str) -> None:
        """Sleep before the next try.

        Raises:
            Busy: the time, or the turn, is over.

        """
        if boottime() + self._pauses.longest() >= self._ends:
            raise Busy(why) from error
        self._pauses.sleep()

    def over(self) -> None:
        """Nobody is in the way any more."""
        self._pauses.over()
