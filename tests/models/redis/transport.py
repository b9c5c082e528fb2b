"""The transport of the Redis store over a simulated network, and an opener: the shipped store, in simulated time.

Like the asyncio transport, it has one connection for calls and messages alike. A call without a reply in time fails. It
ends the connection, since all later replies wait behind that one; if its time was short, and others have time left,
only after `SILENT_FOR`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hiredis

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.aio_connection import SILENT_FOR
from leasehold.stores.redis.connection.base import (
    MakeTransport,
    OnMessage,
    OnSilence,
    ReplyError,
    RetryableError,
    Subscriber,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.stores.redis.connection.failover import SingleFlight
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.net import Connection
from models.redis.server import UNSUBSCRIBED, RedisServerModel

FACTS = {"version": "7.0.15", "role": "master", "server": "redis"}
"""The model's reply to the handshake."""

VERSION = version_of(FACTS)


@dataclass(frozen=True)
class SimulatedRedis(InVirtualTime):
    """Opens the Redis store on a model of the server."""

    server: RedisServerModel

    def open(self, runtime: Runtime, namespace: str) -> RedisStore:
        """Open the store for one client."""
        settings = Settings(where=f"the model {self.server.machine.name}")
        return RedisStore(runtime, settings, namespace, make=transports([self.server]))


def transports(servers: Sequence[RedisServerModel]) -> MakeTransport:
    """Return the factory of transports to the models; the end of ``where`` in the settings names the model."""
    by_name = {server.machine.name: server for server in servers}

    def make(
        runtime: Runtime, settings: Settings, channel: bytes, heard: OnMessage, silence: OnSilence
    ) -> SimulatedTransport:
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a model of Redis serves clients of simulated harnesses only")
        server = by_name[settings.where.rpartition(" ")[2].partition(":")[0]]
        return SimulatedTransport(runtime, settings, server, channel, heard, silence)

    return make


@dataclass(slots=True, eq=False)
class Question:
    """Commands sent in one write, and their replies."""

    count: int
    answered: Signal
    until: float
    replies: list[Any] = field(default_factory=list[Any])
    broken: str = ""  # why no reply will come


class SimulatedTransport:
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        settings: Settings,
        server: RedisServerModel,
        channel: bytes,
        on_message: OnMessage,
        on_silence: OnSilence,
    ) -> None:
        self._runtime = runtime
        self._where = settings.where
        self._attempt_within = settings.attempt_within
        self._any_role = settings.any_role or settings.mode == "sentinel"
        self._server = server
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._connecting = SingleFlight(runtime)
        self._subscribing = SingleFlight(runtime)
        self._line: Connection | None = None
        self._asked: deque[Question] = deque()
        self._count = 0
        self._generation = 0
        self._closed = False
        self._why = ""

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self.call_all([command], within=within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        if not commands:
            return []
        return await self._ask(await self._connected(within), [_words(command) for command in commands], within)

    async def listen(self, within: float) -> int:
        until = self._runtime.now() + within
        while True:
            line = await self._connected(max(0.0, until - self._runtime.now()))
            if self._generation:
                return self._generation
            left = until - self._runtime.now()
            if left <= 0:
                raise no_answer(self._where, "it answered too slowly", unknown=False)
            await self._subscribing.run(partial(self._subscribe, line, left), left)

    def generation(self) -> int:
        return self._generation

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        until, signal = self._runtime.now() + timeout, subscriber.ready(self._runtime)
        while not subscriber.news and (left := until - self._runtime.now()) > 0:
            await signal.wait(left)
            if not subscriber.news:
                signal.clear()

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()

    def has_unread(self) -> bool:
        return False

    def hang_up(self) -> None:
        self._end("the client left it for another server")

    def set_channel(self, channel: bytes) -> None:
        self._channel = channel

    def facts(self) -> dict[str, str]:
        return FACTS

    async def close(self) -> None:
        self._closed = True
        self._end("it was closed here")

    def after_fork(self, channel: bytes) -> None:
        raise Unsupported("a simulated process does not fork")

    # --- inside ------------------------------------------------------------------------------------------------

    async def _connected(self, within: float) -> Connection:
        until = self._runtime.now() + within
        while True:
            if self._closed:
                raise no_answer(self._where, "the client is closed", unknown=False)
            if self._line is not None:
                return self._line
            left = until - self._runtime.now()
            if left <= 0:
                raise no_answer(self._where, "it answered too slowly", unknown=False)
            await self._connecting.run(partial(self._connect, self._attempt_within(left)), left)

    async def _connect(self, within: float) -> None:
        """Connect and shake hands: the first reply shows that the server is up."""
        line = self._server.connect(self._runtime.machine, self._heard, self._ended)
        if line is None:
            await self._runtime.sleep(self._server.link(self._runtime.machine.name).latency[0])
            raise no_answer(self._where, "no server listens there", unknown=False)
        self._line, self._why = line, ""
        try:
            (role,) = await self._ask(line, [[b"ROLE"]], within, unknown=False)
        except StoreUnavailable as error:
            self._end(str(error))
            raise
        if role[0] != b"master" and not self._any_role:
            self._end("it is no primary")
            raise RetryableError(f"Redis at {self._where} is a replica")

    async def _subscribe(self, line: Connection, within: float) -> None:
        asked = [_words(command) for command in subscriptions(self._channel, VERSION)]
        for reply in await self._ask(line, asked, within):
            if isinstance(reply, ReplyError):
                raise refused(self._where, reply)
        if line is self._line:
            self._count += 1
            self._generation = self._count

    async def _ask(
        self, line: Connection, commands: Sequence[Sequence[bytes]], within: float, *, unknown: bool = True
    ) -> list[Any]:
        """Send commands and wait for all replies; after a cancellation the replies are dropped when they come."""
        if line is not self._line:
            raise no_answer(self._where, "the connection is closed", unknown=False)
        now = self._runtime.now()
        question = Question(len(commands), self._runtime.signal(), now + within)
        self._asked.append(question)
        line.send(commands)
        if not await question.answered.wait(within) and line is self._line:
            question.broken = "it answered too slowly"
            self._end_at(now + SILENT_FOR, question)
        if question.broken:
            raise no_answer(self._where, question.broken, unknown=unknown)
        return question.replies

    def _end_at(self, ends: float, question: Question) -> None:
        """End the connection now if no question has time left; else then, unless this one is answered by then."""

        def end() -> None:
            if question in self._asked:
                self._end("it answered too slowly")

        left, now = ends - self._runtime.now(), self._runtime.now()
        if left > 0 and any(each.until > now for each in self._asked):
            scheduler = self._runtime.scheduler
            scheduler.at(scheduler.time + left, self._runtime.machine, end)
        else:
            end()

    def _heard(self, reply: Any, message: bool) -> None:
        if message:
            if reply is UNSUBSCRIBED:
                self._silenced()
            else:
                self._on_message(reply)
            return
        question = self._asked[0]
        question.replies.append(reply)
        if len(question.replies) == question.count:
            self._asked.popleft()
            question.answered.set()

    def _end(self, why: str) -> None:
        self._why = why
        if self._line is not None:
            self._line.end()

    def _ended(self) -> None:
        """End all waits for replies and messages: the connection is closed."""
        self._line = None
        asked, self._asked = self._asked, deque()
        for question in asked:
            question.broken = self._why or "it closed the connection"
            question.answered.set()
        self._silenced()

    def _silenced(self) -> None:
        if self._generation:
            self._generation = 0
            self._on_silence()


def _words(command: bytes) -> list[bytes]:
    """Read a packed command back."""
    reader = hiredis.Reader()
    reader.feed(command)
    words: list[bytes] = reader.gets()
    return words
