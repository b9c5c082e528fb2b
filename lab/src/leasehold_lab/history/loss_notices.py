"""Checks that holders were notified of their losses in time.

A holder that can run is notified when its deadline passes. One that was stopped is notified before any call on its hold
succeeds. A check that succeeds after the deadline is a *silent loss*, whatever was paused.

Two more checks show that holds are renewed, and that the answers are used. A holder that can run and reach the store
loses no renewed hold. If the store has lost the hold, the next renewal reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leasehold_lab.history.operations import Hold, Stall, paused_for


def silent_losses(holds: Iterable[Hold]) -> Iterator[Hold]:
    """Yield the holds that were reported as valid after their deadline, or after the notice of their loss."""
    for hold in holds:
        if hold.checked is None:
            continue
        if hold.checked > hold.deadline or (hold.notified or hold.checked) < hold.checked:
            yield hold


def late_notices(holds: Iterable[Hold], bound: float, stalls: Sequence[Stall] = ()) -> Iterator[tuple[Hold, float]]:
    """Yield the lost holds whose holder was notified more than ``bound`` seconds after the deadline, and how late.

    Time in which the holder was paused does not count.
    """
    for hold in holds:
        released = hold.until < hold.deadline  # it had sent its release, and the answer was that it came too late
        if hold.notified is not None and not released and hold.notified - hold.deadline > bound:
            paused = paused_for(stalls, hold.who, hold.deadline, hold.notified)
            if hold.notified - hold.deadline - paused > bound:
                yield hold, hold.notified - hold.deadline - paused


def needless_losses(holds: Iterable[Hold], within: float, pauses: Sequence[Stall] = ()) -> Iterator[Hold]:
    """Yield the renewed holds that were lost although their holder could run and reach the store.

    Only the last ``within`` seconds before the notice count.
    """
    for hold in holds:
        if hold.notified is None or not hold.renews or hold.until < min(hold.notified, hold.deadline):
            continue  # the notice came during the release, so it concerns no holder
        if hold.dropped is not None and hold.dropped <= hold.notified:
            continue  # its client gave it up on purpose
        if not paused_for(pauses, hold.who, hold.notified - within, hold.notified):
            yield hold


def late_give_ups(holds: Iterable[Hold], bound: float, pauses: Sequence[Stall] = ()) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds that were dropped and not given up within ``bound`` seconds, and how long it took.

    Time in which the client was paused does not count.
    """
    for hold in holds:
        if hold.dropped is not None and hold.renews and hold.until - hold.dropped > bound:
            kept = hold.until - hold.dropped - paused_for(pauses, hold.who, hold.dropped, hold.until)
            if kept > bound:
                yield hold, kept


def overlong_deadlines(holds: Iterable[Hold]) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds whose deadline lies more than a lease after their client's last request, and how far.

    A lease counts from before its request was sent. Counting from the reply would add time that was not granted.
    """
    for hold in holds:
        if hold.believed is not None and hold.believed > hold.lease:
            yield hold, hold.believed


def unnoticed_losses(
    holds: Iterable[Hold], removals: Sequence[float], bound: float, pauses: Sequence[Stall] = ()
) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds whose holder had no notice for more than ``bound`` seconds after the store lost them.

    Each comes with that time in seconds. Time in which the holder was paused does not count.
    """
    for hold in holds:
        for lost in removals:
            if hold.renews and hold.granted is not None and hold.granted < lost < hold.until - bound:
                believed = hold.until - lost - paused_for(pauses, hold.who, lost, hold.until)
                if believed > bound:
                    yield hold, believed
                    break
