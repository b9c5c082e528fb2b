"""The options of one ``leasehold run``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run; times in seconds.

    Attributes:
        url: may contain a password; the command gets it in its environment.
        timeout: how long to wait; None waits for ever.
        taken_code: exit code if another client holds the lock.
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
