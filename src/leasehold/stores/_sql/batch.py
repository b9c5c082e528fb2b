"""The steps of an operation on several names in one transaction. Pure; `rows.advance` reads and locks the names.

An acquire whose answer was lost is repeated. The repetition may find that it has lost one name and still has a later
one. So it releases what it must not keep; not acquiring it would be too little.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import ReleaseReason, Ticket
from leasehold.stores._common import queues
from leasehold.stores._common.queues import Step
from leasehold.stores._sql.queue_snapshot import QueueSnapshot
from leasehold.stores._sql.rows import Clock, Found, Take, TakeAll


def claiming(ticket: Ticket, *, join: bool) -> Take:
    """Return the step that tries to acquire a name for this ticket."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.try_acquire(snapshot.queue, ticket, join=join, now=clock.now, floor=clock.floor)

    return take


def leaving(ticket: Ticket, reason: ReleaseReason) -> Take:
    """Return the step that releases a name."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.release(snapshot.queue, ticket.id, reason=reason, now=clock.now, floor=clock.floor)

    return take


def each(takes: Sequence[Take]) -> TakeAll:
    """Return what takes one of these steps at each name that has a row."""

    def take_all(found: Sequence[Found | None]) -> list[Step | None]:
        return [here and take(*here) for take, here in zip(takes, found, strict=True)]

    return take_all


def in_order(tickets: Sequence[Ticket], *, keep: bool) -> TakeAll:
    """Return what acquires in order up to the first unavailable name; see `ManyStore.try_acquire_many`.

    It takes no step while one of the names has no row.
    """

    def take_all(found: Sequence[Found | None]) -> list[Step | None]:
        steps, there = list[Step | None](), [here for here in found if here is not None]
        if len(there) < len(found):
            return [None] * len(found)
        for ticket, here in zip(tickets, there, strict=True):
            steps.append(claiming(ticket, join=False)(*here))
            if blocked(steps[-1]):
                last = len(steps)
                kept = steps if keep else [*map(_without, tickets[: last - 1], there), steps[-1]]
                return [*kept, *map(_without, tickets[last:], there[last:])]
        return steps

    return take_all


def blocked(step: Step | None) -> bool:
    """Return whether the name was unavailable."""
    return step is not None and step.blocked is not None


def _without(ticket: Ticket, here: Found) -> Step | None:
    """Release a name if an earlier attempt of the same ticket acquired it."""
    if all(entry.ticket.id != ticket.id for entry in here[0].queue.entries()):
        return None
    return leaving(ticket, ReleaseReason.RELEASE)(*here)
