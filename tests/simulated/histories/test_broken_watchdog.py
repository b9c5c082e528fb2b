"""Deliberate mistakes in the watchdog: simulated histories must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasehold._engine.lease import Lease
from leasehold._engine.watchdog import background, timers, watchdog
from leasehold._engine.watchdog.background import Renewer
from leasehold._model import RenewalResult
from leasehold_lab.history import Promise
from models.history import run
from models.scenario import Assumptions, draw
from models.system import GOOD, Spoilt
from models.systems import SYSTEMS

FIRST = 30_000
MOST = 3000
"""Seeds within which a mistake must be found. A mistake runs only with the seeds that have its assumptions. In about a
fifth of all, the servers may forget."""

Patch = pytest.MonkeyPatch


def deadline_from_the_reply(patch: Patch) -> None:
    plain = Renewer._apply

    def apply(
        one: Renewer, batch: Sequence[Lease], results: Sequence[RenewalResult], sent: float, failure: Any
    ) -> None:
        plain(one, batch, results, one._runtime.now(), failure)

    patch.setattr(Renewer, "_apply", apply)


def too_late(patch: Patch) -> None:
    for module in (timers, background, watchdog):
        patch.setattr(module, "RENEWALS_PER_LEASE", 1)


def loss_is_not_noticed(patch: Patch) -> None:
    def ignore(lease: Lease, why: str, later: object = None) -> bool:
        return False

    patch.setattr(Lease, "mark_lost", ignore)


def any_ticket_renews(text: bytes) -> bytes:
    """Remove the check of the ticket from the renewal script."""
    rest = b" and redis.call('PTTL', lock)"
    return text.replace(b"if state[1] == ticket" + rest, b"if state[1]" + rest)


def breaks(promise: Promise, assumptions: Assumptions, spoilt: Spoilt = GOOD) -> bool:
    """Return whether a history with these assumptions about the servers breaks the promise."""
    menu = SYSTEMS["redis"].menu
    seeds = (seed for seed in range(FIRST, FIRST + MOST) if draw(seed, "redis", menu).assumptions is assumptions)
    outcomes = (run(seed, "redis", spoilt) for seed in seeds)
    return any(violation.promise is promise for outcome in outcomes for violation in outcome.verdict.violations)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mistake", "promise", "assumptions"),
    [
        (deadline_from_the_reply, Promise.EXCLUSION, Assumptions.KEPT),
        (too_late, Promise.RENEWAL, Assumptions.KEPT),
        (loss_is_not_noticed, Promise.LOSS_NOTICE, Assumptions.BROKEN),
    ],
    ids=["from the reply", "too late", "loss is not noticed"],
)
def test_a_mistake_of_the_watchdog_is_found(
    mistake: Callable[[Patch], None], promise: Promise, assumptions: Assumptions, monkeypatch: Patch
) -> None:
    mistake(monkeypatch)
    assert breaks(promise, assumptions)


@pytest.mark.timeout(300)
def test_a_renewal_that_does_not_check_the_ticket_is_found() -> None:
    assert breaks(Promise.LOSS_NOTICE, Assumptions.BROKEN, Spoilt(any_ticket_renews))
