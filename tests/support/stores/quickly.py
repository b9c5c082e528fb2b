"""Histories that are compared with a model while real time passes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

TRIES = 20
QUICKLY = 0.5
"""Seconds within which a history must be over to count: leases run out meanwhile on one of the two sides alone."""


def quickly(play: Callable[[], None], steps: int) -> None:
    """Play a history; once more if it failed and took so long that what passed of the leases hides the outcome."""
    for _ in range(TRIES):
        began = time.monotonic()
        try:
            return play()
        except AssertionError:
            if time.monotonic() - began < QUICKLY:
                raise
    pytest.fail(f"no history of {steps} steps was over within {QUICKLY} s of {TRIES}")
