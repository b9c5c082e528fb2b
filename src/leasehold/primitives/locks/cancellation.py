"""The ``cancel`` of an acquire. What it does is in `leasehold._engine.cancellation`."""

from __future__ import annotations

from leasehold._engine.cancellation import Cancellation

__all__ = ["Cancellation", "checked"]


def checked(cancel: object) -> Cancellation | None:
    """Check what was passed as ``cancel``."""
    if cancel is None or isinstance(cancel, Cancellation):
        return cancel
    raise TypeError(f"cancel must be a leasehold.Cancellation, not {type(cancel).__name__}")
