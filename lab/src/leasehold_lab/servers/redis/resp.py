"""A minimal client of the Redis protocol, so that test servers need no driver."""

from __future__ import annotations

import socket
from typing import BinaryIO

Reply = str | int | None | list["Reply"]


class RedisError(Exception):
    """The server's answer was an error; its text is the message."""


class Connection:
    """A blocking connection: one command, one reply. Text is UTF-8."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self._replies: BinaryIO = stream.makefile("rb")

    def command(self, *words: str | bytes | int) -> Reply:
        """Send a command and return its reply.

        Raises:
            RedisError: the server refused.
            OSError: the connection broke.

        """
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        sized = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(b"*%d\r\n" % len(parts) + sized)
        return self._reply()

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self.socket.close()

    def _reply(self) -> Reply:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        mark, text = line[:1], line[1:-2].decode(errors="replace")
        if mark == b"-":
            raise RedisError(text)
        if mark == b"+":
            return text
        size = int(text)
        if mark == b":":
            return size
        if size < 0:
            return None
        if mark == b"*":
            return [self._reply() for _ in range(size)]
        return self._replies.read(size + 2)[:-2].decode(errors="replace")
