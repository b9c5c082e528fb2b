"""Claims without an answer: what was claimed twice is left, and what the Redis store remembers of it is bounded."""

from __future__ import annotations

import pytest

from leasehold.stores._common.unanswered import MOST, Unanswered
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "answered"])
def test_a_try_whose_first_claim_had_no_answer_leaves(harness: Harness, lost: bool) -> None:
    """The first claim may arrive after the second, which found the name taken, and after the name is free."""

    async def body(harness: Harness) -> None:
        memory = Memory()
        theirs = await harness.client(memory).lock("x").acquire()
        faulty = Faulty(memory, nth(0 if lost else -1, Fault(Kind.DROP_REQUEST), method="try_acquire"))
        assert await harness.client(faulty).lock("x").acquire(blocking=False) is None
        assert [call.method for call in faulty.calls] == (
            ["try_acquire", "try_acquire", "release"] if lost else ["try_acquire"]
        )
        await theirs.release()

    harness.run(body)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "answered"])
def test_several_whose_first_claim_had_no_answer_leave(harness: Harness, lost: bool) -> None:
    async def body(harness: Harness) -> None:
        memory = Memory()
        theirs = await harness.client(memory).lock("y").acquire()
        faulty = Faulty(memory, nth(0 if lost else -1, Fault(Kind.DROP_REQUEST), method="try_acquire_many"))
        assert await harness.client(faulty).multi_lock(["x", "y", "z"]).acquire(blocking=False) is None
        claims = ["try_acquire_many", "try_acquire_many", "release_many"] if lost else ["try_acquire_many"]
        assert [call.method for call in faulty.calls] == claims
        await theirs.release()

    harness.run(body)


def test_tickets_whose_leave_never_gets_an_answer_are_forgotten_in_order() -> None:
    unanswered = Unanswered()
    for number in range(MOST + 10):
        unanswered[f"{number}"] = None
        unanswered.limit()
    assert len(unanswered) == MOST
    assert "9" not in unanswered
    assert "10" in unanswered
