"""How often a batch of renewals in another library's table is tried, without a server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from leasehold import StoreUnavailable
from leasehold._model import LeaseTerms, LockMode, Owner, RenewalResult, Ticket, ticket_id
from leasehold._runtimes.base import Runtime, finish
from leasehold.layouts.sql import spring
from leasehold.layouts.sql.dialect import POSTGRES
from leasehold.layouts.sql.store import MOST_IN_ONE, SharedRowStore

WITHIN = 3.0
TERMS = LeaseTerms(LockMode(), Owner("h", 1, "c"), 30.0)
HOLDS = [(f"name{number:03}", Ticket(ticket_id(b"%016d" % number), TERMS)) for number in range(MOST_IN_ONE)]
Results = dict[str, RenewalResult]


class Attempts(SharedRowStore):
    """Renewals that take so long, or as long as they may, and end so; the clock shows when each began."""

    def __init__(self, *outcomes: Results | StoreUnavailable, seconds: float) -> None:
        super().__init__(cast("Runtime", self), cast("Any", None), "default", spring.layout(POSTGRES, 1.0))
        self._outcomes = list(outcomes)
        self._seconds = seconds
        self._now = 0.0
        self.begun: list[float] = []

    def now(self) -> float:
        return self._now

    def mutex(self) -> Any:
        return threading.Lock()

    async def _renewed(self, holding: Sequence[Any], until: float, *, alone: bool = False) -> Results:
        self.begun.append(self._now)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        self._now = min(self._now + self._seconds, max(until, self._now + 0.001))
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return outcome

    def renew_all(self, count: int = MOST_IN_ONE) -> Results:
        renewed = finish(self.renew(HOLDS[:count], within=WITHIN))
        return {ticket.id: result for (_, ticket), result in zip(HOLDS, renewed, strict=False)}


@pytest.mark.parametrize("seconds", [0.001, WITHIN], ids=["refused", "silent"])
def test_what_failed_for_all_is_not_tried_for_each(seconds: float) -> None:
    down = StoreUnavailable("down")
    attempts = Attempts(down, StoreUnavailable("down, too"), seconds=seconds)
    with pytest.raises(StoreUnavailable) as caught:
        attempts.renew_all()
    assert caught.value is down
    assert attempts.begun == [0.0]


def test_locked_rows_are_tried_until_the_time_is_over() -> None:
    first = HOLDS[0][1].id
    attempts = Attempts({first: RenewalResult.HELD}, StoreUnavailable("locked"), seconds=0.7)
    assert attempts.renew_all()[first] is RenewalResult.HELD
    assert len(attempts.begun) == 5
    assert max(attempts.begun) < WITHIN


def test_without_any_result_the_first_reason_is_raised() -> None:
    locked = StoreUnavailable("locked")
    attempts = Attempts({}, locked, StoreUnavailable("locked, too"), seconds=0.7)
    with pytest.raises(StoreUnavailable) as caught:
        attempts.renew_all()
    assert caught.value is locked


def test_a_second_batch_that_fails_keeps_what_the_first_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.layouts.sql.store.MOST_IN_ONE", 2)
    renewed = {ticket.id: RenewalResult.HELD for _, ticket in HOLDS[:2]}
    attempts = Attempts(renewed, StoreUnavailable("down"), seconds=0.001)
    assert list(attempts.renew_all(6).values()) == [RenewalResult.HELD] * 2 + [RenewalResult.UNKNOWN] * 4
    assert len(attempts.begun) == 2
