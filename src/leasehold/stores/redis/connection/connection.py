"""One blocking connection: it sends commands and reads their replies, each within a time limit."""

from __future__ import annotations

import _socket
import select
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import hiredis
from hiredis import PushNotification

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import OnMessage, no_answer
from leasehold.stores.redis.connection.replies import GONE, TOO_SLOW, Replies

CHUNK = 65_536
"""Bytes of one read."""

SOON = 0.005
"""Seconds for which a read waits in the kernel alone, so that poll waits for the rest.

Each signal begins them anew: calls and waits keep their time limits at up to 200 signals a second.
"""

AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""The flag of a send that does not wait for room in the buffer; Windows has none, and needs none here."""

IN_USE = 0.010
"""Seconds after the start of its last call for which a connection is not looked at.

A look is a system call, and short blocks would pay for it twice. Without it, a release at a server that is gone counts
as one without an answer.
"""

ESTABLISHED = b"\x01"
"""The state of a TCP connection that neither side has closed: the first byte of TCP_INFO."""

SILENT = (OSError, EOFError, hiredis.ProtocolError)
"""What is raised on a connection that gives no more replies."""


class Connection(Replies):
    """One connection that redis-py opened; our code alone reads and writes it.

    Where possible a write and a read are one system call each, which most often has not to wait, or only for moments.
    With Python's own time limits each of them would be two, and would release the interpreter lock twice.
    """

    def __init__(self, connection: Any, runtime: Runtime, where: str, on_message: OnMessage) -> None:
        super().__init__(where, on_message)
        self._connection = connection
        self.now = runtime.now
        self.socket: socket.socket = connection._sock
        self._used = 0.0  # boot-time clock at the start of its last call
        self._send, self._recv = self.socket.send, self.socket.recv
        # TLS and gevent need Python's time limits.
        self.plain = (
            type(self.socket) is socket.socket and isinstance(self.socket, _socket.socket) and sys.platform != "win32"
        )
        if self.plain:
            self.socket.settimeout(None)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, round(SOON * 1e6)))
        tcp = sys.platform == "linux" and self.socket.family in (socket.AF_INET, socket.AF_INET6)
        # Unlike poll, this keeps the interpreter lock. A server that sends something unrequested also closes.
        self.state: Callable[[], bytes] = (
            partial(self.socket.getsockopt, socket.IPPROTO_TCP, socket.TCP_INFO, 1) if tcp else self._polled
        )
        """Returns `ESTABLISHED` unless the server has closed the connection since the last reply."""

    def established(self, now: float) -> bool:
        """Record the start of a call; return False if the server is known to have closed the connection."""
        before, self._used = self._used, now
        return now - before < IN_USE or self.state() == ESTABLISHED

    def exchange(self, commands: bytes, count: int, until: float) -> list[Any]:
        """Send commands in one write, and return their replies, so many, until a reading of the clock.

        Raises:
            StoreUnavailable: they did not all come in time. A late one may: the connection must not be used any more.
        """
        replies: list[Any] = []
        try:
            self.send_all(commands, until)
            while True:
                try:
                    data = self._recv(CHUNK)
                except BlockingIOError:
                    self._wait_for(select.POLLIN, until)
                    continue
                if not data:
                    raise EOFError(GONE)
                self._reader.feed(data)
                # Read here, not by callbacks: a thread that owns its connection needs no list of pending commands.
                while (reply := self._reader.gets()) is not False:
                    if not isinstance(reply, PushNotification) or self._confirms(reply):
                        replies.append(reply)
                        if len(replies) == count:
                            return replies
                if self.now() > until:
                    raise TimeoutError(TOO_SLOW)
        except SILENT as error:
            raise no_answer(self.where, error, unknown=True) from error

    def quiet(self) -> bool:
        """Return whether nothing has come, neither bytes nor an end of file."""
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLIN)
        except ValueError:  # another thread has closed it just now
            return False
        return not poll.poll(0)

    def ended(self) -> bool:
        """Return whether there is nothing left to read; called if it is not `quiet`."""
        try:
            return not socket.socket.recv(self.socket, 1, socket.MSG_PEEK | AT_ONCE)  # leaves the TLS state alone
        except OSError:
            return True

    def receive(self) -> bool:
        """Take the bytes that have come, or wait for the next ones; return whether there may be more now.

        Raises:
            OSError: there are none, and it does not block; or the connection has ended, also as EOFError.
        """
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError(GONE)
        self.data_received(data)
        return self.open and (len(data) == CHUNK or not self.plain)  # TLS keeps bytes that it has decrypted

    def hang_up(self) -> None:
        """Shut the connection down while another thread waits on it; that thread gets an error, and closes it."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # leaves the TLS state alone
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection; no other thread may wait on it."""
        self._connection.disconnect()

    def end(self, why: object) -> None:
        """Close the connection, and report to all pending commands that no reply will come."""
        self.close()
        super().end(why)

    def _polled(self) -> bytes:
        return ESTABLISHED if self.quiet() else b""

    def send_all(self, commands: bytes, until: float) -> None:
        """Send commands; most often there is room for all at once.

        Raises:
            OSError: there was not by then.
        """
        if not self.plain:
            self.socket.settimeout(max(until - self.now(), 0.001))
            self.socket.sendall(commands)
            return
        while commands:
            try:
                commands = commands[self._send(commands, AT_ONCE) :]
            except BlockingIOError:
                self._wait_for(select.POLLOUT, until)

    def _wait_for(self, event: int, until: float) -> None:
        """Wait until the socket is ready, however many signals arrive meanwhile.

        Raises:
            TimeoutError: it is not by then.
        """
        poll = select.poll()
        poll.register(self.socket, event)
        left = until - self.now()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError(TOO_SLOW)


class WakeUp:
    """Ends another thread's wait."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)

    @property
    def fd(self) -> int:
        """The descriptor that becomes readable when it is set."""
        return self._ends[0].fileno()

    def set(self) -> None:
        """End the wait, from any thread."""
        try:
            self._ends[1].send(b"!")
        except OSError:  # it is full, so set already, or closed
            pass

    def clear(self) -> None:
        """Reset it."""
        try:
            self._ends[0].recv(4096)
        except OSError:  # another thread has
            pass

    def close(self) -> None:
        """Close both ends."""
        for end in self._ends:
            end.close()
