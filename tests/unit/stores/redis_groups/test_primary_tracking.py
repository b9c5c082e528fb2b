"""Which primary the callers of a client use, while the sentinels are asked and after a failover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.sentinel.sentinel import LISTEN_AGAIN
from support.flavors import on_runtimes
from support.stores.told_sentinels import DOWN, MOVED, Served, both, publish, says, sentinels, used


@on_runtimes
async def test_a_sentinel_that_was_cut_off_with_the_primary_is_not_the_only_one_that_counts(runtime: Any) -> None:
    """It never learns of the failover. The client reaches both sides, and must leave the old primary."""
    servers = list[Served]()
    made, (cut_off, *others) = sentinels(says(1, 4), says(1, 4), says(1, 4), runtime=runtime)
    primary = await used(runtime(), made, servers)
    for one in others:
        one.reply = says(2, 5)
    publish(made, others[1])
    assert await primary.call(b"after", within=30.0) == 2
    assert cut_off.listens
    assert not made.moved()  # though one still names the old primary


@on_runtimes
async def test_a_caller_without_time_for_the_answer_does_not_use_the_old_primary(runtime: Any) -> None:
    """A caller that waited for another one, which fails, asks the sentinels itself."""
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


@on_runtimes
async def test_a_hurried_caller_does_not_decide_that_the_sentinels_are_silent(runtime: Any) -> None:
    """They would have answered a caller with more time. It does not use the old primary, and nor do the others."""
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


@on_runtimes
async def test_a_message_ends_the_time_for_which_silent_sentinels_are_not_asked(runtime: Any) -> None:
    """While they are silent the last primary is used. One that announces another is not silent."""
    servers = list[Served]()
    made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
    primary = await used(runtime(), made, servers)
    made._on_silence()
    sentinel.reply = DOWN
    assert await primary.call(b"meanwhile", within=30.0) == 1
    sentinel.reply = says(2, 5)
    made._on_message(MOVED)
    assert await primary.call(b"after", within=30.0) == 2


@on_runtimes
async def test_a_hurried_caller_uses_the_last_primary_when_the_sentinels_are_silent(runtime: Any) -> None:
    """A renewal of a short lease has one attempt. Without the message of a failover the last primary is the best guess.

    It is a guess of that caller only: another one with more time may get an answer.
    """
    servers = list[Served]()
    made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
    primary = await used(runtime(), made, servers)
    made._on_silence()
    sentinel.reply = DOWN
    assert await primary.call(b"renewal", within=0.1) == 1
    sentinel.reply = says(2, 5)
    assert await primary.call(b"second", within=30.0) == 2


@both
def test_others_use_the_primary_while_one_caller_asks_the_sentinels_again(
    runtime: Any, run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too few subscriptions they are asked each ten seconds, and wait for those that are gone."""

    async def body() -> None:
        flavor, servers = runtime(), list[Served]()
        made, (sentinel, *_) = sentinels(says(1, 4), DOWN, DOWN, runtime=runtime)
        primary = await used(flavor, made, servers)
        asking, over, ask, now = flavor.signal(), flavor.signal(), sentinel.call_all, made._runtime.now
        monkeypatch.setattr(made._runtime, "now", lambda: now() + 2 * LISTEN_AGAIN)

        async def slow(commands: Sequence[bytes], *, within: float) -> list[Any]:
            asking.set()
            await over.wait(5.0)
            return await ask(commands, within=within)

        async def second() -> int:
            await asking.wait(5.0)
            found = await primary.call(b"second", within=2.0)
            over.set()
            return found

        sentinel.call_all, sentinel.reply = slow, says(2, 5)
        assert await flavor.gather(primary.call(b"first", within=30.0), second()) == [2, 1]

    run(body())


@on_runtimes
async def test_hanging_up_a_silent_sentinel_raises_no_doubt(runtime: Any) -> None:
    """Blocking code ends its subscription itself. The next caller need not wait for that sentinel, too."""
    made, (_, frozen, _) = sentinels(says(1, 4), says(1, 4), says(1, 4), runtime=runtime)
    await made.primary(3.0)

    def hang_up() -> None:
        if frozen.listens:
            frozen.listens = 0
            made._on_silence()

    frozen.hang_up, frozen.reply = hang_up, DOWN
    for _ in range(2):
        await made.primary(3.0)
        assert not made.moved()
    assert not frozen.listens


@on_runtimes
async def test_a_primary_without_enough_replicas_is_asked_again(runtime: Any) -> None:
    """One that was just promoted has none yet. Its connections are good, and waiters keep their subscription."""
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


@on_runtimes
async def test_after_a_message_all_callers_wait_for_the_new_primary(runtime: Any) -> None:
    """The old one may still reply on its side of a partition. All waiters retry at a message, and one of them asks."""
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
