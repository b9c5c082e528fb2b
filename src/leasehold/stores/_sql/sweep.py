"""Drops unused names and expired cells in small steps, so that the tables do not grow for ever.

A step reads a few rows after those of the last step. Each name is dropped in a transaction of its own, under its lock.
`leasehold_meta` keeps the highest token of all dropped names. So tokens never go back, even if the server's clock does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import ns
from leasehold.stores._sql.rows import clock_of
from leasehold.stores._sql.transport import Row, Statement, Transaction

T = TypeVar("T")

IDLE_LIFE = 3600.0
"""Seconds for which an unused name is kept."""

EVERY = 256
"""Releases between two steps; the first release of a store takes a step."""

STEP = 64
"""Rows that a step reads."""


class Transact(Protocol):
    """Runs a transaction before a deadline on the boot-time clock."""

    async def __call__(self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float) -> T: ...


class Sweeper:
    """Takes the steps of one client, and knows where the last one ended."""

    def __init__(self, dialect: Dialect, runtime: Runtime) -> None:
        self._dialect = dialect
        self._runtime = runtime
        self._leaves = 0
        self._after: int | None = None

    def due(self) -> bool:
        """Return whether it is time for a step; called once for each release."""
        self._leaves += 1
        return self._leaves % EVERY == 1

    async def step(self, transact: Transact, until: float) -> None:
        """Drop the idle names among the next rows, and some expired cells."""
        with suppress(StoreUnavailable, Unsupported):  # the next operation meets the error
            found, before = await transact(self._find, until)
            self._after = found[-1][0] if len(found) == STEP else 0
            for name_id, idle in found:
                if idle:
                    await transact(partial(self._forget, name_id=name_id, before=before), until)

    async def _find(self, tx: Transaction) -> tuple[list[Row], int]:
        clock, last = await tx.ask(Statement(self._dialect.clock), Statement(self._dialect.last_name))
        before = ns(clock_of(clock).now - IDLE_LIFE)
        if self._after is None:  # a random start, since many stores are closed before their second step
            self._after = int(self._runtime.jitter() * max(0, last[0][0] - STEP))
        found, _ = await tx.commit(
            Statement(self._dialect.some_names, (before, before, self._after, STEP)),
            Statement(self._dialect.drop_cells, (STEP,)),
        )
        return found, before

    async def _forget(self, tx: Transaction, name_id: int, before: int) -> None:
        found, entries = await tx.ask(
            Statement(self._dialect.lock_idle, (name_id, before, before)),
            Statement(self._dialect.unexpired, (name_id,)),
        )
        if found and not entries:  # else it is in use again, or locked
            await tx.commit(*self._dialect.forget_name(name_id, found[0][0]))
