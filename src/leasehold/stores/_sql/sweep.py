"""Forgets names that nobody uses and cells whose life is over, in small steps, so that the tables do not grow for ever.

A step looks at a few rows behind the place where the last one ended. Each name is dropped in a transaction of its own,
under its lock. The highest token of a forgotten name is kept for all in `leasehold_meta`, so that tokens never go back,
even if the server's clock does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import ns
from leasehold.stores._sql.rows import clock_of
from leasehold.stores._sql.transport import Row, Statement, Transaction

T = TypeVar("T")

IDLE_LIFE = 3600.0
"""Seconds for which a name that nobody uses is remembered."""

EVERY = 256
"""Leaves between two steps; the first of a store is one."""

STEP = 64
"""Rows that a step looks at."""


class Transact(Protocol):
    """Runs a transaction that must end before a reading of the boot-time clock."""

    async def __call__(self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float) -> T: ...


class Sweeper:
    """Knows where the last step ended."""

    def __init__(self, dialect: Dialect, runtime: Runtime) -> None:
        self._dialect = dialect
        self._runtime = runtime
        self._leaves = 0
        self._after: int | None = None

    def due(self) -> bool:
        """Say whether it is time for a step; to be asked once for each leave."""
        self._leaves += 1
        return self._leaves % EVERY == 1

    async def step(self, transact: Transact, until: float) -> None:
        """Forget what of the next few rows is to be forgotten."""
        found, before = await transact(self._find, until)
        self._after = found[-1][0] if len(found) == STEP else 0
        for name_id, idle in found:
            if idle:
                await transact(self._forgetting(name_id, before), until)

    async def _find(self, tx: Transaction) -> tuple[list[Row], int]:
        clock, last = await tx.ask(Statement(self._dialect.clock), Statement(self._dialect.last_name))
        before = ns(clock_of(clock).now - IDLE_LIFE)
        if self._after is None:  # anywhere, since many stores are closed before their second step
            self._after = int(self._runtime.jitter() * max(0, last[0][0] - STEP))
        found, _ = await tx.commit(
            Statement(self._dialect.some_names, (before, before, self._after, STEP)),
            Statement(self._dialect.drop_cells, (STEP,)),
        )
        return found, before

    def _forgetting(self, name_id: int, before: int) -> Callable[[Transaction], Coroutine[Any, Any, None]]:
        async def work(tx: Transaction) -> None:
            found, entries = await tx.ask(
                Statement(self._dialect.lock_idle, (name_id, before, before)),
                Statement(self._dialect.unexpired, (name_id,)),
            )
            if found and not entries:  # else it is in use again, or somebody is at it
                await tx.commit(*self._dialect.forget_name(name_id, found[0][0]))

        return work
