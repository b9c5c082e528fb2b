"""Waiting while other processes write: short sleeps that grow, in bounded attempts.

The calls of one client use the file one at a time. A call that waited until its own deadline would also use up the time
of the calls behind it, and some of them may have less. So one attempt waits for `MAX_ATTEMPT` at most. Then the call
goes to the end of the queue.
"""

from __future__ import annotations

import random
import time

from leasehold._runtimes.clock import boottime, wall_us
from leasehold.errors import StoreUnavailable

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0001, 0.005
"""Seconds between two tries to become the writer: at first, and at most."""

FRESH = 0.02
"""Seconds for which a mark means that another process waits to write; each of its tries renews it."""

MAX_ATTEMPT = 0.01
"""Seconds that a call waits for other processes before other calls of its client run."""


def end_of_attempt(until: float) -> float:
    """Return until when one attempt of a call, which must begin before ``until``, may wait for other processes."""
    return min(until, boottime() + MAX_ATTEMPT)


class Busy(StoreUnavailable):
    """Other processes wrote until the attempt was over; nothing was done."""


class Backoff:
    """The pauses between tries, shared by all calls of a client. After a successful try, the next is the shortest."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def reset(self) -> None:
        self._next = SHORTEST_PAUSE

    def is_long(self) -> bool:
        """Return whether other processes have been writing for a while, some ten milliseconds."""
        return self._next >= LONGEST_PAUSE

    def try_again(self, ends: float, error: Exception, why: str) -> None:
        """Sleep before the next try, and longer the next time.

        Raises:
            Busy: the attempt would be over before the next try; it ends at ``ends``.
        """
        if boottime() + self._next * 1.5 >= ends:
            raise Busy(why) from error
        time.sleep(self._next * (0.5 + random.random()))
        self._next = min(self._next * 1.5, LONGEST_PAUSE)


class WriterYield:
    """A writer yields to waiting processes after its transaction: else a busy one would lock all others out.

    They find the file free only between two of its transactions, which is rarer on slow disks. So a process that has
    waited for a while marks the log's index. A process that sees a fresh mark right after its own transaction pauses
    for the length of one transaction before it tries again.
    """

    __slots__ = ("_since", "_took", "_wrote")

    def __init__(self) -> None:
        self._since = self._wrote = self._took = 0.0

    def begin(self) -> None:
        self._since = boottime()

    def end(self) -> None:
        self._wrote = boottime()
        self._took = self._wrote - self._since

    def give_way(self, touched: float) -> None:
        """Sleep if another process waits to write; ``touched`` is when it was marked."""
        if abs(wall_us() / 1e6 - touched) < FRESH and boottime() - self._wrote < LONGEST_PAUSE:
            time.sleep(min(self._took, LONGEST_PAUSE) * (0.5 + random.random()))
