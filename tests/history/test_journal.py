"""What is made of what clients wrote down."""

from __future__ import annotations

import pytest

from leasehold_lab.history import Promise, check
from leasehold_lab.history.journal import Journal, Record, assemble
from leasehold_lab.history.operations import FOREVER

LIVED, DEAD = 1.99, 2.03
"""A client was killed between these moments: the store may have seen that it had ended before we did."""


class Clients:
    """Clients, and what they wrote down, by a clock that is set by hand."""

    def __init__(self, deadline: float = FOREVER) -> None:
        self.records = list[Record]()
        self._time = 0.0
        held = self.at(1.0, "1.0").asked("x", lease=1.0)
        self.at(1.1, "1.0").granted(held, 1, deadline=deadline)

    def at(self, moment: float, who: str) -> Journal:
        self._time = moment
        return Journal(who, lambda: self._time, self.records.append)


def test_a_client_that_is_killed_holds_until_the_kill() -> None:
    clients = Clients()
    asked = clients.at(1.5, "2.0").asked("x", lease=1.0)
    clients.at(2.01, "2.0").granted(asked, 2)
    assert check(assemble(clients.records, deaths={"1": (LIVED, DEAD)})).ok
    found = check(assemble(clients.records, deaths={"1": (2.02, DEAD)}))
    assert found.by_promise[Promise.EXCLUSION] == 1, "it lived when the other had it"


@pytest.mark.parametrize(("dead", "excused"), [(DEAD, True), (2.01, False)])
def test_it_may_be_in_the_way_for_a_lease_after_its_death(dead: float, excused: bool) -> None:
    clients = Clients()
    asked = clients.at(3.02, "2.0").asked("x", lease=1.0)
    clients.at(3.025, "2.0").refused(asked)
    found = check(assemble(clients.records, deaths={"1": (LIVED, dead)}))
    assert found.by_promise[Promise.AVAILABILITY] == (not excused)


@pytest.mark.parametrize(("deadline", "excused"), [(1.9, True), (2.5, False)])
def test_a_client_that_was_blocked_when_it_was_killed_held_until_its_deadline(deadline: float, excused: bool) -> None:
    clients = Clients(deadline)
    asked = clients.at(1.5, "2.0").asked("x", lease=1.0)
    clients.at(2.2, "2.0").granted(asked, 2)
    found = check(assemble(clients.records, deaths={"1": (2.3, 2.31)}))
    assert found.by_promise[Promise.EXCLUSION] == (not excused)


def test_a_hold_that_was_dropped_says_when_and_is_claimed_until_its_loss_is_told() -> None:
    clients = Clients()
    clients.at(2.0, "1.0").dropped(1)
    clients.at(2.5, "1.0").notified(1, 3.0)
    (hold,) = assemble(clients.records).holds
    assert (hold.dropped, hold.until, hold.notified) == (2.0, 2.5, 2.5)
