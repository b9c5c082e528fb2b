"""Bare connections for the floors: a blocking socket, and an asyncio protocol that joins the writes of a turn."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

import hiredis

from leasehold.stores.redis.connection.base import ReplyError, pack
from leasehold_lab.bench.subjects.base import Scope


class Line:
    """A blocking connection: one command out, one reply in."""

    def __init__(self, scope: Scope) -> None:
        self._socket = socket.create_connection(scope.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)
        for command in greeting(scope):
            if isinstance(said := self.call(command), ReplyError):
                raise said

    def call(self, command: bytes) -> Any:
        """Send a packed command and return its reply."""
        self._socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    @property
    def descriptor(self) -> int:
        """The socket's, to wait for replies on it."""
        return self._socket.fileno()

    def send(self, command: bytes) -> None:
        """Send a packed command; `reply` will have its reply."""
        self._socket.sendall(command)

    def reply(self) -> list[Any]:
        """Read what has come, or wait for it; return the replies that are complete."""
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._reader.feed(data)
        replies = list[Any]()
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Protocol(asyncio.Protocol):
    """An asyncio connection: the first command of a loop's turn leaves at once, the others joined at its end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._joined: list[bytes] = []
        self._wrote = False
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, scope: Scope) -> Protocol:
        """Connect and say who we are."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, *scope.address)
        for command in greeting(scope):
            if isinstance(said := await protocol.call(command), ReplyError):
                raise said
        return protocol

    def call(self, command: bytes) -> asyncio.Future[Any]:
        """Send a packed command; the future has its reply."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append(answer)
        if self._wrote:
            self._joined.append(command)
        else:
            self._wrote = True
            self._transport.write(command)
            self._loop.call_soon(self._flush)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """Take the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer in order."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(reply)

    def _flush(self) -> None:
        self._wrote = False
        if self._joined:
            self._transport.write(b"".join(self._joined))
            self._joined.clear()


def greeting(scope: Scope) -> list[bytes]:
    """Return the commands that begin a connection."""
    commands: list[bytes] = []
    if scope.credentials is not None:
        user, password = scope.credentials
        commands.append(pack(b"AUTH", user.encode(), password.encode()))
    if scope.database:
        commands.append(pack(b"SELECT", b"%d" % scope.database))
    return commands
