"""Errors of stores, in the classes that are documented.

Inside a store, subclasses of `StoreUnavailable` tell its parts whether a retry or another server helps. Error trackers
group by class, so an error that leaves the library has the documented one, with the same message, facts and cause.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from leasehold.errors import StoreRefused, StoreUnavailable

T = TypeVar("T")


def documented(error: StoreUnavailable) -> StoreUnavailable:
    """Return the error itself, or a copy in its documented class if its own is internal to this library."""
    if type(error) in (StoreUnavailable, StoreRefused) or not type(error).__module__.startswith("leasehold."):
        return error
    copied = (StoreRefused if isinstance(error, StoreRefused) else StoreUnavailable)(error.message)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied.with_traceback(error.__traceback__)


async def asked(answer: Awaitable[T]) -> T:
    """Return a store's answer.

    Raises:
        StoreUnavailable: there is none; never in an internal class.
    """
    try:
        return await answer
    except StoreUnavailable as error:
        failed = documented(error)
    raise failed  # outside of `except`, so that a traceback does not show the internal class as its context
