"""The tick of a scheduled job: what identifies one run, and in which order ticks come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isfinite

from leasehold import _validate
from leasehold._validate import Seconds

Tick = datetime | float | str
"""The time for which a run is scheduled, or a number or text that grows with it."""

TickForm = tuple[str, str | float]
"""The kind of a tick, and its normal form. Forms of one kind compare as their ticks do."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLY = 1_000_000
"""Microseconds that a timer may be early at most, as it goes by another clock."""


def form_of(tick: Tick) -> TickForm:
    """Return the kind and the normal form of a tick.

    Aware datetimes are the same tick if they are the same instant. Naive ones are taken as they are, and texts are
    compared character by character.

    Raises:
        TypeError: it is neither a datetime, nor a number, nor a str.
        ValueError: it is infinite, or not a number.
    """
    if isinstance(tick, datetime):
        aware = tick.utcoffset() is not None
        plain = (tick.astimezone(UTC) if aware else tick).replace(tzinfo=None)
        return "aware datetimes" if aware else "naive datetimes", plain.isoformat(timespec="microseconds")
    if isinstance(tick, str):
        return "texts", tick
    if isinstance(tick, bool) or not isinstance(tick, int | float):
        raise TypeError(f"tick must be a datetime, a number or a str, not {type(tick).__name__}")
    if isinstance(tick, float) and not isfinite(tick):
        raise ValueError(f"tick must be a finite number, not {tick}")
    return "numbers", tick


def tick_of(interval: Seconds, now: datetime | float | None = None) -> datetime:
    """Return the tick to which a time belongs, where ticks are ``interval`` apart: what a late instance passes, too.

    Ticks are counted from 1970 in UTC, so all instances count alike: of 300 s they are 12:00, 12:05 and so on, of a day
    midnight in UTC. Timers may be a little early: the last second before a tick (the last tenth of a shorter interval
    than 10 s) belongs to it already.

    Args:
        interval: seconds between two ticks, or a `timedelta`.
        now: an aware datetime, or seconds since 1970; None for the present time.

    Raises:
        TypeError, ValueError: a value is out of its bounds, or ``now`` has no time zone.
    """
    length = max(1, round(_validate.above_zero(interval, "interval") * 1e6))
    if now is None:
        now = datetime.now(UTC)
    if not isinstance(now, datetime):
        at = round(_validate.seconds(now, "now") * 1e6)
    elif now.utcoffset() is None:
        raise ValueError(f"now must have a time zone, and {now!r} has none; write datetime.now(UTC)")
    else:
        at = (now - EPOCH) // timedelta(microseconds=1)
    return EPOCH + timedelta(microseconds=(at + min(EARLY, length // 10)) // length * length)
