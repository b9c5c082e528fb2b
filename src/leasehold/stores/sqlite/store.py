"""The SQLite store: many processes of one host share a file.

Theory of operation
-------------------
Every operation is one transaction: read the name's queue, compute the new queue with `queues`, write what changed. The
file provides the mutual exclusion of transactions. Our lock is a lease in the file, with a token and an expiry on the
host's boot-time clock. Client and store have the same clock, so an entry's row alone says since when it is valid.

Three things wake a waiter, and each means only "check again":

* The process that releases notifies the next waiter: a function call in this process, a datagram between processes.
* A renewal finds the ticket granted or gone.
* One thread checks, every `CHECK_EVERY`, each name that this store waits for. This check also finds holders whose
  process has died: their entries are void at once, whatever is left of their leases.

Under asyncio each transaction runs as one call on the runtime's worker thread. A cancellation cannot interrupt it, and
the release that undoes it is queued behind it. While another process writes, the calls of a client take turns, so that
a long wait does not delay short ones (see `busy_wait`).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._common import queues
from leasehold.stores._common.cells import EMPTY, apply_change, check_fence
from leasehold.stores.sqlite import plain, rows
from leasehold.stores.sqlite.busy_wait import LONGEST_PAUSE, Busy
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.machine import Machine
from leasehold.stores.sqlite.steps import Steps
from leasehold.stores.sqlite.volume import NoFile
from leasehold.stores.sqlite.waiting import CHECK_EVERY, Waiters

T = TypeVar("T")

Hints = Mapping[str, str]
"""How to wake the waiters that a step granted the name, by ticket."""

NO_HINTS: Hints = {}

PATIENCE = 5.0
"""Seconds that an operation without a timeout of its own waits for other writers."""


class SQLiteStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=True, permits=True, batches=True, crash_bound="within one second (the process is gone)"
    )

    def __init__(self, runtime: Runtime, namespace: str, path: Path, machine: Machine, *, allow_network: bool) -> None:
        self._runtime = runtime
        self._space = namespace.encode()
        self._machine = machine
        self._database = Database(path, machine, allow_network=allow_network)
        self._start()

    def _start(self) -> None:
        self._steps = Steps(self._runtime, self._machine)
        self._waiters = Waiters(self._runtime, self._machine, self._worth_retrying)

    # --- the queue ---------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        until = since + within
        return await self._retry_busy(lambda: self._try_acquire(name, ticket, join, since, until), until)

    def _try_acquire(self, name: str, ticket: Ticket, join: bool, since: float, until: float) -> Granted | Wait:
        key = self._key(name)

        def work(db: sqlite3.Connection, fence: int) -> tuple[Granted | Wait, Hints]:
            now, me = self._runtime.now(), self._steps.process()
            token = plain.acquire(db, key, ticket, now, self._steps.floor(fence), me)
            if token is not None:
                self._steps.sweep(db, now)
                return Granted(token, since, ticket.terms.lease), NO_HINTS
            snapshot, step = self._steps.try_acquire(db, key, ticket, now, fence, join=join)
            address = self._waiters.expect(name, ticket.id) if join and step.blocked is not None else None
            rows.write(db, key, snapshot, step.queue, now, me, address or "")
            self._steps.sweep(db, now)
            answer = step.answer(since, now, CHECK_EVERY if address is None else math.inf)
            return answer, snapshot.hints_of(step.woken)

        waited = self._waiters.signal(ticket.id) is not None
        try:
            answer, woken = self._database.transact(work, until)
        except BaseException:
            if not waited:  # perhaps nothing was written, and its client will not release it
                self._waiters.forget(ticket.id)
            raise
        if woken:
            self._waiters.wake_all(woken)
        if isinstance(answer, Granted):
            self._waiters.forget(ticket.id)
        return answer

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        """Acquire in order, in one transaction, up to the first unavailable name."""
        since = self._runtime.now()
        until = since + within
        return await self._retry_busy(lambda: self._try_acquire_many(claims, keep, since, until), until)

    def _try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], keep: bool, since: float, until: float
    ) -> list[Granted | Wait]:
        def work(
            db: sqlite3.Connection, fence: int
        ) -> tuple[list[tuple[rows.Key, rows.QueueSnapshot, queues.Step]], float]:
            now = self._runtime.now()
            taken = list[tuple[rows.Key, rows.QueueSnapshot, queues.Step]]()
            for name, ticket in claims:
                key = self._key(name)
                taken.append((key, *self._steps.try_acquire(db, key, ticket, now, fence, join=False)))
                if taken[-1][2].blocked is not None:
                    taken = taken if keep else taken[-1:]
                    break
            for key, snapshot, step in taken:
                rows.write(db, key, snapshot, step.queue, now, self._steps.process(), "")
            self._steps.sweep(db, now)
            return taken, now

        taken, now = self._database.transact(work, until)
        for _, snapshot, step in taken:
            self._waiters.wake_all(snapshot.hints_of(step.woken))
        return [step.answer(since, now, CHECK_EVERY) for _, _, step in taken]

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        until = self._runtime.now() + within
        (found,) = await self._retry_busy(lambda: self._release([(name, ticket)], reason, until), until)
        return found

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        """Remove each ticket and hand its name over, in one transaction."""
        until = self._runtime.now() + within
        return await self._retry_busy(lambda: self._release(releases, ReleaseReason.RELEASE, until), until)

    def _release(self, releases: Sequence[tuple[str, Ticket]], reason: ReleaseReason, until: float) -> list[bool]:
        for _, ticket in releases:
            self._waiters.forget(ticket.id)

        def work(db: sqlite3.Connection, fence: int) -> tuple[list[bool], Hints]:
            now, found, woken = self._runtime.now(), list[bool](), dict[str, str]()
            for name, ticket in releases:
                key = self._key(name)
                if reason is ReleaseReason.RELEASE and plain.release(db, key, ticket, now):
                    found.append(True)
                    continue
                snapshot, step = self._steps.release(db, key, ticket.id, reason, now, fence)
                found.append(step.found)
                woken |= snapshot.hints_of(step.woken)
            self._steps.sweep(db, now)
            return found, woken

        found, woken = self._database.transact(work, until)
        if woken:
            self._waiters.wake_all(woken)
        return found

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until = self._runtime.now() + within
        return await self._retry_busy(lambda: self._renew(tickets, until), until)

    def _renew(self, tickets: Sequence[tuple[str, Ticket]], until: float) -> list[RenewalResult]:
        def work(db: sqlite3.Connection, fence: int) -> list[RenewalResult]:
            now = self._runtime.now()
            return [self._steps.renew(db, self._key(name), ticket, now) for name, ticket in tickets]

        results = self._database.transact(work, until)
        for (_, ticket), result in zip(tickets, results, strict=True):
            if result is not RenewalResult.QUEUED:  # a hint or the entry was lost: the waiter must ask again
                self._waiters.wake(ticket.id)
        return results

    # --- waiting -----------------------------------------------------------------------------------------------

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until a notification, a check or a renewal; return the grant if there is one."""
        signal = self._waiters.signal(ticket.id)
        if signal is None or not await signal.wait(timeout):
            return None
        signal.clear()  # before the file is read: a hint that comes meanwhile counts for the next call
        try:
            return await self._runtime.offload(lambda: self._grant(name, ticket))
        except LeaseholdError:  # the next attempt meets the error again, and tolerates an outage
            return None

    def _grant(self, name: str, ticket: Ticket) -> Granted | None:
        def work(db: sqlite3.Connection, fence: int) -> tuple[int | None, float, int] | None:
            return rows.expiry(db, self._key(name), ticket.id)

        found = self._read(work, self._runtime.now() + PATIENCE, None)
        if found is None:
            return None
        token, expires, _ = found
        if token is None or expires <= self._runtime.now():
            return None
        self._waiters.forget(ticket.id)
        return Granted(token, expires - ticket.terms.lease, ticket.terms.lease)

    def _worth_retrying(self, first: Mapping[str, str]) -> list[str]:
        def work(db: sqlite3.Connection, fence: int) -> list[list[str]]:
            return [self._steps.worth_retrying(db, self._key(name), ticket) for name, ticket in first.items()]

        try:
            worth = self._read(work, self._runtime.now() + CHECK_EVERY, [list(first.values())])
        except LeaseholdError:  # the next operation meets the error
            return []
        return [ticket for tickets in worth for ticket in tickets]

    # --- inspection, cells -------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        until = self._runtime.now() + within
        return await self._retry_busy(lambda: self._read_views(prefix, exact, until), until)

    def _read_views(self, prefix: str, exact: bool, until: float) -> list[View]:
        def work(db: sqlite3.Connection, fence: int) -> list[View]:
            now = self._runtime.now()
            found = list(rows.names(db, self._space, prefix.encode("utf-8", "surrogatepass"), now, exact=exact))
            return [queues.view(self._steps.settled(db, (self._space, name), now), now) for name in found]

        views = self._read(work, until, list[View]())
        return [view for view in views if view.holders or view.waiters or view.free_in > 0]

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        check_fence(change)
        until = self._runtime.now() + within
        return await self._retry_busy(lambda: self._change(name, change, until), until)

    def _change(self, name: str, change: Change, until: float) -> Cell:
        key = self._key(name)

        def work(db: sqlite3.Connection, fence: int) -> Cell:
            now = self._runtime.now()
            after = apply_change(rows.read_cell(db, key, now), change)
            if after.changed:
                rows.write_cell(db, key, after, now, change.ttl)
                self._steps.sweep(db, now)
            return after

        if change.value is None:
            return self._read(work, until, apply_change(EMPTY, change))
        return self._database.transact(work, until)

    def _read(self, work: Callable[[sqlite3.Connection, int], T], until: float, nothing: T) -> T:
        """Run a transaction that only reads; return ``nothing`` if there is no file, and make none."""
        try:
            return self._database.transact(work, until, writes=False)
        except NoFile:
            return nothing

    async def _retry_busy(self, call: Callable[[], T], until: float) -> T:
        """Repeat a call while other processes write, until ``until``; other calls of this client run in between."""
        while True:
            try:
                return await self._runtime.offload(call)
            except Busy as busy:
                left = until - self._runtime.now()
                if left <= 0:
                    raise StoreUnavailable(str(busy)) from busy.__cause__
                await self._runtime.sleep(min(left, LONGEST_PAUSE))

    # --- life cycle --------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        """Return what the file, the file system and the kernel mean for the promises."""
        from leasehold.stores.sqlite import doctor

        until = self._runtime.now() + PATIENCE
        return await self._retry_busy(lambda: doctor.examine(self._database, until), until)

    async def close(self) -> None:
        """End the thread, close socket and file."""
        await self._runtime.offload(self._close)

    def _close(self) -> None:
        self._waiters.close()
        self._database.close()

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent; the database was closed before the fork."""
        self._database.after_fork_in_child()
        self._waiters.after_fork()
        self._start()

    def _key(self, name: str) -> rows.Key:
        return self._space, name.encode()

    def __repr__(self) -> str:
        return f"<SQLiteStore {str(self._database.path)!r}>"
