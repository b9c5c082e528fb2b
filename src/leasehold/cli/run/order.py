"""What the user of ``run`` asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for; times in seconds.

    Attributes:
        url: it may hold a password; the command gets it in its environment.
        timeout: None waits for ever.

    """

    name: str
    argv: tuple[str, ...]
    url: str
    namespace: str
    wait: bool
    timeout: float | None
    lease: float
    fair: bool
    lock_delay: float
    meta: str | None
    max_hold: float | None
    grace: float
    taken_code: int
    quiet: bool
