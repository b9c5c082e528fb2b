"""What strict mode sends behind a claim, and what it makes of the answers of servers, newer ones too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import MOST_TRANSPORTS, WaitTransport
from leasehold.stores.redis.scripts import commands
from leasehold.stores.redis.strict.quorum import Strict, waits
from leasehold.stores.redis.strict.strict import Claims, Unconfirmed

TICKET = Ticket("t" * 22, LeaseTerms(LockMode(Kind.MUTEX), Owner("h", 1, "c"), lease=10.0))
COMMAND = commands.try_acquire("ns", "a", TICKET, join=False, channel=b"")
GRANTED = [1, b"7", b"1", 2]


class Answers:
    """A transport that answers from a list, and keeps what it was asked."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[Sequence[bytes]] = []

    async def call_all(self, asked: Sequence[bytes], *, within: float) -> list[Any]:
        self.asked.append(asked)
        return self.answers.pop(0)


class Overtaken(Claims):
    """Claims of a client of which another thread, whose server had lost its replicas, has written just now."""

    @property
    def _needed(self) -> int:
        return 0

    @_needed.setter
    def _needed(self, needed: int) -> None: ...


def ask(strict: Strict, *answers: list[Any], kind: type[Claims] = Claims) -> tuple[Any, list[Sequence[bytes]]]:
    transport: Any = Answers(*answers)
    claims = kind(strict, Settings("here"), lambda another: b"other" if another else b"marker")
    try:
        reply = asyncio.run(claims.ask(transport, COMMAND, within=5.0))
    except StoreUnavailable as error:
        reply = error
    assert not transport.answers
    return reply, [asked[1:] for asked in transport.asked]


def test_it_waits_for_replicas_as_soon_as_it_knows_of_them() -> None:
    reply, asked = ask(Strict(), [GRANTED], [GRANTED, 1])
    assert reply == GRANTED
    assert asked == [[], [b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"]]
    assert ask(Strict(replicas=0), [GRANTED])[0] == GRANTED
    assert ask(Strict(replicas=2), [GRANTED, 2])[0] == GRANTED
    assert "only 1 did" in str(ask(Strict(replicas=2), [GRANTED, 1])[0])


def test_what_another_thread_knows_of_replicas_is_not_counted() -> None:
    reply, asked = ask(Strict(), [GRANTED], [GRANTED, 1], kind=Overtaken)
    assert reply == GRANTED
    assert len(asked[1]) == 1
    assert "of 1 replicas" in str(ask(Strict(), [GRANTED], [GRANTED, 0], kind=Overtaken)[0])


def test_disks_are_waited_for_where_that_is_asked_for() -> None:
    strict = Strict(replicas=1, fsync=True)
    reply, asked = ask(strict, [GRANTED, [1, 1]])
    assert reply == GRANTED
    assert asked == [[b"*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n1\r\n$4\r\n2500\r\n"]]
    assert isinstance(ask(strict, [GRANTED, [1, 0]])[0], Unconfirmed)
    assert isinstance(ask(strict, [GRANTED, [0, 1]])[0], Unconfirmed)
    assert ask(Strict(replicas=0, fsync=True), [GRANTED, [1, 0]])[0] == GRANTED


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ERR unknown command 'WAITAOF'", "Redis 7.2 or later"),
        ("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.", "CONFIG SET appendonly yes"),
        ("NOPERM this user has no permissions to run the 'waitaof' command", r"\+waitaof is missing"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", "refused"),
    ],
)
def test_what_cannot_be_waited_for_is_no_grant(said: str, words: str) -> None:

    reply, _ = ask(Strict(fsync=True), [GRANTED, ReplyError(said)], *([[GRANTED, ReplyError(said)]]))
    assert isinstance(reply, Unconfirmed)
    assert re.search(words, str(reply))


def test_a_script_that_was_forgotten_is_sent_again_with_its_wait() -> None:
    reply, asked = ask(Strict(replicas=1), [ReplyError("NOSCRIPT no"), 1], [GRANTED, 1])
    assert reply == GRANTED
    assert len(asked[0]) == len(asked[1]) == 1


def test_a_marker_whose_slot_is_elsewhere_is_left_for_another() -> None:
    moved = ReplyError("ERR Script attempted to access a non local key in a cluster node script: x")
    reply, _ = ask(Strict(replicas=0), [moved])
    assert isinstance(reply, RetryableError)


def test_only_what_waits_goes_apart() -> None:
    assert waits(Strict().wait(1, 1.0))
    assert waits(Strict(fsync=True).wait(1, 1.0))
    assert not waits(b"*3\r\n$7\r\nEVALSHA\r\n$4\r\nWAIT\r\n")
    assert Strict().wait(1, 0.5).endswith(b"$3\r\n250\r\n")


def test_connections_that_wait_are_bounded() -> None:
    async def body() -> None:
        transport = WaitTransport(
            AsyncioRuntime(), Settings("here", strict=Strict()), b"", lambda _: None, lambda: None
        )
        taken = [transport._take() for _ in range(MOST_TRANSPORTS + 5)]
        assert len({id(one) for one, _ in taken}) == MOST_TRANSPORTS
        assert [alone for _, alone in taken] == [True] * MOST_TRANSPORTS + [False] * 5
        await transport.close()

    asyncio.run(body())
