"""The queue of one name as a value, and the changes that acquire, release and renew make. Pure.

Stores whose queues Python can read (memory, SQL) read a `Queue`, call one of these functions, and write the changes
back, in one transaction. The Redis scripts do the same steps in Lua.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from leasehold._model import Granted, Kind, QueueEntry, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._rules import Blocked, Queue, decide, next_token, successors
from leasehold.stores._common.answers import refuse_other_use

Alive = Callable[[QueueEntry], bool]
"""Returns whether the process of an entry lives, if the store can know; the entry of a dead one is dropped at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an operation.

    Attributes:
        queue: the queue afterwards.
        mine: the entry of the ticket that the operation is for, None if it has none.
        blocked: why the ticket does not hold, after an acquire.
        woken: waiters that this step granted the name.
        found: whether the ticket had an entry before.
    """

    queue: Queue
    mine: QueueEntry | None = None
    blocked: Blocked | None = None
    woken: tuple[QueueEntry, ...] = ()
    found: bool = False

    def answer(self, since: float, now: float, longest: float = math.inf) -> Granted | Wait:
        """Return a store's answer to an acquire at ``now``; a waiter retries after ``longest`` seconds at most."""
        if self.blocked is not None:
            by, ask_again = self.blocked.by, min(self.blocked.until - now, longest)
            return Wait(None, ask_again, None if by is None else by.ticket.terms.owner)
        assert self.mine is not None
        assert self.mine.token is not None
        return Granted(self.mine.token, since, self.mine.ticket.terms.lease)


def try_acquire(
    queue: Queue, ticket: Ticket, *, join: bool, now: float, floor: int, alive: Alive | None = None
) -> Step:
    """Grant the name to ``ticket`` if the rules allow, else join the queue if asked.

    Args:
        now: the store's clock in seconds.
        floor: the least token to grant, the store's clock in microseconds.
        alive: whether an entry's process lives, if the store can know.

    Raises:
        NameInUse: the name is in use as another primitive.
    """
    queue = settle(queue, now, alive)
    refuse_other_use(queue.name, [entry.ticket for entry in queue.entries()], ticket.terms.mode)
    mine = _entry_of(queue, ticket.id)
    if mine is not None and mine.token is not None:
        mine = replace(mine, expires=now + ticket.terms.lease)
        return Step(_put(queue, mine), mine, found=True)
    found = mine is not None
    expires = now + ticket.terms.lease
    if mine is None and join:
        order = max((entry.order for entry in queue.waiters), default=0) + 1
        mine = QueueEntry(ticket, order, expires)
        queue = replace(queue, waiters=(*queue.waiters, mine))
    elif mine is not None:
        mine = replace(mine, expires=expires)
        queue = _put(queue, mine)
    queue, woken = hand_over(queue, now, floor) if ticket.terms.mode.fair else (queue, ())
    granted = next((entry for entry in woken if entry.ticket.id == ticket.id), None)
    if granted is not None:
        return Step(queue, granted, woken=tuple(entry for entry in woken if entry is not granted), found=found)
    verdict = decide(queue, ticket, now)
    if isinstance(verdict, Blocked):
        return Step(queue, mine, verdict, woken, found)
    queue, granted = _grant(queue, mine or QueueEntry(ticket, 0, expires), now, floor)
    return Step(queue, granted, woken=woken, found=found)


def release(
    queue: Queue, ticket_id: str, *, reason: ReleaseReason, now: float, floor: int, alive: Alive | None = None
) -> Step:
    """Remove the ticket, holding or waiting, and grant the name to the next waiters."""
    mine = _entry_of(queue, ticket_id)
    if mine is not None:
        queue = _drop(queue, ticket_id)
        if reason is ReleaseReason.BREAK and mine.token is not None:
            queue = replace(
                queue,
                fence=next_token(queue.fence, floor),
                blocked_until=max(queue.blocked_until, now + mine.ticket.terms.lock_delay),
            )
    queue, woken = hand_over(settle(queue, now, alive), now, floor)
    return Step(queue, None, woken=woken, found=mine is not None)


def renew(queue: Queue, ticket_id: str, now: float) -> tuple[Queue, RenewalResult]:
    """Set the entry's expiry to its full lease, unless it has expired."""
    mine = _entry_of(queue, ticket_id)
    if mine is None or mine.expires <= now:
        return queue, RenewalResult.GONE
    queue = _put(queue, replace(mine, expires=now + mine.ticket.terms.lease))
    return queue, RenewalResult.QUEUED if mine.token is None else RenewalResult.HELD


def hand_over(queue: Queue, now: float, floor: int) -> tuple[Queue, tuple[QueueEntry, ...]]:
    """Grant the name to the next waiters that may hold together; return the queue and those waiters."""
    woken: list[QueueEntry] = []
    for entry in list(successors(queue, now)):
        queue, granted = _grant(queue, entry, now, floor)
        woken.append(granted)
    return queue, tuple(woken)


def settle(queue: Queue, now: float, alive: Alive | None = None) -> Queue:
    """Drop expired entries and those of dead processes; a holder with a lock delay blocks the name for that time."""
    if not queue.holders and not queue.waiters:
        return queue
    blocked_until = queue.blocked_until
    for entry in queue.holders:
        if entry.expires <= now:
            blocked_until = max(blocked_until, entry.expires + entry.ticket.terms.lock_delay)
        elif alive is not None and not alive(entry):
            blocked_until = max(blocked_until, now + entry.ticket.terms.lock_delay)

    def stays(entry: QueueEntry) -> bool:
        return entry.expires > now and (alive is None or alive(entry))

    holders = tuple(entry for entry in queue.holders if stays(entry))
    waiters = tuple(entry for entry in queue.waiters if stays(entry))
    return replace(queue, blocked_until=blocked_until, holders=holders, waiters=waiters)


def view(queue: Queue, now: float) -> View:
    """Return the queue for inspection, with times relative to ``now``."""
    queue = settle(queue, now)
    kind = next((entry.ticket.terms.mode.kind for entry in queue.entries()), Kind.MUTEX)

    def shown(entry: QueueEntry) -> QueueEntry:
        return replace(entry, expires=entry.expires - now)

    holders, waiters = tuple(map(shown, queue.holders)), tuple(map(shown, queue.waiters))
    return View(queue.name, kind, queue.fence, holders, waiters, max(0.0, queue.blocked_until - now))


def _grant(queue: Queue, entry: QueueEntry, now: float, floor: int) -> tuple[Queue, QueueEntry]:
    token = next_token(queue.fence, floor)
    granted = replace(entry, token=token, expires=now + entry.ticket.terms.lease)
    queue = _drop(queue, entry.ticket.id)
    return replace(queue, fence=token, holders=(*queue.holders, granted)), granted


def _entry_of(queue: Queue, ticket_id: str) -> QueueEntry | None:
    return next((entry for entry in queue.entries() if entry.ticket.id == ticket_id), None)


def _put(queue: Queue, entry: QueueEntry) -> Queue:
    def swap(old: QueueEntry) -> QueueEntry:
        return entry if old.ticket.id == entry.ticket.id else old

    return replace(queue, holders=tuple(map(swap, queue.holders)), waiters=tuple(map(swap, queue.waiters)))


def _drop(queue: Queue, ticket_id: str) -> Queue:
    if not queue.holders and not queue.waiters:
        return queue

    def stays(entry: QueueEntry) -> bool:
        return entry.ticket.id != ticket_id

    return replace(queue, holders=tuple(filter(stays, queue.holders)), waiters=tuple(filter(stays, queue.waiters)))
