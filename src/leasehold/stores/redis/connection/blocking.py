"""The blocking transport: one connection for each concurrent call, and one for the client's channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import (
    HELLO,
    HandshakeAborted,
    OnMessage,
    OnSilence,
    ReplyError,
    Subscriber,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.stores.redis.connection.channel import Channel
from leasehold.stores.redis.connection.connection import SILENT, Connection
from leasehold.stores.redis.connection.settings import Settings, check_handshake, connect_error

IDLE_CONNECTIONS = 32
"""Connections kept open for later calls; further ones are closed after use."""


class BlockingTransport:
    """See `leasehold.stores.redis.connection.base.Transport`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._idle: list[Connection] = []
        self._closed = False
        self._facts: dict[str, str] = {}
        self._subscriptions = Channel(runtime, self.subscribed, settings.where, channel, on_message, on_silence)

    async def call(self, command: bytes, *, within: float) -> Any:
        connection = self._take_idle() or self.connect(within)
        try:
            answer = connection.ask(command, within)
        except BaseException as error:
            self._discard(connection, error)
            raise
        self._put_back(connection)
        return answer

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        connection = self._take_idle() or self.connect(within)
        try:
            answers = connection.exchange(b"".join(commands), len(commands), within)
        except BaseException as error:
            self._discard(connection, error)
            raise
        self._put_back(connection)
        return answers

    async def listen(self, within: float) -> int:
        return self._subscriptions.open(within)

    def generation(self) -> int:
        return self._subscriptions.generation

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        await self._subscriptions.receive(subscriber, timeout)

    def notify(self, subscriber: Subscriber) -> None:
        self._subscriptions.notify(subscriber)

    def has_unread(self) -> bool:
        return self._subscriptions.has_unread()

    def hang_up(self) -> None:
        self._drop_idle()
        self._subscriptions.hang_up()

    def set_channel(self, channel: bytes) -> None:
        self._subscriptions.channel = channel

    def facts(self) -> dict[str, str]:
        return self._facts

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        self._subscriptions.close()

    def after_fork(self, channel: bytes) -> None:
        self._idle = []  # dropped, not shut down: the parent goes on using the sockets
        self._closed = False
        self._subscriptions.after_fork(channel)

    def connect(self, within: float) -> Connection:
        """Open a connection and check the server; retry once if it drops the connection during the handshake.

        Raises:
            StoreUnavailable: no usable server replied; no command was sent.
        """
        until = self._runtime.now() + within
        try:
            return self._connect(within)
        except HandshakeAborted:
            left = until - self._runtime.now()
            if left <= 0:
                raise
        return self._connect(left)

    def _connect(self, within: float) -> Connection:
        connection, until = self._settings.connection(Flavor.SYNC, within), self._runtime.now() + within
        where = self._settings.where
        if self._closed:
            raise no_answer(where, "the client is closed", unknown=False)
        failed: Exception | None = None
        try:
            connection.connect()
        except (redis.RedisError, OSError, ValueError) as error:
            failed = connect_error(error, where)
        if failed is not None:
            raise failed  # outside `except`, so without context: local variables in redis-py's frames show the password
        connection = Connection(connection, self._runtime)
        try:
            hello = connection.ask(HELLO, max(until - self._runtime.now(), 0.001))
            self._facts = check_handshake(hello, self._settings)
        except BaseException as error:
            connection.close()
            if isinstance(error, StoreUnavailable) or not isinstance(error, SILENT):
                raise
            gone = no_answer(where, error, unknown=False)
            raise gone if isinstance(error, TimeoutError) else HandshakeAborted(str(gone)) from error
        return connection

    def subscribed(self, channel: bytes, within: float) -> Connection:
        """Open a connection that is subscribed to ``channel``."""
        connection, where = self.connect(within), self._settings.where
        try:
            commands = subscriptions(channel, version_of(self._facts))
            for reply in connection.exchange(b"".join(commands), len(commands), within):
                if isinstance(reply, ReplyError):
                    raise refused(where, reply)
        except BaseException as error:
            connection.close()
            if isinstance(error, SILENT) and not isinstance(error, StoreUnavailable):
                raise no_answer(where, error, unknown=False) from error
            raise
        return connection

    def _discard(self, connection: Connection, error: BaseException) -> None:
        """Close a connection on which a reply may still come: no other call must ever read it."""
        connection.close()
        if isinstance(error, SILENT):
            self._drop_idle()  # they go to the same server, and each would cost another failed attempt
            raise no_answer(self._settings.where, error, unknown=True) from error

    def _put_back(self, connection: Connection) -> None:
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._drop_idle()  # `close` may have run just before the append

    def _take_idle(self) -> Connection | None:
        """Return an idle connection that the server has not closed meanwhile; None if there is none."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.usable():
                return connection
            connection.close()

    def _drop_idle(self) -> None:
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()  # removed before it is closed: another thread may take one at the same time
            except IndexError:  # it was the last
                return
            connection.close()
