"""Pipelining: a command is sent without waiting for its reply, which goes to a callback.

Theory of operation
-------------------
A caller of several servers must not wait for each in turn, and needs no thread for each. It posts to all, and then
reads the replies as they come. A connection replies in order. So a reply that its caller no longer waits for is read
before the next one, by the next user of the connection. Until then it is pending at its `PipelinedConnection`.

In blocking code a connection belongs to one thread at a time. The thread takes it, posts, reads until it has enough
replies, and gives it back, with replies pending or not. If no other thread takes it, the background thread reads the
pending replies (`read`). If a thread is interrupted while it writes or reads, the state of the connection is unknown:
it is closed, and all pending replies are reported as lost. Connecting takes time, so callers do not connect: the
background thread does (`add`).

Under asyncio the client's one connection does all this already.
"""

from __future__ import annotations

import select
import ssl
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, runtime_checkable

from leasehold._runtimes.base import finish
from leasehold.stores.redis.connection.base import no_answer
from leasehold.stores.redis.connection.connection import SILENT, Connection, WakeUp
from leasehold.stores.redis.connection.replies import GONE, TOO_SLOW, OnReply, PendingReply

MOST_CONNECTIONS = 32
"""Most connections of one client to one server for pipelining."""

MOST_PENDING = 256
"""Most pending replies of one connection; above that no command is posted on it."""

NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a non-blocking socket raises instead of waiting."""


@runtime_checkable
class Pipelining(Protocol):
    """A transport that also posts commands. Used from many threads at once."""

    def post(self, command: bytes, until: float, answered: OnReply, taken: list[PipelinedConnection], /) -> bool:
        """Send a packed command if that is possible at once; return False if not: then nothing was sent.

        Args:
            command: what to send.
            until: boot-time clock after which the reply counts as lost.
            answered: called in the thread or loop that reads the reply. A `StoreUnavailable` is always `unknown`.
            taken: gets the connection, which the caller must read and then give back; nothing under asyncio.
        """
        ...

    def add(self, within: float, /) -> None:
        """Open one more connection, if none is idle and there may be more; blocks for ``within`` seconds at most.

        Raises:
            StoreUnavailable: the server does not reply.
        """
        ...

    def read(self, now: float, /) -> bool:
        """Read the replies on idle connections, and give up the late ones; return whether more are pending."""
        ...


class PipelinedConnection:
    """A connection that is written and read without blocking. For one thread at a time."""

    __slots__ = ("__weakref__", "_connection", "_home", "_unsent", "fd", "pending", "sound")

    def __init__(self, connection: Connection, home: PipelinedConnections) -> None:
        connection.socket.setblocking(False)
        self._connection = connection
        self._home = home
        self._unsent = b""
        self.fd = connection.socket.fileno()
        self.pending = connection.pending
        self.sound = True  # whether the last write or read was completed; else its state is unknown

    @property
    def open(self) -> bool:
        """Whether replies may still come."""
        return self._connection.open

    @property
    def full(self) -> bool:
        """Whether a command is only partly sent: the rest follows when the send buffer has room."""
        return bool(self._unsent)

    def post(self, command: bytes, until: float, answered: OnReply) -> None:
        """Send a command. A failure is reported to all pending callbacks, this one among them."""
        self.sound = False
        self.pending.append((answered, until, until))  # first: a reply without a callback would go to the next one
        self._unsent += command
        self._send_on()
        self.sound = True

    def read(self) -> None:
        """Send what is unsent, read the replies that have come, and call their callbacks."""
        self.sound = False
        if self._unsent:
            self._send_on()
        connection = self._connection
        try:
            while connection.open and connection.receive():
                pass
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)
        self.sound = True

    def usable(self) -> bool:
        """Return whether it is open, as far as is known here."""
        connection = self._connection
        return connection.open and (bool(self.pending) or connection.established(connection.now()))

    def end(self, why: object) -> None:
        """Close it, and report to all pending callbacks that no reply will come."""
        self._unsent = b""
        self._connection.end(why)

    def give_back(self) -> None:
        """Let other threads use it, with replies pending or not."""
        self._home.give(self)

    def _send_on(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.socket.send(self._unsent) :]
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)

    def __del__(self) -> None:
        if self.pending:  # an interrupt came after it was taken; the next `read` reports the loss
            self._home.orphans.extend(self.pending)


_pop: Callable[[list[PipelinedConnection]], PipelinedConnection] = list[PipelinedConnection].pop


class PipelinedConnections:
    """See `Pipelining`. The connections to one server, for all threads of a client."""

    def __init__(self, where: str, connect: Callable[[float], Coroutine[Any, Any, Connection]]) -> None:
        self.where = where
        self.orphans: list[PendingReply] = []
        self._connect = connect
        self._idle: list[PipelinedConnection] = []
        self._all: weakref.WeakSet[PipelinedConnection] = weakref.WeakSet()
        self._closed = False

    def post(self, command: bytes, until: float, answered: OnReply, taken: list[PipelinedConnection]) -> bool:
        while True:
            try:
                # Removed and recorded in one step of the interpreter, so that no interrupt comes between.
                taken.extend(map(_pop, (self._idle,)))
            except IndexError:
                return False
            pipelined = taken[-1]
            if pipelined.usable():
                if len(pipelined.pending) >= MOST_PENDING:
                    return False
                pipelined.post(command, until, answered)
                return True
            taken.pop()
            pipelined.end(GONE)

    def add(self, within: float) -> None:
        if self._closed or len(self._all) >= MOST_CONNECTIONS or any(not one.pending for one in self._idle):
            return
        pipelined = PipelinedConnection(finish(self._connect(within)), self)
        self._all.add(pipelined)
        self.give(pipelined)

    def read(self, now: float) -> bool:
        for pipelined in [pipelined for pipelined in self._idle if pipelined.pending]:
            try:
                self._idle.remove(pipelined)
            except ValueError:  # another thread has taken it
                continue
            pipelined.read()
            if pipelined.pending and pipelined.pending[0][1] < now:
                pipelined.end(TOO_SLOW)
            self.give(pipelined)
        while self.orphans:
            self.orphans.pop()[0](None, no_answer(self.where, "the call was interrupted", unknown=True))
        return any(pipelined.pending for pipelined in self._idle)

    def give(self, pipelined: PipelinedConnection) -> None:
        """Take a connection back."""
        if self._closed or not pipelined.sound:
            pipelined.end("the client is closed" if self._closed else "the call was interrupted")
        if pipelined.open:
            self._idle.append(pipelined)
            if self._closed:
                self.hang_up()  # `close` may have run just before the append

    def hang_up(self) -> None:
        """Close the idle connections."""
        while self._idle:
            try:
                pipelined = self._idle.pop()
            except IndexError:  # another thread has taken it
                return
            pipelined.end("the client is closed" if self._closed else "the client left it for another server")

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self.hang_up()


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
