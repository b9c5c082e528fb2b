"""The steps of the SQLite store at one name, inside a transaction: acquire, release, renew, check for waiters."""

from __future__ import annotations

import os
import sqlite3

from leasehold._model import QueueEntry, ReleaseReason, RenewalResult, Ticket
from leasehold._rules import Queue
from leasehold._runtimes.base import Runtime
from leasehold.stores._common import queues
from leasehold.stores.sqlite import rows
from leasehold.stores.sqlite.machine import Machine, Process


class Steps:
    """The steps of one client, each inside an open transaction. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, machine: Machine) -> None:
        self._runtime = runtime
        self._machine = machine
        self._me: Process | None = None
        self._asked_by = 0

    def process(self) -> Process:
        """Return this process."""
        if self._me is None or self._asked_by != os.getpid():
            self._me, self._asked_by = self._machine.process(), os.getpid()
        return self._me

    def claim(
        self, db: sqlite3.Connection, key: rows.Key, ticket: Ticket, now: float, fence: int, *, join: bool
    ) -> tuple[rows.QueueSnapshot, queues.Step]:
        """Return the snapshot and the step of an attempt to acquire; nothing is written yet."""
        floor, me = self._floor(fence), self.process()

        def take(snapshot: rows.QueueSnapshot) -> queues.Step:
            alive = snapshot.alive(self._machine, me)
            return queues.try_acquire(snapshot.queue, ticket, join=join, now=now, floor=floor, alive=alive)

        return rows.advance(db, key, ticket.id, now, take)

    def leave(
        self, db: sqlite3.Connection, key: rows.Key, ticket: str, reason: ReleaseReason, now: float, fence: int
    ) -> tuple[rows.QueueSnapshot, queues.Step]:
        """Remove a ticket, write the hand-over, and return snapshot and step."""
        floor, me = self._floor(fence), self.process()

        def take(snapshot: rows.QueueSnapshot) -> queues.Step:
            alive = snapshot.alive(self._machine, me)
            return queues.release(snapshot.queue, ticket, reason=reason, now=now, floor=floor, alive=alive)

        snapshot, step = rows.advance(db, key, ticket, now, take)
        rows.write(db, key, snapshot, step.queue, now, me, "")
        return snapshot, step

    def renew(self, db: sqlite3.Connection, key: rows.Key, ticket: Ticket, now: float) -> RenewalResult:
        """Set the lease of an entry to full length, unless it has expired."""
        found = rows.expiry(db, key, ticket.id)
        if found is None:
            return RenewalResult.GONE
        token, expires, name_id = found
        entry = QueueEntry(ticket, 0, expires, token)
        alone = Queue(key[1].decode(), holders=(entry,))  # a renewal does not depend on other entries
        queue, result = queues.renew(alone, ticket.id, now)
        if result is not RenewalResult.GONE:
            db.execute(rows.SET_EXPIRY, (rows.ns(queue.holders[0].expires), ticket.id, name_id))
        return result

    def worth_asking(self, db: sqlite3.Connection, key: rows.Key, first: str) -> list[str]:
        """Return the tickets that hold or may enter, and our first one if a holder's entry is void or the name is free.

        Our first one, because the next waiter may be a stopped process: then another process settles the queue.
        """
        now, me = self._runtime.now(), self.process()

        def take(snapshot: rows.QueueSnapshot) -> queues.Step:
            queue = queues.settle(snapshot.queue, now, snapshot.alive(self._machine, me))
            queue, woken = queues.hand_over(queue, now, 0)
            return queues.Step(queue, woken=woken)

        snapshot, step = rows.advance(db, key, None, now, take)
        left = {entry.ticket.id for entry in step.queue.holders}
        void = any(entry.ticket.id not in left for entry in snapshot.queue.holders)
        tickets = [entry.ticket.id for entry in step.queue.holders]
        return [*tickets, first] if void or not (snapshot.queue.holders or step.queue.blocked_until > now) else tickets

    def _floor(self, fence: int) -> int:
        return max(self._runtime.wall_us(), fence + 1)
