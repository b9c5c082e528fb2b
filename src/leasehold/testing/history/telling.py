"""Whether holders were told in time that they had lost what they held.

A holder that can run is told when its deadline passes. One that was stopped is told before anything that it asks of
its hold succeeds: a check that said yes after the deadline is a *silent loss*, whatever stood still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leasehold.testing.history.operations import Hold, Stall, stood_still


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
