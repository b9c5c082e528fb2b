"""Waiting while other processes are in the way: short sleeps that grow, and turns, so that nobody waits behind a wait.

The calls of one client go to the file one at a time. A call that had the file to itself until its time is over would
take the time of all calls behind it, of which some may have less. So it waits for a turn at most, and stands in line
anew behind the others.
"""

from __future__ import annotations

import random
import time

from leasehold._runtimes.clock import boottime, wall_us
from leasehold.errors import StoreUnavailable

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0001, 0.005
"""Seconds between two tries to become the writer."""

FRESH = 0.02
"""Seconds for which the mark of a file says that another process waits to write; each of its tries renews it."""

MAX_ATTEMPT = 0.01
"""Seconds that a call waits for other processes before other calls of its client have their turn."""


class Busy(StoreUnavailable):
    """Others were in the way until the turn was over, or all of the time; nothing was done."""


class Backoff:
    """Between the tries of all calls of one client: who comes anew does not begin with the shortest."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def reset(self) -> None:
        """Nobody was in the way: begin anew."""
        self._next = SHORTEST_PAUSE

    def is_long(self) -> bool:
        """Say whether others have been in the way for a while, some ten milliseconds."""
        return self._next >= LONGEST_PAUSE

    def longest(self) -> float:
        """Return for how long the next may be."""
        return self._next * 1.5

    def sleep(self) -> None:
        """Sleep, and longer the next time."""
        time.sleep(self._next * (0.5 + random.random()))
        self._next = min(self._next * 1.5, LONGEST_PAUSE)


class WriterYield:
    """Who has just written gives way to who waits: else a process that writes all the time keeps out all others.

    They find the file free only in the moments between two of its transactions, and the slower the disk, the rarer
    that is. So who has waited for a while marks the file, and who sees a fresh mark right after a transaction of its
    own lets another one of that length pass before it tries again.
    """

    __slots__ = ("_since", "_took", "_wrote")

    def __init__(self) -> None:
        self._since = self._wrote = self._took = 0.0

    def begin(self) -> None:
        """Take note that a transaction begins."""
        self._since = boottime()

    def end(self) -> None:
        """Take note that it is over."""
        self._wrote = boottime()
        self._took = self._wrote - self._since

    def give_way(self, touched: float) -> None:
        """Sleep if another process waits to write; ``touched`` is when the file was marked."""
        if abs(wall_us() / 1e6 - touched) < FRESH and boottime() - self._wrote < LONGEST_PAUSE:
            time.sleep(min(self._took, LONGEST_PAUSE) * (0.5 + random.random()))


class Attempt:
    """How long one call may still wait for other processes."""

    __slots__ = ("_backoff", "_ends")

    def __init__(self, backoff: Backoff, until: float) -> None:
        self._ends = min(until, boottime() + MAX_ATTEMPT)
        self._backoff = backoff

    def try_again(self, error: Exception, why: str) -> None:
        """Sleep before the next try.

        Raises:
            Busy: the time, or the turn, is over.

        """
        if boottime() + self._backoff.longest() >= self._ends:
            raise Busy(why) from error
        self._backoff.sleep()
