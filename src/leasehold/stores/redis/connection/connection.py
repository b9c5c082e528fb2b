"""One blocking connection: bytes out, replies in, each within its time."""

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
"""Bytes read at once."""

LONGER = 8
"""Times the limit that the kernel knows for which a call may take longer without telling it: it then reads again."""

ESTABLISHED = b"\x01"
"""The state of a TCP connection that neither side has closed: the first byte of what TCP_INFO tells."""

TOO_SLOW = "it answered too slowly"

GONE = "it closed the connection"

SILENT = (OSError, EOFError, hiredis.ProtocolError)
"""What a connection raises on which no more answers come."""


class Connection:
    """One connection that redis-py made, read and written without it.

    The kernel itself ends a read or write that takes too long, where it can: with Python's own time limits each of them
    would be two system calls, and let other threads in twice.
    """

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self._connection = connection
        self._now = runtime.now
        self.socket: socket.socket = connection._get_socket()
        self.reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)
        self._within = 0.0
        self._plain = type(self.socket) is socket.socket and sys.platform != "win32"  # TLS has its own waiting
        if self._plain:
            self.socket.settimeout(None)
        self._tcp = sys.platform == "linux" and self.socket.family in (socket.AF_INET, socket.AF_INET6)

    def ask(self, command: bytes, within: float) -> Any:
        """Send one command and read its reply."""
        if not self._within <= within <= LONGER * self._within or not self._plain:
            self._allow(within)
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
                self._allow(left)  # the kernel's limit was that of a shorter call
                continue
            if not data:
                raise EOFError(GONE)
            reader.feed(data)
            reply = reader.gets()
            if reply is False and self._now() > until:
                raise TimeoutError(TOO_SLOW)
        return reply

    def exchange(self, commands: bytes, replies: int, within: float) -> list[Any]:
        """Send several commands at once and read so many replies."""
        self._allow(within)
        until = self._now() + within
        answers: list[Any] = []
        try:
            self.socket.sendall(commands)
            while len(answers) < replies:
                reply = self.reader.gets()
                if reply is False:
                    self._still(until)
                else:
                    answers.append(reply)
        except BlockingIOError:
            raise TimeoutError(TOO_SLOW) from None
        return answers

    def usable(self) -> bool:
        """Say whether the server has not closed it meanwhile, and sent nothing unasked."""
        if not self._tcp:
            return self.quiet()
        # Does not let other threads in, as poll does; whoever sends something unasked closes, too.
        state: bytes = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state == ESTABLISHED

    def quiet(self) -> bool:
        """Say whether nothing came unasked, neither bytes nor an end of file."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def feed(self) -> None:
        """Read what has come, or comes next.

        Raises:
            EOFError: the server closed the connection.
        """
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError(GONE)
        self.reader.feed(data)

    def hang_up(self) -> None:
        """End the connection while another thread waits on it: that one finds out, and closes it."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # of TLS it touches nothing
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection; no other thread may wait on it."""
        self._connection.disconnect()

    def _still(self, until: float) -> None:
        """Read on, if there is time."""
        if self._now() > until:
            raise TimeoutError(TOO_SLOW)
        self.feed()

    def _allow(self, within: float) -> None:
        """Set for how long a read or write may take."""
        self._within = within
        if not self._plain:
            self.socket.settimeout(max(within, 0.001))
            return
        seconds, rest = divmod(max(round(within * 1e6), 1000), 1_000_000)
        span = struct.pack("ll", seconds, rest)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
