"""What becomes of several names that are claimed or left in one transaction. Pure; `rows.advance` reads and locks them.

A claim that is repeated, since the answer to its commit was lost, may find that a name which it had is gone meanwhile
and another that comes after it is still its own. What is not to be kept is therefore left, and not only not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import ReleaseReason, Ticket
from leasehold.stores._common import queues
from leasehold.stores._common.queues import Step
from leasehold.stores._sql.queue_snapshot import QueueSnapshot
from leasehold.stores._sql.rows import Clock, Found, Take, TakeAll


def claiming(ticket: Ticket, *, join: bool) -> Take:
    """Make what claims a name for this ticket."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.try_acquire(snapshot.queue, ticket, join=join, now=clock.now, floor=clock.floor)

    return take


def leaving(ticket: Ticket, reason: ReleaseReason) -> Take:
    """Make what takes this ticket off a name."""

    def take(snapshot: QueueSnapshot, clock: Clock) -> Step:
        return queues.release(snapshot.queue, ticket.id, reason=reason, now=clock.now, floor=clock.floor)

    return take


def each(takes: Sequence[Take]) -> TakeAll:
    """Make what takes one of these steps at each name that has a row."""

    def take_all(found: Sequence[Found | None]) -> list[Step | None]:
        return [here and take(*here) for take, here in zip(takes, found, strict=True)]

    return take_all


def in_order(tickets: Sequence[Ticket], *, keep: bool) -> TakeAll:
    """Make what claims in order up to the first name that cannot be had; see `ManyStore.try_acquire_many`.

    It takes no step at all while one of the names has no row.
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
    """Say whether a claim found that it cannot hold."""
    return step is not None and step.blocked is not None


def _without(ticket: Ticket, here: Found) -> Step | None:
    """Leave a name if an earlier claim of the same ticket got it; else let it be."""
    if all(entry.ticket.id != ticket.id for entry in here[0].queue.entries()):
        return None
    return leaving(ticket, ReleaseReason.RELEASE)(*here)
