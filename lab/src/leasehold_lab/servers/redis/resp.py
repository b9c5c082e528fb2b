"""The least of the Redis protocol that it takes to ask a server about itself, without a driver."""

from __future__ import annotations

import socket
from typing import BinaryIO

Reply = str | int | None | list["Reply"]


class RedisError(Exception):
    """The server's answer was an error; its text is the message."""


class Connection:
    """A blocking connection: one command, one reply. Text is UTF-8."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._replies: BinaryIO = link.makefile("rb")

    def command(self, *words: str | bytes | int) -> Reply:
        """Send a command and return its reply.

        Raises:
            RedisError: the server refused.
            OSError: the connection broke.

        """
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        sized = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.link.sendall(b"*%d\r\n" % len(parts) + sized)
        return self._reply()

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self.link.close()

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
