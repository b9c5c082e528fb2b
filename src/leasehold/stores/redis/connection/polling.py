"""Waiting for the replies of several servers, in the thread that has sent the commands."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable

from leasehold.stores.redis.connection.pipelining import PipelinedConnection


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


def wait_for_replies(connections: Iterable[PipelinedConnection], wake_up: WakeUp | None, seconds: float) -> None:
    """Wait until a connection has replies or the wait is ended, at most so many seconds, and read the replies."""
    poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
    by_descriptor: dict[int, PipelinedConnection] = {}
    for pipelined in connections:
        if pipelined.pending:
            by_descriptor[pipelined.fd] = pipelined
            poll.register(pipelined.fd, select.POLLIN | select.POLLOUT if pipelined.full else select.POLLIN)
    if wake_up is not None:
        poll.register(wake_up.fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        if fd in by_descriptor:
            by_descriptor[fd].read()
        elif wake_up is not None:
            wake_up.clear()
