"""Waits for replies of several servers at once, in the thread that sent the requests."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable

from leasehold.stores.redis.connection.pipelining import PipelinedConnection


class WakeUp:
    """Wakes another thread from its wait."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)

    @property
    def fd(self) -> int:
        """The descriptor that becomes readable when it is set."""
        return self._ends[0].fileno()

    def set(self) -> None:
        """Wake the waiting thread; callable from any thread."""
        try:
            self._ends[1].send(b"!")
        except OSError:  # it is set already, or nobody waits any more
            pass

    def clear(self) -> None:
        """Clear it."""
        try:
            self._ends[0].recv(4096)
        except OSError:  # it was cleared already
            pass

    def close(self) -> None:
        """Close its sockets."""
        for end in self._ends:
            end.close()


def wait_for_replies(connections: Iterable[PipelinedConnection], wake_up: WakeUp | None, seconds: float) -> None:
    """Wait until a connection or ``wake_up`` is readable, at most ``seconds``, and read it."""
    poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
    by_fd: dict[int, PipelinedConnection] = {}
    for pipelined in connections:
        if pipelined.pending:
            by_fd[pipelined.fd] = pipelined
            poll.register(pipelined.fd, select.POLLIN | select.POLLOUT if pipelined.full else select.POLLIN)
    if wake_up is not None:
        poll.register(wake_up.fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        if fd in by_fd:
            by_fd[fd].read()
        elif wake_up is not None:
            wake_up.clear()
