"""The meanings of a driver's errors, by which a store makes its own of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leasehold.errors import LeaseholdError, StoreRefused, StoreUnavailable, Unsupported


class Answer(Exception):
    """An error that is an answer to the request, which does not fit what is stored: nothing was changed."""


Error = Callable[[str], LeaseholdError]
"""Makes an error from a message."""

NOT_DONE: Error = StoreUnavailable  # it may be sent again
UNKNOWN: Error = partial(StoreUnavailable, unknown=True)  # perhaps done: repeat it only where that is harmless
LASTING: Error = StoreRefused  # not done; a retry fails until somebody changes a setting
UNSUPPORTED: Error = Unsupported  # not possible with this server
