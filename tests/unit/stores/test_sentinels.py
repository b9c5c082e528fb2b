"""Whom the sentinels name as the primary: the newest word counts, then the number of those who say it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType
from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.sentinel.sentinel import LISTEN_AGAIN, UnknownPrimary
from support.stores.told_sentinels import DOWN, MOVED, both, denied, leads, says, sentinels
from support.striking import Striking, ended_by


def named(reply: Any) -> int | None:
    """Return the port that a sentinel names."""
    facts, address = reply if isinstance(reply, tuple) else (reply, None)
    if isinstance(address, list):
        return int(address[1])
    return int(facts[b"port"]) if isinstance(facts, dict) else None


@pytest.mark.parametrize(
    ("replies", "port"),
    [
        ((says(1, 4), says(1, 4), says(1, 4)), 1),
        ((says(1, 3), says(1, 3), says(2, 4)), 2),  # two were cut off, and still name the old one
        ((says(1, 9), says(2, 10), says(2, 10)), 2),
        ((says(1, 4), says(2, 4), says(2, 4)), 2),
        ((DOWN, DOWN, says(2, 4)), 2),
        ((ReplyError("IDONTKNOW"), says(1, 4), DOWN), 1),
        ((leads(1, 2, 4), DOWN, DOWN), 2),
        ((leads(1, 2, 4), says(2, 4), DOWN), 2),
        ((leads(1, 2, 4), says(1, 3), says(1, 3)), 2),
        ((denied(leads(1, 2, 4)), denied(says(2, 4)), DOWN), 2),
        ((denied(leads(1, 2, 4)), DOWN, DOWN), 1),
    ],
)
def test_the_newest_word_counts(replies: tuple[Any, ...], port: int) -> None:
    made, transports = sentinels(*replies)
    found = finish(made.primary(1.0))
    assert (found.options["host"], found.options["port"], found.options["db"]) == ("10.0.0.1", port, 3)
    assert [bool(transport.listens) for transport in transports] == [named(reply) is not None for reply in replies]


def test_why_nobody_tells() -> None:
    unknown = ReplyError("ERR No such master with that name")
    with pytest.raises(UnknownPrimary, match="no primary called 'main'") as caught:
        finish(sentinels(DOWN, unknown, unknown)[0].primary(1.0))
    assert caught.value.lasting
    with pytest.raises(StoreUnavailable, match="sentinel_password") as refused:
        finish(sentinels(DOWN, ReplyError("NOAUTH Authentication required."), DOWN)[0].primary(1.0))
    assert not isinstance(refused.value, RetryableError)
    with pytest.raises(RetryableError, match="down"):
        finish(sentinels(DOWN, DOWN, DOWN)[0].primary(1.0))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_an_exit_at_any_step_of_the_search_ends_it() -> None:
    """An exception of a signal handler is no answer of a sentinel."""
    known, where = dict[CodeType, set[int]](), list[str]()
    for at in itertools.count():
        made, _ = sentinels(says(1, 4), says(1, 4), DOWN)
        striking = Striking(at, known)
        with ended_by(striking):
            finish(made.primary(1.0))
        if not striking.where:
            break
        where.append(striking.where)
    assert len(where) > 10


def test_word_of_a_failover_is_heard() -> None:
    made, transports = sentinels(says(1, 4), DOWN, DOWN)
    finish(made.primary(1.0))
    assert not made.moved()
    made._on_message(b"other 10.0.0.1 1 10.0.0.2 1")
    assert not made.moved()
    made._on_message(MOVED)
    assert made.moved()
    finish(made.primary(1.0))
    assert not made.moved()
    assert [transport.asked for transport in transports] == [3, 2, 2]  # once more after it was subscribed to


@both
def test_a_message_that_comes_while_the_sentinels_are_asked_counts(runtime: Any, run: Callable[[Any], Any]) -> None:
    """Another sentinel may be dead, and its reply waited for: the answer is old by then."""
    made, transports = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
    run(made.primary(1.0))
    transports[0].answering = lambda: made._on_message(MOVED)
    assert run(made.primary(1.0)).options["port"] == 1
    assert made.moved()
    transports[0].reply, transports[0].answering = says(2, 5), lambda: None
    assert run(made.primary(1.0)).options["port"] == 2
    assert not made.moved()


@both
def test_a_failover_before_the_subscription_is_noticed(runtime: Any, run: Callable[[Any], Any]) -> None:
    """The sentinel has sent its message by then."""
    made, transports = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
    transports[0].subscribing = lambda: setattr(transports[0], "reply", says(2, 5))
    run(made.primary(1.0))
    assert made.moved()
    assert run(made.primary(1.0)).options["port"] == 2
    assert not made.moved()


@both
def test_a_sentinel_that_learns_late_is_listened_to(runtime: Any, run: Callable[[Any], Any]) -> None:
    """It names the old primary at first. In the next failover it may be the one that the client hears."""
    made, (first, second, third) = sentinels(says(2, 5), says(1, 4), DOWN, runtime=runtime)
    assert run(made.primary(1.0)).options["port"] == 2
    assert (first.listens, second.listens, third.listens) == (1, 1, 0)
    assert not made.moved()


@both
def test_with_few_subscriptions_the_sentinels_are_asked_again(
    runtime: Any, run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three may agree on a failover after they have come back, and neither would notify this client."""
    made, (_, *down) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
    run(made.primary(1.0))
    assert not made.moved()
    now = made._runtime.now()
    monkeypatch.setattr(made._runtime, "now", lambda: now + 2 * LISTEN_AGAIN)
    assert made.moved()
    for one in down:
        one.reply = says(1, 4)
    run(made.primary(1.0))
    assert all(one.listens for one in down)
    monkeypatch.setattr(made._runtime, "now", lambda: now + 9 * LISTEN_AGAIN)
    assert not made.moved()


@both
@pytest.mark.parametrize("step", ["answering", "subscribing"])
def test_a_failure_leaves_the_question_open(runtime: Any, run: Callable[[Any], Any], step: str) -> None:
    made, transports = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)

    def die() -> None:
        transports[0].reply = DOWN
        if step == "answering":
            raise DOWN

    setattr(transports[0], step, die)
    with pytest.raises(RetryableError) if step == "answering" else nullcontext():
        run(made.primary(1.0))
    assert made.moved()
