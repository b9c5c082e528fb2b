"""The results of a batch of renewals, each of which may have failed by itself."""

from __future__ import annotations

import pytest

from leasehold import StoreUnavailable
from leasehold._model import RenewalResult
from leasehold.stores._common.answers import answered

HELD, UNKNOWN = RenewalResult.HELD, RenewalResult.UNKNOWN
DOWN = StoreUnavailable("down")


def test_a_failure_costs_those_concerned() -> None:
    assert answered([]) == []
    assert answered([HELD, DOWN, HELD]) == [HELD, UNKNOWN, HELD]
    assert answered([ValueError(), DOWN]) == [UNKNOWN, UNKNOWN]


def test_a_failure_of_all_is_raised_with_its_reason() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        answered([DOWN, StoreUnavailable("down, too")])
    assert caught.value is DOWN
