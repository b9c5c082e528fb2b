"""Stores waiters in the tables for people to see: many waiters of a client in one transaction.

These rows decide nothing, so writing them must not delay the waiters. A waiter that comes while a transaction is under
way is stored by the next one, together with all others that came meanwhile. One of them sends that transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from leasehold._model import Owner
from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.waiter import Waiter

S = TypeVar("S")

MAX_BATCH = 100
"""Waiters that one transaction stores."""

Write = Callable[[Sequence[Waiter[S]], float], Awaitable[Sequence[Owner | None]]]
"""Stores waiters before a deadline on the boot-time clock; returns the holder of each one's name."""


@dataclass(eq=False, slots=True)
class PendingRow(Generic[S]):
    """A waiter to be stored. Its signal is set when it is stored, or when it must send the next transaction."""

    waiter: Waiter[S]
    signal: Signal
    done: bool = False
    failed: StoreUnavailable | None = None


class WaiterTable(Generic[S]):
    """The rows of one client's waiters. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, write: Write[S]) -> None:
        self._runtime = runtime
        self._write = write
        self._mutex = runtime.mutex()
        self._pending: list[PendingRow[S]] = []
        self._busy = False

    async def show(self, waiter: Waiter[S], until: float) -> None:
        """Store a waiter, and note the holder of its name.

        Raises:
            StoreUnavailable: it could not be stored.

        """
        pending = PendingRow(waiter, self._runtime.signal())
        with self._mutex:
            self._pending.append(pending)
            mine, self._busy = not self._busy, True
        if not mine and not await self._wait_turn(pending, until):
            raise StoreUnavailable("the connections of this client are busy storing its waiters")
        if not pending.done:
            await self._send(pending, until)
        if pending.failed is not None:
            raise pending.failed

    async def _wait_turn(self, pending: PendingRow[S], until: float) -> bool:
        """Wait until the waiter is stored, or must send; return False if neither happened in time."""
        try:
            await pending.signal.wait(max(until - self._runtime.now(), 0.0))
        except BaseException:
            if self._withdraw(pending) and pending.signal.is_set():
                self._pass_on()
            raise
        return pending.signal.is_set() or not self._withdraw(pending)

    async def _send(self, pending: PendingRow[S], until: float) -> None:
        """Store this waiter and all pending ones; then the next one sends for those that came meanwhile."""
        with self._mutex:
            if pending in self._pending:
                self._pending.remove(pending)
            batch = [pending, *self._pending[: MAX_BATCH - 1]]
            del self._pending[: MAX_BATCH - 1]
        failed: StoreUnavailable | None = None
        held_by: Sequence[Owner | None] = [None] * len(batch)
        try:
            held_by = await self._write([one.waiter for one in batch], until)
        except StoreUnavailable as error:
            failed = error
        finally:
            with self._mutex:
                for one, owner in zip(batch, held_by, strict=True):
                    one.done, one.failed, one.waiter.held_by = True, failed, owner
                    one.signal.set()
            self._pass_on()

    def _withdraw(self, pending: PendingRow[S]) -> bool:
        """Remove a pending waiter; return whether it was still pending and had no signal yet."""
        with self._mutex:
            waits = pending in self._pending
            if waits:
                self._pending.remove(pending)
            return waits

    def _pass_on(self) -> None:
        """Wake the waiter that sends the next transaction."""
        with self._mutex:
            if self._pending:
                self._pending[0].signal.set()
            else:
                self._busy = False
