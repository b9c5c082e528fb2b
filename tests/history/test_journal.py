"""A history is built correctly from the records of clients, including killed ones."""

from __future__ import annotations

import pytest

from leasehold_lab.history import Promise, check
from leasehold_lab.history.journal import Journal, Record, assemble
from leasehold_lab.history.operations import FOREVER

LIVED, DEAD = 1.99, 2.03
"""A client was killed between these moments: the store may have seen its death before we did."""


class Clients:
    """Clients and their records, by a clock that is set by hand."""

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
    assert found.by_promise[Promise.EXCLUSION] == 1, "it was alive when the other held the name"


@pytest.mark.parametrize(("dead", "excused"), [(DEAD, True), (2.01, False)])
def test_a_killed_client_may_block_others_for_one_lease(dead: float, excused: bool) -> None:
    clients = Clients()
    asked = clients.at(3.02, "2.0").asked("x", lease=1.0)
    clients.at(3.025, "2.0").refused(asked)
    found = check(assemble(clients.records, deaths={"1": (LIVED, dead)}))
    assert found.by_promise[Promise.AVAILABILITY] == (not excused)


@pytest.mark.parametrize(("deadline", "excused"), [(1.9, True), (2.5, False)])
def test_a_client_killed_while_blocked_held_until_its_deadline(deadline: float, excused: bool) -> None:
    clients = Clients(deadline)
    asked = clients.at(1.5, "2.0").asked("x", lease=1.0)
    clients.at(2.2, "2.0").granted(asked, 2)
    found = check(assemble(clients.records, deaths={"1": (2.3, 2.31)}))
    assert found.by_promise[Promise.EXCLUSION] == (not excused)


def test_a_dropped_hold_has_its_time_and_is_a_claim_until_its_loss_notice() -> None:
    clients = Clients()
    clients.at(2.0, "1.0").dropped(1)
    clients.at(2.5, "1.0").notified(1, 3.0)
    (hold,) = assemble(clients.records).holds
    assert (hold.dropped, hold.until, hold.notified) == (2.0, 2.5, 2.5)
