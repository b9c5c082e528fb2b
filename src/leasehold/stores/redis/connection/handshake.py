"""What both transports to one server do alike: connect, check the server, and subscribe to the client's channel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import redis

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import (
    HELLO,
    HandshakeAborted,
    OnMessage,
    OnSilence,
    ReplyError,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.stores.redis.connection.replies import Replies
from leasehold.stores.redis.connection.settings import Settings, check_handshake, connect_error, speaks_resp2

C = TypeVar("C", bound=Replies)


class ServerTransport(ABC, Generic[C]):
    """The part of a `Transport` that both flavors share, generic in the class of their connections."""

    flavor: ClassVar[Flavor]

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._facts: dict[str, str] = {}
        self._forget()

    def _forget(self) -> None:
        """Begin without connections, as at first and in a forked child."""
        self._closed = False

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    def set_channel(self, channel: bytes) -> None:
        self._channel = channel

    def facts(self) -> dict[str, str]:
        return self._facts

    async def connect(self, within: float) -> C:
        """Open a connection and check the server; retry once if it drops the connection during the handshake.

        A server that accepts connections and is silent must not take all of the caller's time if it may have a
        successor by then.

        Raises:
            StoreUnavailable: no usable server replied; no command was sent.
        """
        within = self._settings.attempt_within(within)
        until = self._runtime.now() + within
        try:
            return await self._connect(within)
        except HandshakeAborted:
            left = until - self._runtime.now()
            if left <= 0:
                raise
        return await self._connect(left)

    async def _connect(self, within: float) -> C:
        made, until = self._settings.connection(self.flavor, within), self._runtime.now() + within
        if self._closed:
            raise self._no_answer("the client is closed")
        failed: Exception | None = None
        try:
            await self._open(made, within)
        except (redis.RedisError, OSError, ValueError) as error:
            failed = connect_error(error, self.where)
        except AttributeError as error:
            if error.name != "get":
                raise
            failed = speaks_resp2(self.where)  # redis-py looks into the reply to HELLO, which is no map
        if failed is not None:
            raise failed  # outside `except`, so without context: local variables in redis-py's frames show the password
        connection = self._take_over(made)
        try:
            (hello,) = await self._exchange(connection, [HELLO], max(until - self._runtime.now(), 0.001))
            self._facts = check_handshake(hello, self._settings)
        except BaseException as error:
            await self._end(connection)
            if isinstance(error, StoreUnavailable) and error.unknown:
                raise HandshakeAborted(str(error)) from None
            raise
        return connection

    async def _subscribe(self, connection: C, within: float) -> None:
        commands = subscriptions(self._channel, version_of(self._facts))
        for reply in await self._exchange(connection, commands, within):
            if isinstance(reply, ReplyError):
                raise refused(self.where, reply, str(self._settings.options.get("host", "")))

    def _no_answer(self, why: str) -> StoreUnavailable:
        """Return the error of a call that has sent nothing."""
        return no_answer(self.where, why, unknown=False)

    @abstractmethod
    async def _open(self, made: Any, within: float) -> None:
        """Connect a connection of redis-py, which authenticates; close it if that fails."""

    @abstractmethod
    def _take_over(self, made: Any) -> C:
        """Return our connection on the socket of redis-py's."""

    @abstractmethod
    async def _exchange(self, connection: C, commands: Sequence[bytes], within: float) -> Sequence[Any]:
        """Send commands and return their replies."""

    @abstractmethod
    async def _end(self, connection: C) -> None:
        """Close a connection."""
