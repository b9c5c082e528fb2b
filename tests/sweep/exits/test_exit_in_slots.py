"""An exception at every step of the list of waiting tickets, as a signal handler can raise it.

The caller removes its ticket once more. Then another ticket must watch the holder's lease, and nothing may be left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from types import CodeType

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._common.slots import Slots
from support.striking import Striking, tracing

NAME = "a"


def ticket(number: str) -> Ticket:
    return Ticket(number, LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=60.0))


def wait(slots: Slots, number: str) -> bool:
    """Let a ticket wait; return whether it watches the holder's lease."""
    return slots.enlist(slots.add(NAME, ticket(number)))


def leave(slots: Slots) -> None:
    slots.remove("1")


def come_and_leave(slots: Slots) -> None:
    wait(slots, "1")
    slots.remove("1")


@pytest.mark.parametrize("step", [leave, come_and_leave], ids=["a removal", "all of a wait"])
def test_another_ticket_watches_after_an_exception_at_any_step(step: Callable[[Slots], None]) -> None:
    known, where = dict[CodeType, set[int]](), list[str]()
    for at in itertools.count():
        slots, striking = Slots(BlockingRuntime()), Striking(at, known)
        if step is leave:
            assert wait(slots, "1")
            assert not wait(slots, "2")
        with suppress(SystemExit), tracing(striking):
            step(slots)
        slots.remove("1")  # as the release does
        assert "1" not in slots, striking.where
        if step is leave:  # it learns that it must watch by a result, or at its next renewal
            first = slots.first(NAME)
            assert first is not None, striking.where
            assert first.ticket == "2", f"{striking.where}: a ticket that has left watches"
            slots.remove("2")
        assert wait(slots, "3"), f"{striking.where}: no ticket watches the holder's lease any more"
        slots.remove("3")
        assert not slots._by_name, f"{striking.where}: an entry is left"
        if not striking.where:
            break
        where.append(striking.where)
    assert any("remove" in one for one in where)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_next_ticket_learns_that_it_must_watch(interrupted: bool) -> None:
    """Also if the first removal had taken the ticket from the list of its name, and ended there."""
    slots = Slots(BlockingRuntime())
    for number in "12":
        wait(slots, number)
    if interrupted:
        del slots._by_name[NAME]["1"]
    next_waiter = slots.remove("1")
    assert next_waiter is not None
    assert next_waiter.ticket == "2"
