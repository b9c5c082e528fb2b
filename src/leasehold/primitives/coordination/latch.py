"""A count-down latch: waiters continue after a number of counts. `AsyncLatch` and its sync facade `Latch`.

Theory of operation
-------------------
The latch is a journal with the total, the rest, and the number of its round. A new latch is closed at its full count,
so no waiter passes before the first count. An open latch stays open until a reset.

Each call of `count_down` counts exactly once, whatever replies are lost, as every change of a journal does. A `reset`
begins a new round. A waiter remembers the round that it read, and the journal records the last round that opened. So no
waiter misses an opening that is followed by a reset at once. A waiter of a round that never opened waits for the next,
also if its total is another.
"""

from __future__ import annotations

from typing import NamedTuple

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._runtimes.base import run_sync
from leasehold._validate import Seconds
from leasehold.errors import NameInUse
from leasehold.primitives.bases import AsyncNamed, NamedFacade
from leasehold.primitives.coordination.journal import Journal, Pace
from leasehold.primitives.locks.options import DEFAULT_LEASE
from leasehold.primitives.locks.semaphore import permits_of
from leasehold.primitives.values.versioned import LONGEST_TTL

MOST = 1_000_000
"""The largest count."""

PATIENCE = DEFAULT_LEASE
"""Seconds of an outage that waiters tolerate."""


class Tally(NamedTuple):
    """The stored state, in the order in which the fields are stored.

    Attributes:
        total: the full count.
        left: how many counts are missing.
        round: grows by one with each reset.
        opened: the last round that opened; -1 if none has.
    """

    total: int
    left: int
    round: int = 0
    opened: int = -1


class AsyncLatch(AsyncNamed):
    """Opens when ``count`` calls of `count_down` have been made, by any process.

    All who use a name say the same count. Names of latches and of locks never meet.

    Example:
        ```python
        loaded = client.latch("import:7", 2)
        for part in ("stock", "prices"):
            await loaded.count_down()
        assert await loaded.wait(timeout=10)
        ```
    """

    def __init__(self, engine: Engine, name: str, count: int, ttl: Seconds) -> None:
        self._engine = engine
        self._total = permits_of(count, "count", MOST)
        ttl = _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        self._journal: Journal[Tally] = Journal(engine, "latch", name, lambda plain: Tally(*map(int, plain)), ttl)
        self._name = name

    @property
    def total(self) -> int:
        """The full count: how many counts open it."""
        return self._total

    async def count_down(self, n: int = 1) -> int:
        """Count ``n`` times, exactly once per call; return how many are left.

        An open latch stays at 0.

        Raises:
            NameInUse: others use the name with another count.
            StoreUnavailable: no answer; with ``unknown`` it may have been counted all the same.
        """
        permits_of(n, "n", MOST)
        self._engine.ready()

        def counted(seen: Tally | None) -> Tally | None:
            tally = self._mine(seen)
            if tally.left == 0:
                return None
            left = max(0, tally.left - n)
            return tally._replace(left=left, opened=tally.opened if left else tally.round)

        return self._mine((await self._journal.change(counted)).state).left

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is open.

        Args:
            timeout: seconds to wait at most; None waits for ever, 0 only looks.

        Returns:
            Whether it opened in time.

        Raises:
            NameInUse: others use the name with another count.
            StoreUnavailable: the store did not answer: at first contact at once, later for half a minute.
        """
        limit = _validate.timeout(timeout)
        self._engine.ready()
        runtime, pace, before = self._engine.runtime, Pace(), None
        until = float("inf") if limit is None else runtime.now() + limit
        seen = await self._journal.read()
        while True:
            tally = self._mine(seen.state, before)
            if tally.left == 0 or (before is not None and tally.opened >= before.round):
                return True
            before = tally
            left = until - runtime.now()
            if left <= 0:
                return False
            await self._journal.changed(seen.version, left, pace)
            self._engine.refuse_closed()
            seen = await self._journal.read(min(PATIENCE, max(0.0, until - runtime.now())))

    async def count(self) -> int:
        """Return how many counts are missing; 0 when it is open.

        Raises:
            NameInUse: others use the name with another count.
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return self._mine((await self._journal.read()).state).left

    async def reset(self) -> None:
        """Close it at its full count, whatever it was before: also with another count than others gave.

        Waiters go on waiting, for the new count.

        Raises:
            StoreUnavailable: no answer; with ``unknown`` it may have been reset all the same.
        """
        self._engine.ready()

        def closed(seen: Tally | None) -> Tally:
            before = seen or Tally(self._total, self._total)  # a waiter may have read this
            return Tally(self._total, self._total, before.round + 1, before.opened)

        await self._journal.change(closed)

    def _mine(self, seen: Tally | None, before: Tally | None = None) -> Tally:
        """Check that others give the same total, or have reset the latch to their own since ``before``."""
        if seen is None:
            return Tally(self._total, self._total)
        was_reset = before is not None and (seen.round > before.round or seen.total == before.total)
        if seen.total != self._total and not was_reset:
            raise self._error(
                NameInUse,
                f"the latch {self.name!r} has the count {seen.total} where others use it, not {self._total}; "
                "use that, take another name, or reset it",
            )
        return seen

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.total}>"


class Latch(NamedFacade[AsyncLatch]):
    """Opens when ``count`` calls of `count_down` have been made, by any process.

    All who use a name say the same count. Names of latches and of locks never meet.

    Example:
        ```python
        loaded = client.latch("import:7", 2)
        for part in ("stock", "prices"):
            loaded.count_down()
        assert loaded.wait(timeout=10)
        ```
    """

    @property
    def total(self) -> int:
        """The full count: how many counts open it."""
        return self._core.total

    def count_down(self, n: int = 1) -> int:
        """Count ``n`` times, exactly once per call; return how many are left. As `AsyncLatch.count_down`."""
        return run_sync(self._core.count_down(n))

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is open; return whether it opened in time. As `AsyncLatch.wait`.

        Args:
            timeout: seconds to wait at most; None waits for ever, 0 only looks.
        """
        return run_sync(self._core.wait(timeout))

    def count(self) -> int:
        """Return how many counts are missing; 0 when it is open. As `AsyncLatch.count`."""
        return run_sync(self._core.count())

    def reset(self) -> None:
        """Close it at its full count, whatever it was before. As `AsyncLatch.reset`."""
        run_sync(self._core.reset())
