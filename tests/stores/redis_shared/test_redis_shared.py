"""The Lua scripts of read-write locks and semaphores against the pure rules: random histories of one name on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket, Wait
from leasehold._rules import Blocked, same_use
from leasehold._runtimes.base import finish
from leasehold.errors import NameInUse
from leasehold.stores.redis import keys
from leasehold.stores.redis.handover import IDLE
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer
from support.stores.both_sides import BothSides, Made, Steps, opened, replay

TICKETS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def store(server: RedisServer) -> Iterator[RedisStore]:
    with opened(server) as store:
        yield store


@dataclass
class Both(BothSides):
    """A read-write lock or a semaphore, or a mutex of the same name."""

    last_end: float = 0.0  # when the last lease ends, or would have ended

    ROUNDED = 0.002
    LONGEST = 3_600_000 + 100_000

    def keys(self) -> Sequence[str]:
        return keys.shared_keys("default", self.name)

    # --- what nobody does ----------------------------------------------------------------------------------------

    def is_sensible(self, ticket: Ticket) -> bool:
        """A ticket alongside another is claimed while that one holds, whose id is not used again after its end."""
        entries = {entry.ticket.id: entry for entry in self.entries()}
        if ticket.alongside and ticket.id not in entries:
            return ticket.alongside in entries and entries[ticket.alongside].token is not None
        return ticket.id in entries or not any(entry.ticket.alongside == ticket.id for entry in entries.values())

    def may_be_kept_free(self) -> bool:
        longest = max(ticket.terms.lock_delay for ticket in self.tickets)
        return longest > 0 and self.now < self.last_end + longest

    # --- operations ----------------------------------------------------------------------------------------------

    def claim(self, i: int) -> None:
        ticket = self.tickets[i]
        mutex = ticket.terms.mode.kind is Kind.MUTEX
        if not self.is_sensible(ticket) or (mutex and not self.entries() and self.may_be_kept_free()):
            return  # after another use, a mutex may wait longer than the rules say: for the longest delay
        try:
            step = self.claim_by_the_rules(i)
        except NameInUse:
            with pytest.raises(NameInUse) as caught:
                finish(self.store.try_acquire(self.name, ticket, join=self.joins[i], within=5.0))
            assert caught.value.name == self.name
            self.forget(i)
            return
        self.claimed(i, step)

    def check_wait(self, ticket: Ticket, blocked: Blocked, answer: Wait) -> None:
        if ticket.terms.mode.kind is Kind.MUTEX:
            return
        slot = self.store._waiters.get(ticket.id)
        watches = slot is None or slot.watching or ticket.alongside
        left = answer.ask_again - (0 if watches else IDLE * ticket.terms.lease)
        until = blocked.until - self.now
        assert 0 < left <= until + 0.01  # nothing is missed
        if blocked.by is None or blocked.by.token is not None:
            assert left > until - 1.0  # and no waiter asks in vain
        if blocked.by is None:
            assert answer.held_by is None
        else:
            others = [entry for entry in self.queue.entries() if entry.ticket.id not in (ticket.id, ticket.alongside)]
            assert answer.held_by in [entry.ticket.terms.owner for entry in others]

    # --- looking -------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        self.last_end = max([self.last_end, *(entry.expires for entry in self.queue.holders)])
        super().compare()

    def compare_entries(self, mine: QueueEntry, its: QueueEntry) -> None:
        super().compare_entries(mine, its)
        mode, other = mine.ticket.terms.mode, its.ticket.terms.mode
        assert (other.exclusive, other.upgradeable, other.permits) == (mode.exclusive, mode.upgradeable, mode.permits)
        assert same_use(mode, other)

    def check_keys(self) -> None:
        """Check that the counters of the lock are the sums of the terms."""
        super().check_keys()
        lock, *_, holders, terms = self.keys()
        assert self.server.command("ZCARD", holders) == self.server.command("HLEN", terms)
        if self.server.command("HGET", lock, "k") not in (None, "mutex"):
            assert int(self.server.command("HGET", lock, "c") or 0) == self.server.command("ZCARD", holders)


NUMBERS = st.integers(0, TICKETS - 1)

OPERATIONS = st.one_of(
    st.tuples(st.just("claim"), NUMBERS),
    st.tuples(st.just("claim"), NUMBERS),
    st.tuples(st.just("claim"), NUMBERS),
    st.tuples(st.just("leave"), NUMBERS),
    st.tuples(st.just("a holder leaves"), NUMBERS),
    st.tuples(st.just("a holder leaves"), NUMBERS),
    st.tuples(st.just("break"), NUMBERS),
    st.tuples(st.just("renew"), st.lists(NUMBERS, min_size=1, max_size=TICKETS, unique=True)),
    st.tuples(st.just("wait"), st.sampled_from([3, 7, 10, 13, 20])),
    st.tuples(st.just("listen"), NUMBERS),
)


@st.composite
def histories(draw: st.DrawFn, longest: int) -> Steps:
    """Draw the steps: first all tickets join in some order, and then anything; or anything at once."""
    first = [("claim", i) for i in draw(st.permutations(range(TICKETS)))] if draw(st.integers(0, 3)) else []
    return first + draw(st.lists(OPERATIONS, min_size=1, max_size=longest))


@st.composite
def made_of(draw: st.DrawFn, rules: list[st.SearchStrategy[LockMode]], *, alongside: bool = False) -> Made:
    made: list[Ticket] = []
    for i in range(TICKETS):
        terms = LeaseTerms(
            draw(st.one_of(*rules)),
            Owner("host", i, "x"),
            lease=draw(st.sampled_from([10.0, 20.0, 30.0])),
            lock_delay=draw(st.sampled_from([0.0, 0.0, 0.0, 10.0, 40.0])),
            meta=draw(st.sampled_from(["", '"é\\n"', '"a b"', '"{}"'])),
        )
        bases = [other.id for other in made if not other.alongside] if alongside else []
        base = draw(st.sampled_from(["", *bases, *bases[:1], *bases[:1]])) if bases else ""
        made.append(Ticket(f"ticket-{i}-{'x' * 10}", terms, base))
    return made, draw(st.lists(st.sampled_from([True, True, True, False]), min_size=TICKETS, max_size=TICKETS))


READERS_AND_WRITERS = st.sampled_from(
    [
        LockMode(Kind.READ_WRITE, exclusive=alone, upgradeable=upgradeable, fair=fair)
        for alone, upgradeable in ((False, False), (False, False), (True, False), (False, True))
        for fair in (False, True)
    ]
)

PERMITS = st.builds(
    lambda permits, fair: LockMode(Kind.SEMAPHORE, exclusive=False, permits=permits, limit=3, fair=fair),
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
)

STRANGERS = st.sampled_from(
    [LockMode(), LockMode(fair=True), LockMode(Kind.SEMAPHORE, limit=4), LockMode(Kind.SEMAPHORE, limit=1)]
)

HISTORIES = {
    "readers and writers": made_of([READERS_AND_WRITERS]),
    "alongside": made_of([READERS_AND_WRITERS], alongside=True),
    "permits": made_of([PERMITS]),
    "strangers": made_of([READERS_AND_WRITERS, STRANGERS]),
    "strange permits": made_of([PERMITS, STRANGERS]),
}


QUICK = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("kind", HISTORIES)
def test_the_scripts_agree_with_the_rules(server, store, kind):
    @QUICK
    @given(made=HISTORIES[kind], steps=histories(30))
    def run(made, steps):
        replay(lambda: Both(server, store, *made), steps)

    run()


R, W, U = (
    LockMode(Kind.READ_WRITE, exclusive=alone, upgradeable=upgradeable, fair=True)
    for alone, upgradeable in ((False, False), (True, False), (False, True))
)

RARE = {
    "an upgradeable reader in front": (
        [W, U, U, R, W, R],
        ["c0", "c1", "c2", "c3", "c4", "c5", "l0", "l1", "l3"],
    ),
    "readers behind readers": ([W, R, R, W, R, R], ["c0", "c1", "c2", "c3", "c4", "c5", "l0", "l1", "l2", "l3"]),
    "a dead writer ahead": ([R, W, R, R, R, R], ["c0", "c1", "c2", "r0", "w7", "r0", "r2", "w3", "c3", "w20"]),
    "the last one leaves": ([R, R, W, W, R, R], ["c0", "c1", "c2", "c3", "c4", "l1", "l0", "l2", "l3", "l4"]),
}


@pytest.mark.parametrize("what", RARE)
def test_rare_histories(server, store, what):
    """Cases that random histories seldom contain."""
    rules, words = RARE[what]
    tickets = [Ticket(f"ticket-{i}", LeaseTerms(mode, Owner("host", i, "x"), 10.0)) for i, mode in enumerate(rules)]
    names = {"c": "claim", "l": "leave", "r": "renew", "w": "wait"}
    steps = [(names[word[0]], [int(word[1:])] if word[0] == "r" else int(word[1:])) for word in words]
    replay(lambda: Both(server, store, tickets, [True] * len(tickets)), steps)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", HISTORIES)
def test_the_scripts_agree_with_the_rules_in_long_histories(server, store, kind):
    @settings(QUICK, max_examples=5_000)
    @given(made=HISTORIES[kind], steps=histories(80))
    def run(made, steps):
        replay(lambda: Both(server, store, *made), steps)

    run()
