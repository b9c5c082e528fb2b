"""Sentinels and servers that say what a test tells them, under the shipped classes that ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores.redis.connection.base import ReplyError, RetryableError
from leasehold.stores.redis.openers import sentinels_from_url
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import Sentinels

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

MOVED = b"main 10.0.0.1 1 10.0.0.2 1"

both = pytest.mark.parametrize(("runtime", "run"), [(BlockingRuntime, finish), (AsyncioRuntime, asyncio.run)])


def publish(made: Sentinels, sentinel: Told) -> None:
    """Let a sentinel announce a failover to its subscribers."""
    if sentinel.listens:
        made._on_message(MOVED)


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
