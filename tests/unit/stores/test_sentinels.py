"""Whom the sentinels name as the primary: the newest word counts, then the number of those who say it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from types import CodeType
from typing import Any

import pytest

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.openers import sentinels_from_url
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import LISTEN_AGAIN, Sentinels, UnknownPrimary
from support.striking import Striking, ended_by

URL = "redis+sentinel://a,b,c/main/3?sentinel_password=x"


class Told:
    """The transport to a sentinel that says one thing; ``address``: its reply to the second question, if it differs."""

    def __init__(self, reply: Any) -> None:
        self.reply, self.address = reply if isinstance(reply, tuple) else (reply, None)
        self.asked = self.listens = 0
        self.answering: Callable[[], None] = lambda: None  # called while its reply is on the way
        self.subscribing: Callable[[], None] = lambda: None  # called just before it is subscribed to

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        assert [b"MASTER" in command for command in commands] == [True, True]
        assert b"GET-MASTER-ADDR-BY-NAME" in commands[1]
        self.asked += 1
        if isinstance(self.reply, Exception) and not isinstance(self.reply, ReplyError):
            raise self.reply
        if isinstance(self.reply, ReplyError):
            return [self.reply, None]
        reply = [self.reply, self.address or [self.reply[b"ip"], self.reply[b"port"]]]
        self.answering()
        return reply

    async def listen(self, within: float) -> int:
        self.subscribing()
        self.listens = 1
        return 1

    def generation(self) -> int:
        return self.listens

    def has_unread(self) -> bool:
        return False

    def hang_up(self) -> None:
        self.listens = 0


def says(port: int, epoch: int) -> dict[bytes, bytes]:
    return {b"ip": b"10.0.0.1", b"port": b"%d" % port, b"flags": b"master", b"config-epoch": b"%d" % epoch}


def leads(old: int, new: int, epoch: int) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Say what the sentinel that leads a failover says, until the other replicas follow the new primary."""
    return says(old, epoch) | {b"flags": b"master,o_down,failover_in_progress"}, [b"10.0.0.1", b"%d" % new]


def denied(reply: tuple[dict[bytes, bytes], list[bytes]] | dict[bytes, bytes]) -> tuple[dict[bytes, bytes], ReplyError]:
    """Say the same to a user without the right to the second question."""
    facts = reply[0] if isinstance(reply, tuple) else reply
    return facts, ReplyError("NOPERM this user has no permissions to run 'sentinel|get-master-addr-by-name'")


def sentinels(*replies: Any, runtime: Any = BlockingRuntime) -> tuple[Sentinels, list[Any]]:
    transports = [Told(reply) for reply in replies]
    left = iter(transports)
    made = Sentinels(runtime(), sentinels_from_url(parse(URL)), lambda *_: next(left), lambda: None)  # type: ignore[arg-type, return-value]
    return made, transports


DOWN = RetryableError("down")


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


MOVED = b"main 10.0.0.1 1 10.0.0.2 1"

both = pytest.mark.parametrize(("runtime", "run"), [(BlockingRuntime, finish), (AsyncioRuntime, asyncio.run)])


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
def test_a_sentinel_that_was_cut_off_with_the_primary_is_not_the_only_one_that_counts(
    runtime: Any, run: Callable[[Any], Any]
) -> None:
    """It never learns of the failover. The client reaches both sides, and must leave the old primary."""

    async def body() -> None:
        servers = list[Served]()
        made, (cut_off, *others) = sentinels(says(1, 4), says(1, 4), says(1, 4), runtime=runtime)
        primary = await used(runtime(), made, servers)
        for one in others:
            one.reply = says(2, 5)
        publish(made, others[1])
        assert await primary.call(b"after", within=30.0) == 2
        assert cut_off.listens
        assert not made.moved()  # though one still names the old primary

    run(body())


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


def publish(made: Sentinels, sentinel: Told) -> None:
    """Let a sentinel announce a failover to its subscribers."""
    if sentinel.listens:
        made._on_message(MOVED)


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


class Served:
    """The transport to a server, which notes what it is asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = list[bytes]()
        self.refusals = list[ReplyError]()
        self.hung_up = False

    async def call(self, command: bytes, *, within: float) -> Any:
        self.asked.append(command)
        return self.refusals.pop() if self.refusals else self.port

    def hang_up(self) -> None:
        self.hung_up = True

    async def close(self) -> None: ...


async def used(flavor: Any, made: Any, servers: list[Served]) -> PrimaryTransport:
    """Return a transport that has asked the first primary; ``servers`` gets each server that it connects to."""

    def serve(_: Any, settings: Any, *events: Any) -> Any:
        servers.append(Served(settings.options["port"]))
        return servers[-1]

    primary = PrimaryTransport(flavor, made, serve, b"", lambda message: None, lambda: None)
    assert await primary.call(b"before", within=30.0) == 1
    return primary


@both
def test_a_caller_without_time_for_the_answer_does_not_use_the_old_primary(
    runtime: Any, run: Callable[[Any], Any]
) -> None:
    """A caller that waited for another one, which fails, asks the sentinels itself."""

    async def body() -> None:
        flavor, servers = runtime(), list[Served]()
        made, transports = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(flavor, made, servers)
        asking, over, ask = flavor.signal(), flavor.signal(), made.primary

        async def fails(within: float) -> Any:
            made.primary = ask  # type: ignore[method-assign]  # for the next caller
            asking.set()
            await over.wait(30.0)
            raise ZeroDivisionError

        async def first() -> str:
            with pytest.raises(ZeroDivisionError):
                await primary.call(b"first", within=30.0)
            return "failed"

        async def hurried() -> str:
            await asking.wait(30.0)
            with pytest.raises(StoreUnavailable, match="the primary is still being resolved"):
                await primary.call(b"hurried", within=0.05)
            over.set()
            return "refused"

        async def second() -> int:
            await asking.wait(30.0)
            return await primary.call(b"second", within=30.0)

        made.primary, transports[0].reply = fails, says(2, 5)  # type: ignore[method-assign]
        made._on_message(MOVED)
        assert await flavor.gather(first(), hurried(), second()) == ["failed", "refused", 2]
        assert [(server.port, server.asked) for server in servers] == [(1, [b"before"]), (2, [b"second"])]

    run(body())


@both
def test_a_hurried_caller_does_not_decide_that_the_sentinels_are_silent(
    runtime: Any, run: Callable[[Any], Any]
) -> None:
    """They would have answered a caller with more time. It does not use the old primary, and nor do the others."""

    async def body() -> None:
        servers = list[Served]()
        made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(runtime(), made, servers)
        ask, sentinel.reply = sentinel.call_all, says(2, 5)

        async def slow(commands: Sequence[bytes], *, within: float) -> list[Any]:
            if within < 0.5:
                raise DOWN
            return await ask(commands, within=within)

        sentinel.call_all = slow
        made._on_message(MOVED)
        with pytest.raises(StoreUnavailable):
            await primary.call(b"hurried", within=0.1)
        assert await primary.call(b"second", within=30.0) == 2
        assert [(server.port, server.asked) for server in servers] == [(1, [b"before"]), (2, [b"second"])]

    run(body())


@both
def test_a_message_ends_the_time_for_which_silent_sentinels_are_not_asked(
    runtime: Any, run: Callable[[Any], Any]
) -> None:
    """While they are silent the last primary is used. One that announces another is not silent."""

    async def body() -> None:
        servers = list[Served]()
        made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(runtime(), made, servers)
        made._on_silence()
        sentinel.reply = DOWN
        assert await primary.call(b"meanwhile", within=30.0) == 1
        sentinel.reply = says(2, 5)
        made._on_message(MOVED)
        assert await primary.call(b"after", within=30.0) == 2

    run(body())


@both
def test_hurried_callers_use_the_last_primary_when_the_sentinels_stay_silent(
    runtime: Any, run: Callable[[Any], Any]
) -> None:
    """A short `response_timeout` must not make a client depend on sentinels that all are down."""

    async def body() -> None:
        servers = list[Served]()
        made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(runtime(), made, servers)
        made._on_silence()
        sentinel.reply = DOWN
        for _ in range(20):
            with suppress(StoreUnavailable):
                assert await primary.call(b"meanwhile", within=0.3) == 1
                return
        pytest.fail("refused twenty times")

    run(body())


@both
def test_a_primary_without_enough_replicas_is_asked_again(runtime: Any, run: Callable[[Any], Any]) -> None:
    """One that was just promoted has none yet. Its connections are good, and waiters keep their subscription."""

    async def body() -> None:
        servers = list[Served]()
        made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(runtime(), made, servers)
        refusal = ReplyError("NOREPLICAS Not enough good replicas to write.")
        servers[0].refusals = [refusal] * 2
        assert await primary.call(b"waits", within=30.0) == 1
        assert not servers[0].hung_up
        servers[0].refusals = [refusal] * 999
        assert await primary.call(b"in vain", within=0.1) is refusal
        sentinel.reply = says(2, 5)
        assert await primary.call(b"at the next", within=30.0) == 2

    run(body())


@both
def test_after_a_message_all_callers_wait_for_the_new_primary(runtime: Any, run: Callable[[Any], Any]) -> None:
    """The old one may still reply on its side of a partition. All waiters retry at a message, and one of them asks."""

    async def body() -> None:
        flavor, servers = runtime(), list[Served]()
        made, transports = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(flavor, made, servers)
        asking, answer, ask = flavor.signal(), flavor.signal(), transports[0].call_all

        async def slow(commands: Sequence[bytes], *, within: float) -> list[Any]:
            asking.set()
            await answer.wait(30.0)
            return await ask(commands, within=within)

        async def second() -> int:
            await asking.wait(30.0)
            return await primary.call(b"second", within=30.0)

        async def decided() -> None:
            while not primary._single_flight._waiting and len(servers[0].asked) < 2:
                await flavor.sleep(0.001)
            answer.set()

        transports[0].call_all, transports[0].reply = slow, says(2, 5)
        made._on_message(MOVED)
        found = await flavor.gather(primary.call(b"first", within=30.0), second(), decided())
        assert found == [2, 2, None]
        assert [(server.port, sorted(server.asked)) for server in servers] == [
            (1, [b"before"]),
            (2, [b"first", b"second"]),
        ]

    run(body())
