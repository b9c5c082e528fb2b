"""The transports whose subscription follows `Topics`, in both flavors. The client has no channel of its own.

In blocking code one thread reads the subscription, and it alone sends on it, too: a TLS connection must not be written
and read by two threads. If no thread reads, the one that changes the channels takes the reader's place for that moment.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime, Signal
from leasehold.layouts.redis.connection.topics import CONFIRMATIONS, Topics
from leasehold.stores.redis.connection.aio import AioTransport
from leasehold.stores.redis.connection.aio_connection import AioConnection
from leasehold.stores.redis.connection.base import MakeTransport, OnMessage, OnSilence, Transport
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.channel import Channel
from leasehold.stores.redis.connection.connection import SILENT, Connection
from leasehold.stores.redis.connection.transports import single_transport

ANSWER_WITHIN = 10.0
"""Seconds for the reply to a subscription; without one the connection has ended."""

SENT_WITHIN = 1.0
"""Seconds in which a blocking connection takes the changes of a subscription; else it has ended."""


def topic_transport(runtime: Runtime, topics: Topics) -> MakeTransport:
    """Return the factory of transports that follow ``topics``; those to sentinels do not."""
    usual = single_transport(runtime)
    kind = BlockingTopics if runtime.flavor is Flavor.SYNC else AioTopics

    def make(
        runtime: Runtime, settings: Any, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        if settings.mode == "sentinel":
            return usual(runtime, settings, channel, on_message, on_silence)

        def silence() -> None:
            topics.lost()
            on_silence()

        return kind(runtime, settings, channel, on_message, silence, topics)

    return make


# --- blocking ----------------------------------------------------------------------------------------------------


class TopicConnection(Connection):
    """The connection of a subscription."""

    topics: Topics | None = None

    def _confirms(self, push: list[Any]) -> bool:
        if self.topics is not None:
            self.topics.push(self, push)
        return push[0] in CONFIRMATIONS


class Flusher:
    """Holds the reader's place while a thread sends; see `leasehold.stores.redis.connection.base.Subscriber`."""

    news = False
    lease = math.inf

    def ready(self, runtime: Runtime) -> Signal:
        return runtime.signal()

    def set(self) -> None: ...


class TopicChannel(Channel):
    """The subscription of a blocking client, which also changes its channels."""

    owner: BlockingTopics
    _sending: Connection | None = None  # where changes that count as sent may not be: a signal handler has raised

    def flush(self) -> None:
        """Send the changes; if a thread reads, wake it to do so."""
        me: Flusher | None = None
        connection: Connection | None = None
        try:
            with self._mutex:
                connection = self._connection
                if self._reading is None:
                    me = Flusher()  # before it takes the place: an interrupt must find it below
                    self._reading, self._reader = me, threading.get_ident()
            if connection is None:
                return
            if me is not None:
                self._send_changes(connection)
            elif (wake_up := self._wake_up) is not None:
                wake_up.set()
        except (*SILENT, ValueError):
            self._drop(connection)
            self._on_silence()
        finally:
            if me is not None:
                self._stop_reading(me)

    def _receive(self, connection: Connection, left: float) -> None:
        self._send_changes(connection)
        super()._receive(connection, left)

    def _send_changes(self, connection: Connection) -> None:
        if self._connection is not connection:
            return
        if self._sending is connection:
            raise EOFError("a change of its channels was interrupted")  # the next connection has them all
        self._sending = connection
        if changes := self.owner.topics.changes(self.owner, connection):
            connection.send_all(b"".join(command for command, _ in changes), self._runtime.now() + SENT_WITHIN)
            connection.pending.extend((answered, math.inf, math.inf) for _, answered in changes)
        self._sending = None


class BlockingTopics(BlockingTransport):
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(self, runtime: Runtime, settings: Any, *rest: Any) -> None:
        *usual, self.topics = rest
        super().__init__(runtime, settings, *usual)
        self.topics.attach(self)

    def _forget(self) -> None:
        super()._forget()
        self._subscription = channel = TopicChannel(self._runtime, self._subscribed, self.where, self._on_silence)
        channel.owner = self
        self.flush = channel.flush
        self.listen, self.receive, self.notify = channel.open, channel.receive, channel.notify
        self.has_unread = channel.has_unread

    async def _subscribed(self, within: float) -> Connection:
        connection = await self.connect(within)
        if isinstance(connection, TopicConnection):
            connection.topics = self.topics
        return connection

    def _take_over(self, made: Any) -> Connection:
        return TopicConnection(made, self._runtime, self.where, self._on_message)


# --- asyncio -----------------------------------------------------------------------------------------------------


class AioTopicConnection(AioConnection):
    """The connection that all tasks share, for calls and messages alike."""

    topics: Topics

    def _confirms(self, push: list[Any]) -> bool:
        self.topics.push(self, push)
        return push[0] in CONFIRMATIONS


class AioTopics(AioTransport):
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(self, runtime: Runtime, settings: Any, *rest: Any) -> None:
        *usual, self.topics = rest
        super().__init__(runtime, settings, *usual)
        self.topics.attach(self)

    def flush(self) -> None:
        """Send the changes, if there is a connection that is subscribed."""
        connection = self._live()
        if isinstance(connection, AioTopicConnection) and connection.generation:
            for command, answered in self.topics.changes(self, connection):
                connection.post(command, ANSWER_WITHIN, answered)

    async def _subscribe(self, connection: AioConnection, within: float) -> None:
        """Subscribe to nothing: the channels follow by `flush`."""

    def _take_over(self, made: Any) -> AioConnection:
        connection = AioTopicConnection(made, self.where, self._on_message, self._on_silence, self._lost)
        connection.topics = self.topics
        return connection
