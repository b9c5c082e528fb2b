"""Who waits, written down for people to see: many waiters of a client in one transaction.

What is written decides nothing, so it must not hold up those who wait. Whoever comes while a transaction is under way
is written down by the next one, together with all others who came meanwhile; one of them sends it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from leasehold._model import Owner
from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session.waiter import Waiter

S = TypeVar("S")

MAX_BATCH = 100
"""Waiters that one transaction writes down."""

Write = Callable[[Sequence[Waiter[S]], float], Awaitable[Sequence[Owner | None]]]
"""Writes them down before a reading of the clock; returns for each who holds the name."""


class PendingRow(Generic[S]):
    """One who wants to be written down; its signal says that it is, or that it is to send the next transaction."""

    __slots__ = ("done", "failed", "held_by", "signal", "waiter")

    def __init__(self, waiter: Waiter[S], signal: Signal) -> None:
        self.waiter = waiter
        self.signal = signal
        self.done = False
        self.failed: StoreUnavailable | None = None
        self.held_by: Owner | None = None


class WaiterTable(Generic[S]):
    """That of one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, write: Write[S]) -> None:
        self._runtime = runtime
        self._write = write
        self._mutex = runtime.mutex()
        self._pending: list[PendingRow[S]] = []
        self._busy = False

    async def show(self, waiter: Waiter[S], until: float) -> Owner | None:
        """Write one down; return who holds the name.

        Raises:
            StoreUnavailable: it could not be done.

        """
        pending = PendingRow(waiter, self._runtime.signal())
        with self._mutex:
            self._pending.append(pending)
            mine, self._busy = not self._busy, True
        if not mine and not await self._wait_turn(pending, until):
            raise StoreUnavailable("the connections of this client are busy writing down who waits")
        if not pending.done:
            await self._send(pending, until)
        if pending.failed is not None:
            raise pending.failed
        return pending.held_by

    async def _wait_turn(self, pending: PendingRow[S], until: float) -> bool:
        """Wait until it is done, or this one is to send; return False if neither came in time."""
        try:
            await pending.signal.wait(max(until - self._runtime.now(), 0.0))
        except BaseException:
            if self._withdraw(pending) and pending.signal.is_set():
                self._pass_on()
            raise
        return pending.signal.is_set() or not self._withdraw(pending)

    async def _send(self, pending: PendingRow[S], until: float) -> None:
        """Write down all who are there, this one among them, and let the next one send for those who come meanwhile."""
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
                    one.done, one.failed, one.held_by = True, failed, owner
                    one.signal.set()
            self._pass_on()

    def _withdraw(self, pending: PendingRow[S]) -> bool:
        """Take one out who waits to be written down; return whether it still did and nobody had called it."""
        with self._mutex:
            waits = pending in self._pending
            if waits:
                self._pending.remove(pending)
            return waits

    def _pass_on(self) -> None:
        """Wake the one that sends the next transaction."""
        with self._mutex:
            if self._pending:
                self._pending[0].signal.set()
            else:
                self._busy = False
