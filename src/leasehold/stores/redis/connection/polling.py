"""Waiting for several servers at once, in the thread that has asked them."""

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
        """What becomes readable when it rings."""
        return self._ends[0].fileno()

    def set(self) -> None:
        """Ring, from any thread."""
        try:
            self._ends[1].send(b"!")
        except OSError:  # it has rung often enough, or nobody waits any more
            pass

    def clear(self) -> None:
        """Take note that it rang."""
        try:
            self._ends[0].recv(4096)
        except OSError:  # somebody has
            pass

    def close(self) -> None:
        """Close it."""
        for end in self._ends:
            end.close()


def wait_for_replies(connections: Iterable[PipelinedConnection], wake_up: WakeUp | None, seconds: float) -> None:
    """Wait until a pipe or the bell has something, at most so long, and read it."""
    poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
    those: dict[int, PipelinedConnection] = {}
    for pipelined in connections:
        if pipelined.pending:
            those[pipelined.fd] = pipelined
            poll.register(pipelined.fd, select.POLLIN | select.POLLOUT if pipelined.full else select.POLLIN)
    if wake_up is not None:
        poll.register(wake_up.fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        if fd in those:
            those[fd].read()
        elif wake_up is not None:
            wake_up.clear()
