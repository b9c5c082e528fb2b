"""Stores waiters in the tables for people to see: many waiters of a client in one transaction.

These rows decide nothing, so writing them must not delay the waiters. One transaction at a time is under way. A waiter
that comes meanwhile is stored by the next one, which the first to have its turn sends for all that came.

A waiter may leave meanwhile, and its release finds no row to remove. So after each transaction its sender removes the
rows of waiters that have left, even if its task is cancelled. If the server then does not answer for about `GRACE`, the
row stays until it expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from leasehold._model import Owner
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.waiter import Waiter
from leasehold.stores._sql.transport import GRACE, Permit, Semaphore

S = TypeVar("S")

MAX_BATCH = 100
"""Waiters that one transaction stores."""

Write = Callable[[Sequence[Waiter[S]], float], Awaitable[Sequence[Owner | None]]]
"""Stores waiters before a deadline on the boot-time clock; returns the holder of each one's name."""

Remove = Callable[[Sequence[Waiter[S]], float], Awaitable[None]]
"""Removes the rows of waiters that have left, before that deadline, if the server answers."""


@dataclass(eq=False, slots=True)
class PendingRow(Generic[S]):
    """A waiter to be stored; ``done`` when it is, or ``failed``."""

    waiter: Waiter[S]
    done: bool = False
    failed: StoreUnavailable | None = None


class WaiterTable(Generic[S]):
    """The rows of one client's waiters. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, write: Write[S], remove: Remove[S]) -> None:
        self._runtime = runtime
        self._write = write
        self._remove = remove
        self._turn = Semaphore(runtime, 1)
        self._pending: dict[PendingRow[S], None] = {}  # in order; without a mutex, since each step is atomic

    async def show(self, waiter: Waiter[S], until: float) -> None:
        """Store a waiter, and note the holder of its name.

        Raises:
            StoreUnavailable: it could not be stored.
        """
        pending, turn = PendingRow(waiter), list[Permit]()
        try:
            self._pending[pending] = None
            if not await self._turn.take(until, turn) and not pending.done:
                raise StoreUnavailable("the connections of this client are busy storing its waiters")
            if not pending.done:
                await self._send(pending, until)
        finally:
            turn.clear()
            self._pending.pop(pending, None)
            self._turn.notify()
        if pending.failed is not None:
            raise pending.failed

    async def _send(self, pending: PendingRow[S], until: float) -> None:
        """Store this waiter and all that came meanwhile. If that is interrupted, the next one stores them."""
        others = [one for one in list(self._pending) if not one.done and one is not pending]
        await self._runtime.shield(self._store([pending, *others[: MAX_BATCH - 1]], until), GRACE)

    async def _store(self, batch: Sequence[PendingRow[S]], until: float) -> None:
        failed: StoreUnavailable | None = None
        held_by: Sequence[Owner | None] = [None] * len(batch)
        try:
            held_by = await self._write([one.waiter for one in batch], until)
        except StoreUnavailable as error:
            failed = error
        for one, owner in zip(batch, held_by, strict=True):
            one.waiter.held_by, one.failed, one.done = owner, failed, True
        if left := [one.waiter for one in batch if one.waiter.left]:
            await self._remove(left, until)
