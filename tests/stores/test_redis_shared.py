"""The Lua scripts of read-write locks and semaphores against the pure rules: random histories of one name on both.

How time passes: see `test_redis_scripts`. Leases and delays are multiples of ten seconds, and a script of ours moves
all expiries of the name back by whole seconds at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quickly import quickly

from leasehold.errors import WrongKind
from leasehold.model import Departure, Granted, Kind, Owner, Rule, Seat, Standing, Terms, Ticket, Wait
from leasehold.rules import Blocked, Queue, same_use
from leasehold.runtimes.base import drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores import ledger, registry
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.waiting import IDLE
from leasehold.testing.servers import RedisServer

TICKETS = 6
NAMES = itertools.count()

SHIFT = """
local shift = tonumber(ARGV[1]) + 2
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left > shift then redis.call('PEXPIRE', key, left - shift) elseif left > 0 then redis.call('DEL', key) end
end
for _, key in ipairs({KEYS[3], KEYS[5]}) do
  for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -shift, ticket) end
end
local barred = redis.call('HGET', KEYS[1], 'b')
if barred and tonumber(barred) > 0 then redis.call('HINCRBY', KEYS[1], 'b', -shift) end
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@dataclass
class Both:
    """One name on both sides, and what has come of it so far."""

    server: RedisServer
    store: RedisStore
    name: str
    tickets: list[Ticket]
    joins: list[bool]
    now: float = 1_000_000.0
    last_end: float = 0.0  # when the last lease ends, or would have ended
    queue: Queue = field(default_factory=lambda: Queue("x"))
    slots: set[str] = field(default_factory=set)
    tokens: dict[int, int] = field(default_factory=dict)
    marks: dict[str, object] = field(default_factory=dict)

    def took(self, model: int, real: int) -> None:
        """Take note of a token that both gave: the same grant has one number on each side, and they grow alike."""
        if model in self.tokens:
            assert self.tokens[model] == real
            return
        assert all(real > other for known, other in self.tokens.items() if known < model)
        assert all(real < other for known, other in self.tokens.items() if known > model)
        self.tokens[model] = real

    # --- what nobody does ----------------------------------------------------------------------------------------

    def seats(self) -> tuple[Seat, ...]:
        return ledger.settle(self.queue, self.now).seats()

    def is_sensible(self, ticket: Ticket) -> bool:
        """A ticket beside another is claimed while that one holds; that one's id is not used again after it ended."""
        seats = {seat.ticket.id: seat for seat in self.seats()}
        if ticket.beside and ticket.id not in seats:
            return ticket.beside in seats and seats[ticket.beside].token is not None
        return ticket.id in seats or not any(seat.ticket.beside == ticket.id for seat in seats.values())

    def is_foreign(self, ticket: Ticket) -> bool:
        seats = self.seats()
        return bool(seats) and not same_use(ticket.terms.rule, seats[0].ticket.terms.rule)

    # --- operations ----------------------------------------------------------------------------------------------

    def claim(self, i: int) -> None:
        ticket, join = self.tickets[i], self.joins[i]
        mutex = ticket.terms.rule.kind is Kind.MUTEX
        if not self.is_sensible(ticket) or (mutex and not self.seats() and self.may_be_kept_free()):
            return  # a mutex is refused a name that may be kept free after another use: it counts as in use
        try:
            step = ledger.claim(self.queue, ticket, join=join, now=self.now, floor=0)
        except WrongKind:
            with pytest.raises(WrongKind) as caught:
                drive(self.store.claim(self.name, ticket, join=join, within=5.0))
            assert caught.value.name == self.name
            self.forget(i)
            return
        self.queue = step.queue
        answer = drive(self.store.claim(self.name, ticket, join=join, within=5.0))
        if step.blocked is None:
            assert isinstance(answer, Granted)
            assert step.mine is not None
            assert step.mine.token is not None
            self.took(step.mine.token, answer.token)
            self.slots.discard(ticket.id)
            return
        assert isinstance(answer, Wait)
        self.marks[ticket.id] = answer.mark
        if join:
            self.slots.add(ticket.id)
        if not mutex:
            self.check_wait(ticket, step.blocked, answer)

    def check_wait(self, ticket: Ticket, blocked: Blocked, answer: Wait) -> None:
        slot = self.store._waiting.get(ticket.id)
        watches = slot is None or slot.armed or ticket.beside
        left = answer.ask_again - (0 if watches else IDLE * ticket.terms.lease)
        until = blocked.until - self.now
        assert 0 < left <= until + 0.01  # nothing is missed
        if blocked.by is None or blocked.by.token is not None:
            assert left > until - 1.0  # and nobody asks in vain
        if blocked.by is None:
            assert answer.held_by is None
        else:
            others = [seat for seat in self.queue.seats() if seat.ticket.id not in (ticket.id, ticket.beside)]
            assert answer.held_by in [seat.ticket.terms.owner for seat in others]

    def forget(self, i: int) -> None:
        """Leave, as a client does whose claim was refused: it finds its own dead seat at most, and touches nobody."""
        drive(self.store.leave(self.name, self.tickets[i], how=Departure.RELEASE, within=5.0))
        self.slots.discard(self.tickets[i].id)

    def may_be_kept_free(self) -> bool:
        longest = max(ticket.terms.delay for ticket in self.tickets)
        return longest > 0 and self.now < self.last_end + longest

    def leave(self, i: int, how: Departure) -> None:
        ticket = self.tickets[i]
        alive = any(seat.ticket.id == ticket.id for seat in self.seats())
        if not alive and ticket.terms.delay:
            return  # late words of a former holder may end its delay or not: it says itself that it is done
        if self.is_foreign(ticket):
            self.forget(i)
            return
        step = ledger.leave(self.queue, ticket.id, how=how, now=self.now, floor=0)
        self.queue = step.queue
        found = drive(self.store.leave(self.name, ticket, how=how, within=5.0))
        assert found is step.found or not alive  # what has expired may have been cleared away by now, or not
        self.slots.discard(ticket.id)

    def a_holder_leaves(self, nth: int) -> None:
        holders = [seat.ticket for seat in ledger.settle(self.queue, self.now).holders]
        if holders:
            self.leave(self.tickets.index(holders[nth % len(holders)]), Departure.RELEASE)

    def renew(self, chosen: list[int]) -> None:
        tickets = [self.tickets[i] for i in chosen]
        stays = [ticket for ticket in tickets if ticket.id in self.slots]
        wanted: dict[str, Standing] = {}
        for ticket in [*(t for t in tickets if t.id not in self.slots), *stays]:
            self.queue, wanted[ticket.id] = ledger.renew(self.queue, ticket.id, self.now)
        if any(not self.is_foreign(ticket) for ticket in stays):
            self.queue, _ = ledger.hand_over(ledger.settle(self.queue, self.now), self.now, 0)
        got = drive(self.store.renew([(self.name, ticket) for ticket in tickets], within=5.0))
        assert list(got) == [wanted[ticket.id] for ticket in tickets]

    def listen(self, i: int) -> None:
        """Wait for a message, if the model says that there is one, and none but the latest is believed."""
        ticket = self.tickets[i]
        seat = next((s for s in self.queue.holders if s.ticket.id == ticket.id and s.expires > self.now), None)
        if ticket.id not in self.slots or seat is None or seat.token is None:
            return
        for _ in range(3):  # stale news end a wait early, and the waiter asks again
            granted = drive(self.store.changed(self.name, ticket, self.marks[ticket.id], timeout=0.2))
            if granted is not None:
                self.took(seat.token, granted.token)
                self.slots.discard(ticket.id)
                return

    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.server.command("EVAL", SHIFT, 6, *keys.shared_keys("default", self.name), seconds * 1000)

    # --- looking -------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Look at both."""
        self.last_end = max([self.last_end, *(seat.expires for seat in self.queue.holders)])
        model = ledger.view(self.queue, self.now)
        views = drive(self.store.look(self.name, exact=True))
        if not (model.holders or model.waiters or model.free_in > 0):
            assert views == []
            return
        (real,) = views
        assert [s.ticket.id for s in real.holders] == [s.ticket.id for s in model.holders]
        assert [s.ticket.id for s in real.waiters] == [s.ticket.id for s in model.waiters]
        for mine, its in zip(model.holders + model.waiters, real.holders + real.waiters, strict=True):
            self.compare_seats(mine, its)
        for mine, its in zip(model.holders, real.holders, strict=True):
            assert mine.token is not None
            assert its.token is not None
            self.took(mine.token, its.token)
        assert model.free_in - 1.0 < real.free_in <= model.free_in + 0.002
        if model.holders or model.waiters:
            assert real.kind is model.kind

    @staticmethod
    def compare_seats(mine: Seat, its: Seat) -> None:
        rule, other = mine.ticket.terms.rule, its.ticket.terms.rule
        assert its.ticket.terms.owner == mine.ticket.terms.owner
        assert its.ticket.terms.meta == mine.ticket.terms.meta
        assert (other.exclusive, other.upgradeable, other.permits) == (rule.exclusive, rule.upgradeable, rule.permits)
        assert same_use(rule, other)
        assert mine.expires - 1.0 < its.expires <= mine.expires + 0.002  # the server counts in ms

    def check_counters(self) -> None:
        """What the lock keeps is what the terms add up to, and no key stays for ever."""
        lock, *_, holders, terms = keys.shared_keys("default", self.name)
        assert self.server.command("ZCARD", holders) == self.server.command("HLEN", terms)
        for key in keys.shared_keys("default", self.name):
            left = self.server.command("PTTL", key)
            assert isinstance(left, int)
            assert left == -2 or 0 < left <= 3_600_000 + 70_000
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

Made = tuple[list[Ticket], list[bool]]
Steps = list[tuple[str, object]]


@st.composite
def histories(draw: st.DrawFn, longest: int) -> Steps:
    """Draw what happens: all come, in some order, and then anything; or anything at once."""
    first = [("claim", i) for i in draw(st.permutations(range(TICKETS)))] if draw(st.integers(0, 3)) else []
    return first + draw(st.lists(OPERATIONS, min_size=1, max_size=longest))


@st.composite
def made_of(draw: st.DrawFn, rules: list[st.SearchStrategy[Rule]], *, beside: bool = False) -> Made:
    made: list[Ticket] = []
    for i in range(TICKETS):
        terms = Terms(
            draw(st.one_of(*rules)),
            Owner("host", i, "x"),
            lease=draw(st.sampled_from([10.0, 20.0, 30.0])),
            delay=draw(st.sampled_from([0.0, 0.0, 0.0, 10.0])),
            meta=draw(st.sampled_from(["", '"é\\n"', '"a b"', '"{}"'])),
        )
        bases = [other.id for other in made if not other.beside] if beside else []
        base = draw(st.sampled_from(["", *bases, *bases[:1], *bases[:1]])) if bases else ""
        made.append(Ticket(f"ticket-{i}-{'x' * 10}", terms, base))
    return made, draw(st.lists(st.sampled_from([True, True, True, False]), min_size=TICKETS, max_size=TICKETS))


READERS_AND_WRITERS = st.sampled_from(
    [
        Rule(Kind.READ_WRITE, exclusive=alone, upgradeable=upgradeable, fair=fair)
        for alone, upgradeable in ((False, False), (False, False), (True, False), (False, True))
        for fair in (False, True)
    ]
)

PERMITS = st.builds(
    lambda permits, fair: Rule(Kind.SEMAPHORE, exclusive=False, permits=permits, limit=3, fair=fair),
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
)

STRANGERS = st.sampled_from([Rule(), Rule(fair=True), Rule(Kind.SEMAPHORE, limit=4), Rule(Kind.SEMAPHORE, limit=1)])

HISTORIES = {
    "readers and writers": made_of([READERS_AND_WRITERS]),
    "beside": made_of([READERS_AND_WRITERS], beside=True),
    "permits": made_of([PERMITS]),
    "strangers": made_of([READERS_AND_WRITERS, STRANGERS]),
    "strange permits": made_of([PERMITS, STRANGERS]),
}


def replay(server: RedisServer, store: RedisStore, made: Made, steps: Steps) -> None:
    """Play a history on both sides; once more if it took so long that what passed of the leases hides the outcome."""
    quickly(lambda: play(server, store, made, steps), len(steps))


def play(server: RedisServer, store: RedisStore, made: Made, steps: Steps) -> None:
    for ticket in made[0]:
        store._waiting.remove(ticket.id)
    both = Both(server, store, f"shared-{next(NAMES)}", *made)
    for what, argument in steps:
        match what:
            case "claim":
                both.claim(argument)
            case "leave":
                both.leave(argument, Departure.RELEASE)
            case "a holder leaves":
                both.a_holder_leaves(argument)
            case "break":
                both.leave(argument, Departure.BREAK)
            case "renew":
                both.renew(argument)
            case "wait":
                both.wait(argument)
            case "listen":
                both.listen(argument)
        both.compare()
    both.check_counters()


@pytest.fixture(scope="module")
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(opened, RedisStore)
    drive(opened._wire.listen(5.0))  # a waiter that nobody hears for is passed over
    drive(opened.look("x"))  # opens the other connection, which lasts as long as this fixture
    yield opened
    drive(opened.close())


QUICK = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("kind", HISTORIES)
def test_the_scripts_do_what_the_rules_say(server, store, kind):
    @QUICK
    @given(made=HISTORIES[kind], steps=histories(30))
    def run(made, steps):
        replay(server, store, made, steps)

    run()


R, W, U = (
    Rule(Kind.READ_WRITE, exclusive=alone, upgradeable=upgradeable, fair=True)
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
    """What random histories seldom meet."""
    rules, words = RARE[what]
    tickets = [Ticket(f"ticket-{i}", Terms(rule, Owner("host", i, "x"), 10.0)) for i, rule in enumerate(rules)]
    names = {"c": "claim", "l": "leave", "r": "renew", "w": "wait"}
    steps = [(names[word[0]], [int(word[1:])] if word[0] == "r" else int(word[1:])) for word in words]
    replay(server, store, (tickets, [True] * len(tickets)), steps)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", HISTORIES)
def test_the_scripts_do_what_the_rules_say_at_length(server, store, kind):
    @settings(QUICK, max_examples=5_000)
    @given(made=HISTORIES[kind], steps=histories(80))
    def run(made, steps):
        replay(server, store, made, steps)

    run()
