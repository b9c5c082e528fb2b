"""Whom the sentinels name as the primary: the newest word counts, then the number of those who say it."""

from __future__ import annotations

import itertools
from types import CodeType
from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.openers import sentinels_from_url
from leasehold.stores.redis.sentinel.sentinel import Sentinels, UnknownPrimary
from support.striking import Striking, ended_by

URL = "redis+sentinel://a,b,c/main/3?sentinel_password=x"


class Told:
    """The transport to a sentinel that says one thing."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.listens = 0

    async def call(self, command: bytes, *, within: float) -> Any:
        if isinstance(self.reply, Exception) and not isinstance(self.reply, ReplyError):
            raise self.reply
        return self.reply

    async def listen(self, within: float) -> int:
        self.listens = 1
        return 1

    def epoch(self) -> int:
        return self.listens

    def hang_up(self) -> None:
        self.listens = 0


def says(port: int, epoch: int) -> dict[bytes, bytes]:
    return {b"ip": b"10.0.0.1", b"port": b"%d" % port, b"config-epoch": b"%d" % epoch}


def sentinels(*replies: Any) -> tuple[Sentinels, list[Any]]:
    transports = [Told(reply) for reply in replies]
    left = iter(transports)
    made = Sentinels(BlockingRuntime(), sentinels_from_url(parse(URL)), lambda *_: next(left), lambda: None)  # type: ignore[arg-type, return-value]
    return made, transports


DOWN = RetryableError("down")


@pytest.mark.parametrize(
    ("replies", "port"),
    [
        ((says(1, 4), says(1, 4), says(1, 4)), 1),
        ((says(1, 3), says(1, 3), says(2, 4)), 2),  # two were cut off, and still name the old one
        ((says(1, 9), says(2, 10), says(2, 10)), 2),
        ((says(1, 4), says(2, 4), says(2, 4)), 2),
        ((DOWN, DOWN, says(2, 4)), 2),
        ((ReplyError("IDONTKNOW"), says(1, 4), DOWN), 1),
    ],
)
def test_the_newest_word_counts(replies: tuple[Any, ...], port: int) -> None:
    made, transports = sentinels(*replies)
    found = finish(made.primary(1.0))
    assert (found.options["host"], found.options["port"], found.options["db"]) == ("10.0.0.1", port, 3)
    right = [index for index, reply in enumerate(replies) if isinstance(reply, dict) and reply[b"port"] == b"%d" % port]
    assert [index for index, transport in enumerate(transports) if transport.listens] == right[
        :1
    ]  # one of those who know better


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
    made, _ = sentinels(says(1, 4), DOWN, DOWN)
    made.moved = lambda: made._moved  # type: ignore[method-assign] # without a socket to look at
    finish(made.primary(1.0))
    assert not made.moved()
    made._heard(b"other 10.0.0.1 1 10.0.0.2 1")
    assert not made.moved()
    made._heard(b"main 10.0.0.1 1 10.0.0.2 1")
    assert made.moved()
