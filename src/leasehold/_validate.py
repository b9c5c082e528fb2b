"""Checks of what users pass in: each names the input and the remedy, before anything is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import timedelta

from leasehold._model import META_LIMIT

Seconds = float | timedelta
"""A duration: seconds as a number, or a `timedelta`."""

Meta = str | Mapping[str, object]
"""What `inspect` shows with a hold: a text, or a mapping that JSON can express."""

NAME_LIMIT = 512  # longest name in bytes of UTF-8
SHORTEST_LEASE = 0.05
LONGEST_LEASE = 7 * 86_400.0

LONGEST_DELAY = LONGEST_LEASE

LONGEST_ANSWER = 3600.0  # seconds; a slower store is of no use for a lock, and a socket needs a bound


def name(value: object, what: str = "name") -> str:
    """Check a lock's name or a namespace: text of 1 to `NAME_LIMIT` bytes of UTF-8; any character is allowed."""
    if not isinstance(value, str):
        hint = "; decode it first" if isinstance(value, bytes | bytearray) else ""
        raise TypeError(f"the {what} must be a str, not {type(value).__name__}{hint}")
    if not value:
        raise ValueError(f"the {what} is empty; give it at least one character")
    if value.isascii() and len(value) <= NAME_LIMIT:
        return value
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"the {what} {value[:40]!r} has a lone surrogate, which is no character; remove it") from None
    if size > NAME_LIMIT:
        raise ValueError(f"the {what} has {size} bytes, at most {NAME_LIMIT} are allowed; use a hash of it")
    return value


def seconds(value: Seconds, what: str) -> float:
    """Return a duration as float seconds; it must be finite."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be seconds as a number or a timedelta, not {type(value).__name__}")
    try:
        length = float(value)
    except OverflowError:  # an int of hundreds of digits
        length = math.inf
    if not math.isfinite(length):
        raise ValueError(f"{what} must be a finite number of seconds, not {length}")
    return length


def nested(value: str) -> None:
    """Check what a nested acquire does."""
    if value not in ("warn", "raise"):
        raise ValueError(f"nested must be 'warn' or 'raise', not {value!r}")


def lease(value: Seconds) -> float:
    """Check a lease: a crash blocks others for so long, so it is bounded."""
    length = seconds(value, "lease")
    if not SHORTEST_LEASE <= length <= LONGEST_LEASE:
        raise ValueError(
            f"lease must be from {SHORTEST_LEASE} s to {LONGEST_LEASE:.0f} s (7 days), not {length}; it is renewed "
            "while the holder lives, so 30 s suits most"
        )
    return length


def at_least_zero(value: Seconds, what: str, most: float = math.inf) -> float:
    """Check a duration that may be zero."""
    length = seconds(value, what)
    if length < 0:
        raise ValueError(f"{what} must not be negative, it is {length}")
    return _at_most(length, what, most)


def above_zero(value: Seconds, what: str, most: float = math.inf) -> float:
    """Check a duration that must be above zero."""
    length = seconds(value, what)
    if length <= 0:
        raise ValueError(f"{what} must be above zero, it is {length}")
    return _at_most(length, what, most)


def _at_most(length: float, what: str, most: float) -> float:
    if length > most:
        raise ValueError(f"{what} must be {most:.0f} s at most, it is {length}")
    return length


def blocking(value: object) -> bool:
    """Check an argument ``blocking``: a time in its place would count as true, and wait without end."""
    if isinstance(value, int) and value in (0, 1):  # as `threading` takes them
        return bool(value)
    is_time = isinstance(value, float | timedelta) or (isinstance(value, int) and abs(value) < 1e9)
    found = f"{value!r}; did you mean timeout={value!r}?" if is_time else type(value).__name__
    raise TypeError(f"blocking must be True or False, not {found}")


def timeout(value: Seconds | None, *, blocking: bool = True) -> float | None:
    """Check the time to wait: None, or -1 as in `threading`, waits without end."""
    if value is None or value == -1:
        return None
    if not blocking:
        raise ValueError("a timeout is given with blocking=False, which never waits; leave one of them out")
    if value == math.inf:
        return None
    return at_least_zero(value, "timeout")


def meta(value: Meta | None) -> str:
    """Return ``meta`` as the JSON text that is stored."""
    if value is None:
        return ""
    if not isinstance(value, str | Mapping):
        raise TypeError(f"meta must be a str or a mapping, not {type(value).__name__}")
    try:
        plain = value if isinstance(value, str) else dict(value)
        text = json.dumps(plain, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"meta cannot be written as JSON: {error}") from None
    if len(text) > META_LIMIT:
        raise ValueError(
            f"meta has {len(text)} bytes as JSON, at most {META_LIMIT} are allowed; store a reference instead"
        )
    return text
