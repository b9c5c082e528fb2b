"""Random histories of one name's queue: never a conflict, in order where fair, no starvation, tokens increase."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, ReleaseReason, RenewalResult, Ticket
from leasehold._rules import Blocked, Enter, Queue, conflicts, decide, next_token, same_use, successors
from leasehold.errors import NameInUse
from leasehold.stores._common import queues

ME = Owner("host", 1, "client")
LEASE = 10.0
MUTEX = (LockMode(),)
FAIR = (LockMode(fair=True),)
MIXED = (LockMode(), LockMode(fair=True))
READ_WRITE = (LockMode(Kind.READ_WRITE), LockMode(Kind.READ_WRITE, exclusive=False))
FAIR_READ_WRITE = tuple(replace(mode, fair=True) for mode in READ_WRITE)
SEMAPHORE = tuple(LockMode(Kind.SEMAPHORE, exclusive=False, permits=n, limit=3) for n in (1, 2, 3))
FAMILIES = {
    "mutex": MUTEX,
    "fair": FAIR,
    "mixed": MIXED,
    "rw": READ_WRITE,
    "fair rw": FAIR_READ_WRITE,
    "sem": SEMAPHORE,
}


def ticket(number: int, mode: LockMode, *, lease: float = LEASE, lock_delay: float = 0.0) -> Ticket:
    return Ticket(f"t{number}", LeaseTerms(mode, ME, lease, lock_delay))


class Table:
    """A queue, its clock, and what was seen of it: every step is checked against what must always hold."""

    def __init__(self) -> None:
        self.queue = Queue("name")
        self.now = 100.0
        self.granted: dict[str, int] = {}  # ticket id -> token, of every grant ever
        self.last_token = 0

    def claim(self, mine: Ticket, *, join: bool = True) -> queues.Step:
        return self.apply(queues.try_acquire(self.queue, mine, join=join, now=self.now, floor=0))

    def leave(self, mine: Ticket, reason: ReleaseReason = ReleaseReason.RELEASE) -> queues.Step:
        return self.apply(queues.release(self.queue, mine.id, reason=reason, now=self.now, floor=0))

    def renew(self, mine: Ticket) -> RenewalResult:
        self.queue, result = queues.renew(self.queue, mine.id, self.now)
        return result

    def apply(self, step: queues.Step) -> queues.Step:
        blocked_before = self.queue.blocked_until > self.now
        was_holding = {entry.ticket.id for entry in self.queue.holders}
        self.queue = step.queue
        for entry in self.queue.holders:
            assert entry.token is not None
            if entry.ticket.id not in was_holding:
                assert not blocked_before, "a grant while the name is blocked_until"
                assert entry.token > self.last_token, "tokens rise"
                self.last_token = entry.token
        self.check()
        return step

    def check(self) -> None:
        holders = [entry for entry in self.queue.holders if entry.expires > self.now]
        for entry in holders:
            others = [other.ticket.terms.mode for other in holders if other is not entry]
            assert not conflicts(entry.ticket.terms.mode, others), f"{entry} beside {others}"
        ids = [entry.ticket.id for entry in self.queue.entries()]
        assert len(ids) == len(set(ids)), "a ticket has two entries"
        orders = [entry.order for entry in self.queue.waiters]
        assert orders == sorted(orders)
        assert all(entry.token is None for entry in self.queue.waiters)
        if self.queue.waiters and not holders and self.queue.blocked_until <= self.now:
            live = [entry for entry in self.queue.waiters if entry.expires > self.now]
            assert not live, "the name is free while there are waiters"


steps = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "try", "leave", "leave", "break", "renew", "pass"]),
        st.integers(0, 7),
        st.integers(0, 5),
    ),
    max_size=60,
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(steps=steps, lock_delay=st.sampled_from([0.0, 3.0]))
def test_whatever_happens_no_two_holders_conflict(
    family: str, steps: list[tuple[str, int, int]], lock_delay: float
) -> None:
    table = Table()
    for what, number, choice in steps:
        rules = FAMILIES[family]
        mine = ticket(number, rules[number % len(rules)], lock_delay=lock_delay)
        match what:
            case "claim" | "try":
                holding = {entry.ticket.id: entry.token for entry in table.queue.holders if entry.expires > table.now}
                step = table.claim(mine, join=what == "claim")
                if mine.id in holding:
                    assert step.mine is not None
                    assert step.mine.token == holding[mine.id], "a claim that is repeated finds its own grant"
                if what == "try" and step.blocked is not None and not step.found:
                    assert mine.id not in {entry.ticket.id for entry in table.queue.entries()}, "a try leaves no trace"
            case "leave" | "break":
                how = ReleaseReason.RELEASE if what == "leave" else ReleaseReason.BREAK
                found = table.leave(mine, how).found
                again = table.leave(mine, how)
                assert not again.found, f"left twice, found {found}"
            case "renew":
                table.renew(mine)
                table.check()
            case "pass":
                # the next operation on the name; expiries take effect then
                table.now += choice * LEASE / 4
                table.apply(queues.release(table.queue, "nobody", reason=ReleaseReason.RELEASE, now=table.now, floor=0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_fair_is_first_come_first_served_even_after_an_expiry(expires: list[bool]) -> None:
    table = Table()
    tickets = [ticket(number, FAIR[0]) for number in range(len(expires) + 1)]
    for mine in tickets:
        table.claim(mine)
    served = []
    for mine, expire in zip(tickets, expires, strict=False):
        assert [entry.ticket.id for entry in table.queue.holders] == [mine.id]
        served.append(mine.id)
        if expire:
            for _ in range(4):
                table.now += 0.3 * LEASE
                for other in tickets:
                    if other is not mine:
                        table.renew(other)
            newcomer = table.claim(ticket(999, FAIR[0]), join=False)
            assert newcomer.blocked is not None, "a newcomer does not overtake, though the name has no holder"
        else:
            table.leave(mine)
    assert served == [mine.id for mine in tickets[:-1]]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.lists(st.integers(0, 9), min_size=2, max_size=10, unique=True))
def test_whoever_waits_gets_it_when_those_before_leave(family: str, numbers: list[int]) -> None:
    table, rules = Table(), FAMILIES[family]
    tickets = {f"t{number}": ticket(number, rules[number % len(rules)]) for number in numbers}
    for mine in tickets.values():
        table.claim(mine)
    served: list[str] = []
    while table.queue.holders:
        first = table.queue.holders[0].ticket
        served.append(first.id)
        table.leave(first)
    assert sorted(served) == sorted(tickets), "everyone was served, with no claim after the first"


def test_a_writer_is_not_starved_by_readers_that_come_after_it() -> None:
    table = Table()
    reader, writer, late = (ticket(n, FAIR_READ_WRITE[i]) for n, i in ((1, 1), (2, 0), (3, 1)))
    assert table.claim(reader).blocked is None
    assert table.claim(writer).blocked is not None
    assert table.claim(late).blocked is not None, "a fair reader waits behind the writer"
    assert [entry.ticket.id for entry in table.leave(reader).woken] == ["t2"]
    assert [entry.ticket.id for entry in table.leave(writer).woken] == ["t3"]


def test_readers_enter_together_when_the_writer_leaves() -> None:
    table = Table()
    writer = ticket(1, READ_WRITE[0])
    table.claim(writer)
    for number in (2, 3, 4):
        table.claim(ticket(number, READ_WRITE[1]))
    assert [entry.ticket.id for entry in table.leave(writer).woken] == ["t2", "t3", "t4"]


def test_a_large_request_for_permits_is_not_overtaken_at_a_hand_over() -> None:
    table = Table()
    one, three, late = ticket(1, SEMAPHORE[0]), ticket(2, SEMAPHORE[2]), ticket(3, SEMAPHORE[0])
    other = ticket(4, SEMAPHORE[1])
    for mine in (one, other, three, late):
        table.claim(mine)
    assert table.leave(other).woken == ()
    assert [entry.ticket.id for entry in table.leave(one).woken] == ["t2"]


def test_another_use_of_the_name_is_refused_until_nobody_uses_it() -> None:
    table = Table()
    holder = ticket(1, MUTEX[0])
    table.claim(holder)
    with pytest.raises(NameInUse, match="in use as a mutex"):
        table.claim(ticket(2, READ_WRITE[0]))
    table.leave(holder)
    assert table.claim(ticket(2, READ_WRITE[0])).blocked is None


def test_another_limit_is_another_use() -> None:
    assert same_use(SEMAPHORE[0], SEMAPHORE[1])
    assert not same_use(SEMAPHORE[0], replace(SEMAPHORE[0], limit=4))


def test_an_expiry_bars_the_name_for_the_holders_delay_and_a_release_does_not() -> None:
    table = Table()
    careful = ticket(1, MUTEX[0], lock_delay=5.0)
    table.claim(careful)
    table.now += LEASE + 1
    assert table.claim(ticket(2, MUTEX[0]), join=False).blocked == Blocked(100.0 + LEASE + 5.0)
    table.now = 100.0 + LEASE + 5.0
    second = ticket(2, MUTEX[0], lock_delay=5.0)
    assert table.claim(second).blocked is None
    table.leave(second)
    assert table.claim(ticket(3, MUTEX[0])).blocked is None


def test_a_break_bars_too_and_moves_the_fence() -> None:
    table = Table()
    careful = ticket(1, MUTEX[0], lock_delay=5.0)
    token = table.claim(careful).mine.token  # type: ignore[union-attr]
    table.leave(careful, ReleaseReason.BREAK)
    assert table.queue.fence > token  # type: ignore[operator]
    assert table.queue.blocked_until == table.now + 5.0


def test_the_dead_are_dropped_at_once_where_the_store_can_know() -> None:
    table = Table()
    table.claim(ticket(1, MUTEX[0], lock_delay=2.0))
    table.claim(ticket(2, MUTEX[0]))
    dead = {"t1", "t2"}
    after = queues.settle(table.queue, table.now, lambda entry: entry.ticket.id not in dead)
    assert after.entries() == ()
    assert after.blocked_until == table.now + 2.0, "its work may still be under way elsewhere: its delay applies"
    step = queues.try_acquire(
        replace(table.queue, blocked_until=0.0),
        ticket(3, MUTEX[0]),
        join=True,
        now=table.now + 2.0,
        floor=0,
        alive=lambda entry: entry.ticket.id not in dead,
    )
    assert step.blocked is not None
    assert step.mine is not None


def test_a_renewal_never_revives_what_expired() -> None:
    table = Table()
    mine = ticket(1, MUTEX[0])
    table.claim(mine)
    table.now += LEASE
    assert table.renew(mine) is RenewalResult.GONE


def test_renewing_keeps_a_waiters_place() -> None:
    table = Table()
    table.claim(ticket(1, MUTEX[0]))
    mine = ticket(2, MUTEX[0])
    table.claim(mine)
    table.now += LEASE / 2
    assert table.renew(mine) is RenewalResult.QUEUED
    table.now += LEASE / 2
    assert [entry.ticket.id for entry in table.leave(ticket(1, MUTEX[0])).woken] == ["t2"]


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_tokens_rise_and_follow_the_clock(fence: int, floor: int) -> None:
    token = next_token(fence, floor)
    assert token > fence
    assert token >= floor


def test_a_view_tells_what_is_left_of_each_lease() -> None:
    table = Table()
    table.claim(ticket(1, SEMAPHORE[2]))
    table.now += 4.0
    table.claim(ticket(2, SEMAPHORE[0]))
    view = queues.view(table.queue, table.now)
    assert view.kind is Kind.SEMAPHORE
    assert [entry.expires for entry in view.holders] == [LEASE - 4.0]
    assert [entry.expires for entry in view.waiters] == [LEASE]
    assert view.token == table.last_token


def test_an_expired_entry_does_not_block() -> None:
    queue = Queue("name")
    step = queues.try_acquire(queue, ticket(1, MUTEX[0]), join=True, now=0.0, floor=0)
    assert isinstance(decide(step.queue, ticket(2, MUTEX[0]), LEASE), Enter)
    assert isinstance(decide(step.queue, ticket(2, MUTEX[0]), LEASE - 0.1), Blocked)


def test_who_has_expired_in_the_queue_is_passed_over() -> None:
    expired, waits = (QueueEntry(ticket(n, LockMode()), n, expires) for n, expires in ((1, 99.0), (2, 200.0)))
    assert list(successors(Queue("name", waiters=(expired, waits)), 100.0)) == [waits]


def test_who_is_first_in_line_does_not_wait_for_those_behind_it() -> None:
    first, second = (QueueEntry(ticket(n, LockMode(fair=True)), n, 200.0) for n in (1, 2))
    queue = Queue("name", waiters=(first, second))
    assert decide(queue, first.ticket, 100.0) == Enter()
    assert decide(queue, second.ticket, 100.0) == Blocked(200.0, first)
