"""The blocking transport: one connection for each concurrent call, and one for the client's channel."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from leasehold._runtimes.base import Flavor, finish
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.channel import Channel
from leasehold.stores.redis.connection.connection import Connection
from leasehold.stores.redis.connection.handshake import ServerTransport
from leasehold.stores.redis.connection.pipelining import PipelinedConnections

IDLE_CONNECTIONS = 32
"""Connections kept open for later calls; further ones are closed after use."""


class BlockingTransport(ServerTransport[Connection]):
    """See `leasehold.stores.redis.connection.base.Transport`, and `leasehold.stores.redis.connection.pipelining`."""

    flavor = Flavor.SYNC

    def _forget(self) -> None:
        super()._forget()
        self._now = self._runtime.now
        self._idle: list[Connection] = []  # in a forked child dropped, not shut down: the parent goes on using them
        self._subscription = subscription = Channel(self._runtime, self._subscribed, self.where, self._on_silence)
        self.listen, self.receive, self.notify = subscription.open, subscription.receive, subscription.notify
        self.has_unread = subscription.has_unread
        self._pipelined = pipelined = PipelinedConnections(self.where, self.connect)
        self.post, self.add, self.read = pipelined.post, pipelined.add, pipelined.read

    async def call(self, command: bytes, *, within: float) -> Any:
        return self.ask(command, within)[0]

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        return self.ask(b"".join(commands), within, len(commands)) if commands else []

    def ask(self, commands: bytes, within: float, count: int = 1) -> list[Any]:
        """Send commands on an idle connection, or on a new one.

        A connection that the server is known to have closed is not used: a release on it would count as one without an
        answer. The next server may know nothing of the lock, and its holder must learn that.
        """
        idle, now = self._idle, self._now()
        until = now + within
        try:
            while not (connection := idle.pop()).established(now):
                connection.close()
        except IndexError:
            connection = finish(self.connect(within))
            until = max(until, self._now() + within / 4)  # connecting may be slow; the reply still gets some time
        try:
            replies = connection.exchange(commands, count, until)
        except BaseException as error:
            connection.close()  # a reply may still come, and no other call must ever read it
            if isinstance(error, StoreUnavailable):
                self._drop_idle()  # they go to the same server, and each would cost another failed attempt
            raise
        if len(idle) < IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._drop_idle()  # `close` may have run just before the append
        return replies

    def generation(self) -> int:
        return self._subscription.generation

    def hang_up(self) -> None:
        self._drop_idle()
        self._pipelined.hang_up()
        self._subscription.hang_up()

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        self._pipelined.close()
        self._subscription.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        self._forget()

    async def _subscribed(self, within: float) -> Connection:
        """Open a connection that is subscribed to the client's channel."""
        connection = await self.connect(within)
        try:
            await self._subscribe(connection, within)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop_idle(self) -> None:
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()  # removed before it is closed: another thread may take one at the same time
            except IndexError:  # it was the last
                return
            connection.close()

    # --- connecting --------------------------------------------------------------------------------------------

    async def _open(self, made: Any, within: float) -> None:
        """Connect; the addresses of a name share the time, since redis-py gives it to each of them."""
        until = self._now() + within
        count = _count_addresses(made)
        made.socket_connect_timeout = max(until - self._now(), 0.001) / count
        try:
            made.connect()
        except BaseException:
            made.disconnect()  # redis-py does so after errors of its own alone
            raise

    def _take_over(self, made: Any) -> Connection:
        return Connection(made, self._runtime, self.where, self._on_message)

    async def _exchange(self, connection: Connection, commands: Sequence[bytes], within: float) -> list[Any]:
        return connection.exchange(b"".join(commands), len(commands), self._now() + within)

    async def _end(self, connection: Connection) -> None:
        connection.close()


def _count_addresses(made: Any) -> int:
    """Return how many addresses the host of a connection has; 1 for a Unix socket, or if connecting will report why."""
    host = getattr(made, "host", None)
    if not host:
        return 1
    try:
        return len(socket.getaddrinfo(host, made.port, made.socket_type, socket.SOCK_STREAM)) or 1
    except OSError:
        return 1
