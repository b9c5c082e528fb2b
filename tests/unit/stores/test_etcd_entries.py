"""Which keys of an etcd queue wake a waiter: one of them must be deleted before it can enter, and they are few."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, Ticket
from leasehold._rules import conflicts
from leasehold.stores.etcd.entries import QueueKey, blockers


def key(at: int, mode: LockMode, *, holds: bool) -> QueueKey:
    ticket = Ticket(f"{at}", LeaseTerms(mode, Owner("host", 1, "client"), 30.0))
    return QueueKey(f"queue/{at}", at, at, 7, ticket, holds)


def permits_of(keys: Sequence[QueueKey]) -> int:
    return sum(one.mode.permits for one in keys)


@st.composite
def semaphores(draw: st.DrawFn, permits: st.SearchStrategy[int]) -> list[QueueKey]:
    """Draw the keys of a semaphore; the last one waits, and has no room."""
    limit = draw(st.integers(1, 6))
    wanted = [min(one, limit) for one in draw(st.lists(permits, min_size=2, max_size=12))]
    modes = [LockMode(Kind.SEMAPHORE, permits=one, limit=limit, fair=draw(st.booleans())) for one in wanted]
    order = draw(st.permutations(range(len(modes) - 1)))  # who arrived early need not have entered early
    held, free = set[int](), limit
    for at in order:
        if modes[at].permits <= free:
            held.add(at)
            free -= modes[at].permits
    if modes[-1].permits <= free:  # the first one takes what is free
        modes[0] = LockMode(Kind.SEMAPHORE, permits=modes[0].permits + free, limit=limit)
        held.add(0)
    return [key(at, mode, holds=at in held) for at, mode in enumerate(modes)]


@given(semaphores(st.just(1)) | semaphores(st.just(2)))
def test_a_permit_waits_for_as_many_as_there_are_too_many_but_one(present: list[QueueKey]) -> None:
    *before, own = present
    if any(one.mode.permits > own.mode.permits for one in before):
        return
    watched = blockers(present, own.ticket)
    limit, wanted = own.mode.limit, own.mode.permits
    assert permits_of(watched) + wanted > limit  # while all of them are there, it cannot enter
    assert permits_of(watched[1:]) + wanted <= limit  # and none of them is there in vain
    assert watched == before[len(before) - len(watched) :]


@given(semaphores(st.integers(1, 6)))
def test_a_permit_that_may_overtake_a_larger_one_waits_for_all_ahead_of_it(present: list[QueueKey]) -> None:
    *before, own = present
    watched = blockers(present, own.ticket)
    if any(one.mode.permits > own.mode.permits for one in before):
        assert watched == before
    else:
        assert permits_of(watched) + own.mode.permits > own.mode.limit


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=12))
def test_each_writer_waits_for_the_last_one_ahead_of_it_and_each_chain_ends_at_a_holder(
    drawn: list[tuple[bool, bool]],
) -> None:
    modes = [LockMode(Kind.READ_WRITE, exclusive=writes, fair=fair) for writes, fair in drawn]
    held = set[int]()
    for at, mode in enumerate(modes):
        if not conflicts(mode, [modes[one] for one in held]):
            held.add(at)
    present = [key(at, mode, holds=at in held) for at, mode in enumerate(modes)]
    for own in present:
        if own.holds:
            continue
        (watched,) = blockers(present, own.ticket)
        if own.mode.exclusive:
            assert watched.created == own.created - 1 or (watched.holds and watched.created > own.created)
        steps = 0
        while not watched.holds:
            (watched,) = blockers(present, watched.ticket)
            steps += 1
            assert steps < len(present), "they wait for each other"
