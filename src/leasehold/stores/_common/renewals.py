"""The results of a batch of renewals, of which each may have failed by itself."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import RenewalResult
from leasehold.errors import StoreUnavailable


def answered(results: Sequence[RenewalResult | BaseException]) -> list[RenewalResult]:
    """Return the results, with UNKNOWN in place of errors.

    Raises:
        StoreUnavailable: there are errors and no results. The holders' log shows the reason.

    """
    errors = [one for one in results if isinstance(one, StoreUnavailable)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return [one if isinstance(one, RenewalResult) else RenewalResult.UNKNOWN for one in results]
