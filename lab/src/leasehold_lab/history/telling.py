"""Whether holders were told in time that they had lost what they held.

A holder that can run is told when its deadline passes. One that was stopped is told before anything that it asks of
its hold succeeds: a check that said yes after the deadline is a *silent loss*, whatever stood still.

Two more show that holds are renewed, and that the answers are heeded. Who can run and reaches the store loses nothing
that is renewed; and who is renewed hears from the store, at the next renewal, that it has lost the hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leasehold_lab.history.operations import Hold, Stall, stood_still


def silent_losses(holds: Iterable[Hold]) -> Iterator[Hold]:
    """Yield the holds that said they were valid after their deadline had passed, or after their loss was told."""
    for hold in holds:
        if hold.checked is not None and (hold.checked > hold.deadline or (hold.told or hold.checked) < hold.checked):
            yield hold


def told_late(holds: Iterable[Hold], bound: float, stalls: Sequence[Stall] = ()) -> Iterator[tuple[Hold, float]]:
    """Yield the lost holds whose holder heard of it more than ``bound`` seconds after the deadline, and how late.

    Time in which the holder stood still does not count.
    """
    for hold in holds:
        released = hold.until < hold.deadline  # it had sent its release, and heard later that it came too late
        if hold.told is not None and not released and hold.told - hold.deadline > bound:
            stood = stood_still(stalls, hold.who, hold.deadline, hold.told)
            if hold.told - hold.deadline - stood > bound:
                yield hold, hold.told - hold.deadline - stood


def lost_needlessly(holds: Iterable[Hold], within: float, pauses: Sequence[Stall] = ()) -> Iterator[Hold]:
    """Yield the renewed holds that were lost though their holder could go on in the last ``within`` seconds."""
    for hold in holds:
        if hold.told is None or not hold.renews or hold.until < min(hold.told, hold.deadline):
            continue  # what is heard of a loss while it is given back concerns nobody who holds
        if hold.dropped is not None and hold.dropped <= hold.told:
            continue  # it is given up on purpose
        if not stood_still(pauses, hold.who, hold.told - within, hold.told):
            yield hold


def kept_for_nobody(holds: Iterable[Hold], bound: float, pauses: Sequence[Stall] = ()) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds that were dropped and not given up within ``bound`` seconds, and how long it took.

    Time in which the client could not go on does not count.
    """
    for hold in holds:
        if hold.dropped is not None and hold.renews and hold.until - hold.dropped > bound:
            kept = hold.until - hold.dropped - stood_still(pauses, hold.who, hold.dropped, hold.until)
            if kept > bound:
                yield hold, kept


def believed_too_long(holds: Iterable[Hold]) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds with a deadline more than a lease after the last that their client sent, and how far.

    A lease counts from before its request was sent: who counts from the reply believes in more than was granted.
    """
    for hold in holds:
        if hold.believed is not None and hold.believed > hold.lease:
            yield hold, hold.believed


def unnoticed(
    holds: Iterable[Hold], removals: Sequence[float], bound: float, pauses: Sequence[Stall] = ()
) -> Iterator[tuple[Hold, float]]:
    """Yield the renewed holds that the store had lost for more than ``bound`` seconds while they were believed in.

    Time in which the holder could not go on does not count.
    """
    for hold in holds:
        for lost in removals:
            if hold.renews and hold.granted is not None and hold.granted < lost < hold.until - bound:
                believed = hold.until - lost - stood_still(pauses, hold.who, lost, hold.until)
                if believed > bound:
                    yield hold, believed
                    break
