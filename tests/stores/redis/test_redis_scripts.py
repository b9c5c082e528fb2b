"""The Lua scripts against the pure rules: random histories of one name, on a real server and on `stores.ledger`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, Wait
from leasehold._rules import Blocked
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer
from support.stores.both_sides import BothSides, Made, Steps, opened, replay

TICKETS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def store(server: RedisServer) -> Iterator[RedisStore]:
    with opened(server) as store:
        yield store


class Both(BothSides):
    """A mutex."""

    ROUNDED = 0.001
    LONGEST = 3_600_000 + 80_000

    def keys(self) -> Sequence[str]:
        return keys.mutex_keys("default", self.name)

    def check_wait(self, ticket: Ticket, blocked: Blocked, answer: Wait) -> None:
        by = blocked.by
        assert answer.held_by == (None if by is None else by.ticket.terms.owner)


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
def tickets(draw: st.DrawFn) -> Made:
    made = []
    for i in range(TICKETS):
        terms = LeaseTerms(
            LockMode(fair=draw(st.booleans())),
            Owner("host", i, "x"),
            lease=draw(st.sampled_from([10.0, 20.0, 30.0])),
            lock_delay=draw(st.sampled_from([0.0, 0.0, 10.0, 40.0])),  # longer than a lease, too
            meta=draw(st.sampled_from(["", '"é\\n"', '"a b"', '"{}"'])),
        )
        made.append(Ticket(f"ticket-{i}-{'x' * 10}", terms))
    return made, draw(st.lists(st.sampled_from([True, True, True, False]), min_size=TICKETS, max_size=TICKETS))


QUICK = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(made=tickets(), steps=st.lists(OPERATIONS, min_size=1, max_size=25))
def test_the_scripts_agree_with_the_rules(server, store, made, steps):
    replay(lambda: Both(server, store, *made), steps)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("who", [1, 2, 3], ids=["the first in line", "the second", "one who has just come"])
def test_a_name_freed_unnoticed_goes_to_the_first_waiter(server, store, fair, who):
    made = [
        Ticket(
            f"ticket-{i}-{'x' * 10}",
            LeaseTerms(LockMode(fair=fair), Owner("host", i, "x"), lease=10.0 if i == 0 else 30.0),
        )
        for i in range(TICKETS)
    ]
    steps: Steps = [
        ("claim", 0),
        ("claim", 1),
        ("claim", 2),
        ("wait", 13),
        ("claim", who),
        ("claim", 4),
        ("leave", who),
    ]
    replay(lambda: Both(server, store, made, [True] * TICKETS), steps)


def test_a_waiter_that_missed_its_grant_does_not_shorten_the_lock_delay(server, store):
    """It was stopped for longer than its lease, which a release had granted it, and claims again."""
    terms = [LeaseTerms(LockMode(), Owner("host", i, "x"), lease=10.0, lock_delay=40.0) for i in range(TICKETS)]
    made = [Ticket(f"ticket-{i}-{'x' * 10}", one) for i, one in enumerate(terms)]
    steps: Steps = [("claim", 0), ("claim", 1), ("leave", 0), ("wait", 13), ("claim", 1), ("claim", 2), ("wait", 20)]
    replay(lambda: Both(server, store, made, [True] * TICKETS), [*steps, ("claim", 2)])


@pytest.mark.nightly
@pytest.mark.timeout(600)
@settings(QUICK, max_examples=5_000)
@given(made=tickets(), steps=st.lists(OPERATIONS, min_size=10, max_size=60))
def test_the_scripts_agree_with_the_rules_in_long_histories(server, store, made, steps):
    replay(lambda: Both(server, store, *made), steps)
