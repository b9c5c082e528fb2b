"""How often a batch of renewals of lease rows is tried, without a server."""

from __future__ import annotations

from typing import Any, cast

import pytest

from leasehold import StoreUnavailable
from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime, finish
from leasehold.stores._sql import renewals
from leasehold.stores._sql.dialect import Dialect

WITHIN = 3.0
NAMES = {f"ticket{number}": b"name%d" % number for number in range(500)}


class Attempts:
    """Transactions that take so long, or as long as they may; the clock shows when each ended."""

    def __init__(self, *outcomes: renewals.Results | StoreUnavailable, seconds: float = WITHIN) -> None:
        self._outcomes = list(outcomes)
        self._seconds = seconds
        self._now = 0.0
        self.begun: list[float] = []

    def now(self) -> float:
        return self._now

    async def transact(self, work: object, until: float, *, reserved: bool) -> renewals.Results:
        self.begun.append(self._now)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        self._now = min(self._now + self._seconds, max(until, self._now + 0.001))
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return outcome

    def renew(self) -> renewals.Results:
        runtime, dialect = cast("Runtime", self), cast("Dialect", None)
        found: Any = renewals.renew(self.transact, runtime, dialect, b"n", NAMES, within=WITHIN)
        return cast("renewals.Results", finish(found))


@pytest.mark.parametrize("seconds", [0.001, WITHIN], ids=["refused", "silent"])
def test_what_failed_for_all_is_not_tried_for_each(seconds: float) -> None:
    down = StoreUnavailable("down")
    attempts = Attempts(down, StoreUnavailable("down, too"), seconds=seconds)
    with pytest.raises(StoreUnavailable) as caught:
        attempts.renew()
    assert caught.value is down
    assert attempts.begun == [0.0]


def test_locked_names_are_tried_until_the_time_is_over() -> None:
    attempts = Attempts({"ticket0": RenewalResult.HELD}, StoreUnavailable("locked"), seconds=0.9)
    assert attempts.renew() == {"ticket0": RenewalResult.HELD}
    assert len(attempts.begun) == 4
    assert max(attempts.begun) < WITHIN


def test_without_any_result_the_first_reason_is_raised() -> None:
    locked = StoreUnavailable("locked")
    attempts = Attempts({}, locked, StoreUnavailable("locked, too"), seconds=0.9)
    with pytest.raises(StoreUnavailable) as caught:
        attempts.renew()
    assert caught.value is locked
