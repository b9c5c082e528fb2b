"""One blocking connection: sends commands and reads replies, each within a time limit."""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Any

import hiredis

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import ReplyError

CHUNK = 65_536
"""Bytes of one read."""

LONGER = 8
"""How many times longer than the kernel's time limit a call may take without setting a new one; it then reads again."""

ESTABLISHED = b"\x01"
"""The state of a TCP connection that neither side has closed: the first byte of TCP_INFO."""

TOO_SLOW = "it answered too slowly"

GONE = "it closed the connection"

SILENT = (OSError, EOFError, hiredis.ProtocolError)
"""What is raised on a connection that gives no more replies."""


class Connection:
    """One connection that redis-py opened; our code alone reads and writes it.

    Where possible the kernel ends a read or write that takes too long. With Python's own time limits each of them would
    be two system calls, and would release the interpreter lock twice.
    """

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self._connection = connection
        self._now = runtime.now
        self.socket: socket.socket = connection._get_socket()
        self.reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)
        self._within = 0.0
        self._plain = type(self.socket) is socket.socket and sys.platform != "win32"  # TLS needs Python's time limits
        if self._plain:
            self.socket.settimeout(None)
        self._tcp = sys.platform == "linux" and self.socket.family in (socket.AF_INET, socket.AF_INET6)

    def ask(self, command: bytes, within: float) -> Any:
        """Send one command and read its reply."""
        if not self._within <= within <= LONGER * self._within or not self._plain:
            self._limit(within)
        reader, until = self.reader, self._now() + within
        try:
            self.socket.sendall(command)
        except BlockingIOError:
            raise TimeoutError(TOO_SLOW) from None
        reply: Any = False
        while reply is False:
            try:
                data = self.socket.recv(CHUNK)
            except BlockingIOError:
                left = until - self._now()
                if left <= 0:
                    raise TimeoutError(TOO_SLOW) from None
                self._limit(left)  # the kernel's limit was that of a shorter call
                continue
            if not data:
                raise EOFError(GONE)
            reader.feed(data)
            reply = reader.gets()
            if reply is False and self._now() > until:
                raise TimeoutError(TOO_SLOW)
        return reply

    def exchange(self, commands: bytes, replies: int, within: float) -> list[Any]:
        """Send several commands in one write and read so many replies."""
        self._limit(within)
        until = self._now() + within
        answers: list[Any] = []
        try:
            self.socket.sendall(commands)
            while len(answers) < replies:
                reply = self.reader.gets()
                if reply is False:
                    self._read_more(until)
                else:
                    answers.append(reply)
        except BlockingIOError:
            raise TimeoutError(TOO_SLOW) from None
        return answers

    def usable(self) -> bool:
        """Return whether the server has neither closed it meanwhile nor sent anything unrequested."""
        if not self._tcp:
            return self.quiet()
        # Unlike poll, this keeps the interpreter lock. A server that sends something unrequested also closes.
        state: bytes = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state == ESTABLISHED

    def quiet(self) -> bool:
        """Return whether nothing has come, neither bytes nor an end of file."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def feed(self) -> None:
        """Read the bytes that have come, or wait for the next ones.

        Raises:
            EOFError: the server closed the connection.
        """
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError(GONE)
        self.reader.feed(data)

    def hang_up(self) -> None:
        """Shut the connection down while another thread waits on it; that thread gets an error, and closes it."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # leaves the TLS state alone
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection; no other thread may wait on it."""
        self._connection.disconnect()

    def _read_more(self, until: float) -> None:
        """Read more, if there is time."""
        if self._now() > until:
            raise TimeoutError(TOO_SLOW)
        self.feed()

    def _limit(self, within: float) -> None:
        """Set the time limit of reads and writes."""
        self._within = within
        if not self._plain:
            self.socket.settimeout(max(within, 0.001))
            return
        seconds, rest = divmod(max(round(within * 1e6), 1000), 1_000_000)
        span = struct.pack("ll", seconds, rest)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
