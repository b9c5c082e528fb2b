"""The Lua scripts against the pure rules: random histories of one name, on a real server and on `stores.ledger`.

How time passes: leases and delays are multiples of ten seconds, and a script of ours moves every expiry of the name
back by whole seconds at once (and 2 ms, since the server rounds to milliseconds). So a history over minutes takes
milliseconds, and both sides agree on what has expired: what really passes meanwhile is far below a second, and a lease
that has just run out on the one side has run out on the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quickly import quickly

from leasehold.model import Departure, Granted, Owner, Rule, Standing, Terms, Ticket, Wait
from leasehold.rules import Queue
from leasehold.runtimes.base import drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores import ledger, registry
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold.testing.servers import RedisServer

NAME = "stock:42"
TICKETS = 5
NAMES = itertools.count()

SHIFT = """
local shift = tonumber(ARGV[1]) + 2
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left > shift then redis.call('PEXPIRE', key, left - shift) elseif left > 0 then redis.call('DEL', key) end
end
for _, ticket in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do redis.call('ZINCRBY', KEYS[3], -shift, ticket) end
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def open_store(server: RedisServer) -> RedisStore:
    store = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(store, RedisStore)
    return store


@dataclass
class Both:
    """One name on both sides, and what has come of it so far."""

    server: RedisServer
    store: RedisStore
    name: str
    tickets: list[Ticket]
    joins: list[bool]
    now: float = 1_000_000.0
    queue: Queue = field(default_factory=lambda: Queue(NAME))
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

    def claim(self, i: int) -> None:
        ticket, join = self.tickets[i], self.joins[i]
        step = ledger.claim(self.queue, ticket, join=join, now=self.now, floor=0)
        self.queue = step.queue
        answer = drive(self.store.claim(self.name, ticket, join=join, within=5.0))
        if step.blocked is None:
            assert isinstance(answer, Granted)
            assert step.mine is not None
            assert step.mine.token is not None
            self.took(step.mine.token, answer.token)
            self.slots.discard(ticket.id)
        else:
            assert isinstance(answer, Wait)
            self.marks[ticket.id] = answer.mark
            by = step.blocked.by
            assert answer.held_by == (None if by is None else by.ticket.terms.owner)
            if join:
                self.slots.add(ticket.id)

    def leave(self, i: int, how: Departure) -> None:
        ticket = self.tickets[i]
        alive = any(s.ticket.id == ticket.id and s.expires > self.now for s in self.queue.seats())
        if not alive and ticket.terms.delay:
            return  # late words of a former holder may end its delay or not: it says itself that it is done
        step = ledger.leave(self.queue, ticket.id, how=how, now=self.now, floor=0)
        self.queue = step.queue
        found = drive(self.store.leave(self.name, ticket, how=how, within=5.0))
        assert found is step.found or not alive  # what has expired may have been cleared away by now, or not
        self.slots.discard(ticket.id)

    def renew(self, chosen: list[int]) -> None:
        tickets = [self.tickets[i] for i in chosen]
        stays = [ticket for ticket in tickets if ticket.id in self.slots]
        wanted: dict[str, Standing] = {}
        for ticket in [*(t for t in tickets if t.id not in self.slots), *stays]:
            self.queue, wanted[ticket.id] = ledger.renew(self.queue, ticket.id, self.now)
        if stays:
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
            mark = self.marks[ticket.id]
            granted = drive(self.store.changed(self.name, ticket, mark, timeout=0.2))
            if granted is not None:
                self.took(seat.token, granted.token)
                self.slots.discard(ticket.id)
                return

    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.server.command("EVAL", SHIFT, 4, *keys.mutex_keys("default", self.name), seconds * 1000)

    def compare(self) -> None:
        """Look at both."""
        model = ledger.view(self.queue, self.now)
        views = drive(self.store.look(self.name, exact=True))
        if not (model.holders or model.waiters or model.free_in > 0):
            assert views == []
            return
        (real,) = views
        assert [s.ticket.id for s in real.holders] == [s.ticket.id for s in model.holders]
        assert [s.ticket.id for s in real.waiters] == [s.ticket.id for s in model.waiters]
        for mine, its in zip(model.holders + model.waiters, real.holders + real.waiters, strict=True):
            assert its.ticket.terms.owner == mine.ticket.terms.owner
            assert its.ticket.terms.meta == mine.ticket.terms.meta
            assert mine.expires - 1.0 < its.expires <= mine.expires + 0.001  # the server counts in ms
        for mine, its in zip(model.holders, real.holders, strict=True):
            assert mine.token is not None
            assert its.token is not None
            self.took(mine.token, its.token)
        assert model.free_in - 1.0 < real.free_in <= model.free_in + 0.001

    def check_ttls(self) -> None:
        """No key may stay for ever, and a name's keys end with it."""
        for key in keys.mutex_keys("default", self.name):
            left = self.server.command("PTTL", key)
            assert isinstance(left, int)
            assert left == -2 or 0 < left <= 3_600_000 + 50_000


OPERATIONS = st.one_of(
    st.tuples(st.just("claim"), st.integers(0, TICKETS - 1)),
    st.tuples(st.just("claim"), st.integers(0, TICKETS - 1)),
    st.tuples(st.just("leave"), st.integers(0, TICKETS - 1)),
    st.tuples(st.just("break"), st.integers(0, TICKETS - 1)),
    st.tuples(st.just("renew"), st.lists(st.integers(0, TICKETS - 1), min_size=1, max_size=TICKETS, unique=True)),
    st.tuples(st.just("wait"), st.sampled_from([3, 7, 10, 13, 20])),
    st.tuples(st.just("listen"), st.integers(0, TICKETS - 1)),
    st.tuples(st.just("flush"), st.just(0)),
)


@st.composite
def tickets(draw: st.DrawFn) -> tuple[list[Ticket], list[bool]]:
    made = []
    for i in range(TICKETS):
        terms = Terms(
            Rule(fair=draw(st.booleans())),
            Owner("host", i, "x"),
            lease=draw(st.sampled_from([10.0, 20.0, 30.0])),
            delay=draw(st.sampled_from([0.0, 0.0, 10.0])),
            meta=draw(st.sampled_from(["", '"é\\n"', '"a b"', '"{}"'])),
        )
        made.append(Ticket(f"ticket-{i}-{'x' * 10}", terms))
    return made, draw(st.lists(st.sampled_from([True, True, True, False]), min_size=TICKETS, max_size=TICKETS))


def replay(server: RedisServer, store: RedisStore, made: tuple[list[Ticket], list[bool]], steps: list) -> None:  # type: ignore[type-arg]
    """Play a history on both sides; once more if it took so long that what passed of the leases hides the outcome."""
    quickly(lambda: play(server, store, made, steps), len(steps))


def play(server: RedisServer, store: RedisStore, made: tuple[list[Ticket], list[bool]], steps: list) -> None:  # type: ignore[type-arg]
    for ticket in made[0]:
        store._waiting.remove(ticket.id)
    both = Both(server, store, f"{NAME}-{next(NAMES)}", *made)
    for what, argument in steps:
        match what:
            case "claim":
                both.claim(argument)
            case "leave":
                both.leave(argument, Departure.RELEASE)
            case "break":
                both.leave(argument, Departure.BREAK)
            case "renew":
                both.renew(argument)
            case "wait":
                both.wait(argument)
            case "listen":
                both.listen(argument)
            case "flush":
                server.command("SCRIPT", "FLUSH")
        both.compare()
    both.check_ttls()


@pytest.fixture(scope="module")
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = open_store(server)
    drive(opened._wire.listen(5.0))  # a waiter that nobody hears for is passed over
    drive(opened.look("x"))  # opens the other connection, which lasts as long as this fixture
    yield opened
    drive(opened.close())


QUICK = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(made=tickets(), steps=st.lists(OPERATIONS, min_size=1, max_size=25))
def test_the_scripts_do_what_the_rules_say(server, store, made, steps):
    replay(server, store, made, steps)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("who", [1, 2, 3], ids=["the first in line", "the second", "one who has just come"])
def test_a_name_that_became_free_unseen_while_others_wait(server, store, fair, who):
    made = [
        Ticket(f"ticket-{i}-{'x' * 10}", Terms(Rule(fair=fair), Owner("host", i, "x"), lease=10.0 if i == 0 else 30.0))
        for i in range(TICKETS)
    ]
    steps = [("claim", 0), ("claim", 1), ("claim", 2), ("wait", 13), ("claim", who), ("claim", 4), ("leave", who)]
    replay(server, store, (made, [True] * TICKETS), steps)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@settings(QUICK, max_examples=5_000)
@given(made=tickets(), steps=st.lists(OPERATIONS, min_size=10, max_size=60))
def test_the_scripts_do_what_the_rules_say_at_length(server, store, made, steps):
    replay(server, store, made, steps)
