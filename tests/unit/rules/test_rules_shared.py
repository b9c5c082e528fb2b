"""Random histories of readers, upgradeable readers, writers and permits: no conflict, no deadlock, no starvation.

What may hold beside what is said here a second time, in other words than in `rules`, so that a mistake there shows.
"""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, ReleaseReason, RenewalResult, Ticket
from leasehold._rules import Queue
from leasehold.errors import NameInUse
from leasehold.primitives.locks.rw_lock import Role
from leasehold.stores._common import queues

ME = Owner("host", 1, "client")
LEASE = 10.0
R, U, W = Role.READER, Role.UPGRADEABLE, Role.WRITER


class Table:
    """A queue and its clock; each step is checked against what must always hold."""

    def __init__(self, *, fair: bool) -> None:
        self.queue, self.now, self.fair = Queue("name"), 100.0, fair
        self.number, self.last = 0, 0

    def ticket(self, party: int, mode: LockMode, alongside: str = "", lease: float = LEASE) -> Ticket:
        self.number += 1
        return Ticket(f"{party}:{self.number}", LeaseTerms(replace(mode, fair=self.fair), ME, lease), alongside)

    def claim(self, mine: Ticket, *, join: bool = True) -> bool:
        step = queues.try_acquire(self.queue, mine, join=join, now=self.now, floor=0)
        self.apply(step.queue)
        return step.blocked is None

    def leave(self, ticket: str, reason: ReleaseReason = ReleaseReason.RELEASE) -> None:
        self.apply(queues.release(self.queue, ticket, reason=reason, now=self.now, floor=0).queue)

    def look_again(self) -> None:
        """As a waiter does that asks again: what has expired takes effect."""
        self.leave("nobody")

    def renew(self, ticket: str) -> RenewalResult:
        self.queue, result = queues.renew(self.queue, ticket, self.now)
        return result

    def apply(self, queue: Queue) -> None:
        before = {entry.ticket.id for entry in self.queue.holders}
        self.queue = queue
        for entry in queue.holders:
            assert entry.token is not None
            if entry.ticket.id not in before:
                assert entry.token > self.last, "tokens rise"
                self.last = entry.token
        self.check()

    def holders(self) -> list[QueueEntry]:
        return [entry for entry in self.queue.holders if entry.expires > self.now]

    def waiters(self) -> list[QueueEntry]:
        return [entry for entry in self.queue.waiters if entry.expires > self.now]

    def check(self) -> None:
        raise NotImplementedError


def party_of(entry: QueueEntry) -> int:
    return int(entry.ticket.id.partition(":")[0])


def role_of(entry: QueueEntry) -> Role:
    mode = entry.ticket.terms.mode
    return W if mode.exclusive else U if mode.upgradeable else R


class Library(Table):
    """Parties that read and write, each as `rw_lock` lets it."""

    def __init__(self, *, fair: bool) -> None:
        super().__init__(fair=fair)

    def mine(self, party: int) -> dict[Role, QueueEntry]:
        """What the party has, holding or waiting."""
        return {role_of(entry): entry for entry in (*self.holders(), *self.waiters()) if party_of(entry) == party}

    def waits(self, party: int) -> bool:
        return any(party_of(entry) == party for entry in self.waiters())

    def ask(self, party: int, role: Role, *, join: bool = True) -> None:
        """Ask for what the party may ask for now; else nothing happens."""
        mine = self.mine(party)
        if self.waits(party) or role in mine or (R in mine and role is not R) or (role is R and U in mine):
            return
        mate = mine.get(W) or mine.get(U)
        self.claim(self.ticket(party, role.mode(fair=self.fair), "" if mate is None else mate.ticket.id), join=join)

    def check(self) -> None:
        held: dict[int, set[Role]] = {}
        for entry in self.holders():
            held.setdefault(party_of(entry), set()).add(role_of(entry))
        writers = [party for party, roles in held.items() if W in roles]
        assert not writers or len(held) == 1, f"a writer beside others: {held}"
        assert sum(U in roles for roles in held.values()) <= 1, f"two upgradeable readers: {held}"
        self.check_progress(held)

    def check_progress(self, held: dict[int, set[Role]]) -> None:
        """Each waiter is blocked by a holder, or by a waiter ahead that it must not overtake.

        An upgrade is ahead of all who arrived before it.
        """
        ahead: list[Role] = []
        for entry in sorted(self.waiters(), key=lambda entry: U not in held.get(party_of(entry), set())):
            role = role_of(entry)
            others = [roles for party, roles in held.items() if party != party_of(entry)]
            blocked = bool(others) if role is W else any(W in roles or (role is U and U in roles) for roles in others)
            upgrades = U in held.get(party_of(entry), set())
            assert blocked or (W in ahead and not upgrades) or (role is W and ahead and not upgrades), (
                f"{entry} waits for nobody; held {held}, ahead {ahead}"
            )
            ahead.append(role)


events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "try", "leave", "leave", "lose", "break", "pass", "renew"]),
        st.integers(0, 4),
        st.sampled_from(list(Role)),
    ),
    max_size=50,
)


def play(table: Library, steps: list[tuple[str, int, Role]]) -> None:
    for what, party, role in steps:
        mine = table.mine(party)
        match what:
            case "ask" | "try":
                table.ask(party, role, join=what == "ask")
            case "leave" | "break" if role in mine:
                how = ReleaseReason.RELEASE if what == "leave" else ReleaseReason.BREAK
                table.leave(mine[role].ticket.id, how)
            case "lose":  # one of its leases ends early, as after a stall of that one watchdog
                for entry in table.queue.entries():
                    if party_of(entry) != party and table.renew(entry.ticket.id) is RenewalResult.GONE:
                        table.leave(entry.ticket.id)
                table.now += LEASE * 0.6
                for entry in table.queue.entries():
                    if party_of(entry) != party:
                        table.renew(entry.ticket.id)
                table.look_again()
            case "pass":
                table.now += LEASE / 4
                table.look_again()
            case "renew":
                for entry in mine.values():
                    table.renew(entry.ticket.id)


@pytest.mark.parametrize("fair", [True, False])
@settings(max_examples=300, deadline=None)
@given(steps=events)
@example(steps=[("ask", 0, R), ("ask", 2, U), ("ask", 1, W), ("ask", 3, R), ("ask", 2, W), ("leave", 1, W)])
def test_readers_and_writers_never_conflict_and_nobody_waits_for_nobody(
    fair: bool, steps: list[tuple[str, int, Role]]
) -> None:
    play(Library(fair=fair), steps)


@pytest.mark.parametrize("fair", [True, False])
@settings(max_examples=300, deadline=None)
@given(steps=events, upgrade=st.booleans())
def test_whatever_they_hold_and_wait_for_all_get_on(
    fair: bool, steps: list[tuple[str, int, Role]], upgrade: bool
) -> None:
    """All holders and unblocked tickets release; then none is left. Upgradeable readers may all ask to write before."""
    table = Library(fair=fair)
    play(table, steps)
    if upgrade:
        for party in range(5):
            table.ask(party, W)
    for _ in range(100):
        free = [entry for entry in table.holders() if not table.waits(party_of(entry))]
        if not free:
            break
        table.leave(free[0].ticket.id)
    assert not table.holders(), "no holder releases any more: a deadlock"
    assert not table.waiters(), "a waiter waits for ever"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([R, U, W]), min_size=2, max_size=12))
def test_the_fair_enter_in_order_of_arrival(roles: list[Role]) -> None:
    """A writer enters after all who came before it, and before all who came after; readers only pass readers."""
    table = Library(fair=True)
    for party, role in enumerate(roles):
        table.ask(party, role)
    entered: list[int] = []
    while table.holders():
        entered += [party_of(entry) for entry in table.holders() if party_of(entry) not in entered]
        table.leave(table.holders()[0].ticket.id)
    assert sorted(entered) == list(range(len(roles)))
    for place, party in enumerate(entered):
        if roles[party] is W:
            assert set(entered[:place]) == set(range(party)), f"{roles}: entered {entered}"


def test_an_upgradeable_reader_that_waits_holds_up_no_reader_behind_it() -> None:
    table = Library(fair=True)
    for party, role in enumerate((W, U, U, R, W, R)):
        table.ask(party, role)
    table.leave(table.mine(0)[W].ticket.id)
    assert [party_of(entry) for entry in table.holders()] == [1, 3], "the last reader came after a writer"


def test_an_upgrade_passes_writers_that_waited_before() -> None:
    table = Library(fair=True)
    for party, role in enumerate((U, R, W)):
        table.ask(party, role)
    table.ask(0, W)
    table.leave(table.mine(1)[R].ticket.id)
    assert {role_of(entry) for entry in table.holders()} == {U, W}
    assert {party_of(entry) for entry in table.holders()} == {0}


def test_a_try_beside_a_ticket_of_ones_own_passes_those_who_wait() -> None:
    table = Library(fair=True)
    table.ask(0, W)
    table.ask(1, W)
    table.ask(0, R, join=False)
    assert R in table.mine(0)


def test_beside_counts_only_while_that_one_holds() -> None:
    table = Library(fair=True)
    table.ask(0, U)
    table.ask(1, R)
    table.ask(2, W)
    table.ask(0, W)
    table.leave(table.mine(0)[U].ticket.id)
    table.leave(table.mine(1)[R].ticket.id)
    assert [party_of(entry) for entry in table.holders()] == [2], "it is an ordinary waiter now"


class Permits(Table):
    """Requests for some of so many permits."""

    limit = 4

    def check(self) -> None:
        out = sum(entry.ticket.terms.mode.permits for entry in self.holders())
        assert out <= self.limit, "more permits are out than there are"
        waiting = self.waiters()
        if waiting:
            first = waiting[0].ticket.terms.mode.permits
            assert out + first > self.limit, "the first in line would fit"


@pytest.mark.parametrize("fair", [True, False])
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "ask", "try", "leave", "pass"]), st.integers(1, 4), st.integers(0, 9)),
        max_size=60,
    )
)
def test_permits_never_exceed_the_limit_and_come_back(fair: bool, steps: list[tuple[str, int, int]]) -> None:
    table = Permits(fair=fair)
    for what, size, which in steps:
        match what:
            case "ask" | "try":
                behind = bool(table.waiters())
                exclusive = bool(which % 2)  # means nothing here
                mine = table.ticket(0, LockMode(Kind.SEMAPHORE, exclusive=exclusive, permits=size, limit=table.limit))
                entered = table.claim(mine, join=what == "ask")
                assert not (fair and behind and entered), "it overtook a waiter"
            case "leave" if table.queue.entries():
                table.leave(table.queue.entries()[which % len(table.queue.entries())].ticket.id)
            case "pass":
                table.now += which
                table.look_again()
    while table.holders():
        table.leave(table.holders()[0].ticket.id)
    assert not table.waiters()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_permits_are_given_in_order_of_arrival(sizes: list[int]) -> None:
    table = Permits(fair=True)
    for number, size in enumerate(sizes):
        table.claim(table.ticket(number, LockMode(Kind.SEMAPHORE, permits=size, limit=table.limit)))
    entered: list[int] = []
    while table.holders():
        entered += [party_of(entry) for entry in table.holders() if party_of(entry) not in entered]
        table.leave(table.holders()[0].ticket.id)
    assert entered == list(range(len(sizes)))


def test_another_limit_names_both() -> None:
    table = Permits(fair=True)
    table.claim(table.ticket(0, LockMode(Kind.SEMAPHORE, limit=4)))
    with pytest.raises(NameInUse, match="a semaphore of 4 and cannot be used as a semaphore of 5"):
        table.claim(table.ticket(1, LockMode(Kind.SEMAPHORE, limit=5)))
