"""Pipelining: sends commands to a server without waiting; whoever reads a reply passes it to a callback.

Theory of operation
-------------------
A caller that asks several servers at once must not wait for each in turn, and needs no thread for each. It sends to
all, and then reads the replies as they arrive. A connection answers in order, so a late reply is read before the next
one, by whoever uses the connection then. A `PipelinedConnection` knows its pending replies.

Blocking: a connection belongs to one thread at a time.

1. The thread takes a connection, sends, and reads until it has what it needs.
2. It gives the connection back, even with pending replies.
3. If no other thread takes it, the background reads the pending replies (`read`).

An interrupt in the middle of a write or a read leaves a connection in an unknown state. It is closed, and all its
pending replies fail. Connecting takes time, so the background does it, too (`add`).

Asyncio: the client's one connection does all this already.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.aio import AioTransport
from leasehold.stores.redis.connection.base import Transport, no_answer
from leasehold.stores.redis.connection.blocking import IDLE_CONNECTIONS, BlockingTransport
from leasehold.stores.redis.connection.connection import CHUNK, SILENT, TOO_SLOW, Connection

MOST_PENDING = 256
"""Pending replies of one connection at most; above that nothing more is sent on it."""

NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of a socket that would have to wait."""

Answered = Callable[[Any, StoreUnavailable | None], None]
"""Called once with the reply, which may be a `ReplyError`, or with the reason why there is none. It must not wait."""


class Pipelining(Protocol):
    """Sends to one server without waiting. Thread-safe."""

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        """Send a packed command if that is possible without waiting; return False if not, and then nothing was sent.

        Args:
            command: the packed command.
            until: boot-time clock after which nobody waits for the reply.
            answered: gets the reply, in the thread or loop that reads it. A `StoreUnavailable` is always `unknown`.
            taken: gets the connection, which the caller reads and then gives back; nothing under asyncio.

        """
        ...

    def add(self, within: float) -> None:
        """Open one more connection if none is idle and there may be more; blocks for ``within`` seconds at most.

        Raises:
            StoreUnavailable: the server does not answer.

        """
        ...

    def read(self, now: float) -> bool:
        """Read late replies, and give up those that are too late; return whether more are pending."""
        ...

    def hang_up(self) -> None:
        """Close the idle connections."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent."""
        ...


@runtime_checkable
class Routing(Protocol):
    """A transport that stands for several servers."""

    def posting(self) -> Pipelining:
        """Return what sends to the right one of them without waiting."""
        ...


def posting(runtime: Runtime, transport: Transport) -> Pipelining | None:
    """Return what sends to the server of a transport without waiting; None if that transport cannot."""
    if isinstance(transport, BlockingTransport):
        return PipelinedConnections(runtime, transport)
    if isinstance(transport, Routing):
        return transport.posting()
    return LoopPipelining(runtime, transport) if isinstance(transport, AioTransport) else None


PendingReply = tuple[Answered, float]
"""The callback for a reply, and the boot-time clock after which nobody waits for it."""


class PipelinedConnection:
    """A connection that is written and read without waiting. Used by one thread at a time."""

    __slots__ = ("__weakref__", "_connection", "_home", "_plain", "_send", "_unsent", "fd", "open", "pending", "sound")

    def __init__(self, connection: Connection, home: PipelinedConnections) -> None:
        self._connection = connection
        self._home = home
        self._send = connection.socket.send
        self._unsent = b""
        self._plain = hasattr(connection.socket, "recv_into") and not isinstance(connection.socket, ssl.SSLSocket)
        self.fd = connection.socket.fileno()
        self.open = True
        self.sound = True  # False in the middle of a write or read: what comes next is unknown
        self.pending: deque[PendingReply] = deque()
        connection.socket.setblocking(False)

    @property
    def full(self) -> bool:
        """Whether a command is sent only in part. The rest follows when the socket has room again."""
        return bool(self._unsent)

    def post(self, command: bytes, until: float, answered: Answered) -> None:
        """Send a command. A failure is reported to all pending replies, this one included."""
        self.sound = False
        self.pending.append((answered, until))  # first: an unregistered reply would be taken for another one
        if self._unsent:
            self._unsent += command
        else:
            self._unsent = command
        self._send_on()
        self.sound = True

    def read(self) -> None:
        """Send what is left, read what has arrived, and pass the replies to their callbacks."""
        self.sound = False
        if self._unsent:
            self._send_on()
        reader, pending, receive = self._connection.reader, self.pending, self._connection.socket.recv
        try:
            while self.open:
                data = receive(CHUNK)
                if not data:
                    raise EOFError("it closed the connection")
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    if not pending:
                        raise EOFError("it sent a reply without a request")
                    pending.popleft()[0](reply, None)
                if self._plain and len(data) < CHUNK:
                    break
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)
        self.sound = True

    def usable(self) -> bool:
        """Return whether it is open, as far as is known here."""
        return self.open if self.pending else self._connection.usable()

    def late(self, now: float) -> bool:
        """Return whether it has a pending reply that nobody waits for any more."""
        return bool(self.pending) and self.pending[0][1] < now

    def end(self, why: object) -> None:
        """Close it, and fail its pending replies."""
        self.open, self._unsent = False, b""
        self._connection.close()
        while self.pending:
            self.pending.popleft()[0](None, no_answer(self._home.where, why, unknown=True))

    def give_back(self) -> None:
        """Give it back for other threads, even with pending replies."""
        self._home.give(self)

    def _send_on(self) -> None:
        try:
            self._unsent = self._unsent[self._send(self._unsent) :]
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)

    def __del__(self) -> None:
        if self.pending:  # interrupted between take and record: the next reader fails these replies
            self._home.orphans.extend(self.pending)


_pop: Callable[[list[PipelinedConnection]], PipelinedConnection] = list[PipelinedConnection].pop


class PipelinedConnections:
    """The connections to one server, for all threads of a client. See `Pipelining`."""

    def __init__(self, runtime: Runtime, transport: BlockingTransport) -> None:
        self._runtime = runtime
        self._transport = transport
        self._reset()

    def _reset(self) -> None:
        self._idle: list[PipelinedConnection] = []
        self._all: weakref.WeakSet[PipelinedConnection] = weakref.WeakSet()
        self.orphans: list[PendingReply] = []
        self._closed = False

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        while True:
            try:
                # One step of the interpreter takes and records it, so no interrupt can come between.
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
            pipelined.end("it closed the connection")

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._transport.where

    def give(self, pipelined: PipelinedConnection) -> None:
        """Take a connection back."""
        if self._closed or not pipelined.sound:
            pipelined.end("the client is closed" if self._closed else "the request was interrupted")
        if pipelined.open:
            self._idle.append(pipelined)
            if self._closed:
                self.hang_up()  # it was closed just now

    def add(self, within: float) -> None:
        if self._closed or len(self._all) >= IDLE_CONNECTIONS or any(not pipelined.pending for pipelined in self._idle):
            return
        pipelined = PipelinedConnection(self._transport.connect(within), self)
        self._all.add(pipelined)
        self.give(pipelined)

    def read(self, now: float) -> bool:
        for pipelined in [pipelined for pipelined in self._idle if pipelined.pending]:
            try:
                self._idle.remove(pipelined)
            except ValueError:  # another thread has taken it
                continue
            pipelined.read()
            if pipelined.late(now):
                pipelined.end(TOO_SLOW)
            self.give(pipelined)
        while self.orphans:
            self.orphans.pop()[0](None, no_answer(self.where, "the request was interrupted", unknown=True))
        return any(pipelined.pending for pipelined in self._idle)

    def hang_up(self) -> None:
        while self._idle:
            try:
                pipelined = self._idle.pop()
            except IndexError:  # another thread has taken it
                return
            pipelined.end("the client is closed" if self._closed else "it was left for another server")

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    def after_fork(self) -> None:
        self._reset()  # dropped, not shut down: the parent still uses the sockets


class LoopPipelining:
    """The one connection of an asyncio client, which the loop reads. See `Pipelining`."""

    def __init__(self, runtime: Runtime, transport: AioTransport) -> None:
        self._runtime = runtime
        self._transport = transport

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        reply = self._transport.post(command, max(until - self._runtime.now(), 0.001))
        if reply is None:
            return False
        reply.add_done_callback(lambda reply: _report(reply, answered))
        return True

    def add(self, within: float) -> None:
        """Do nothing: calls connect."""

    def read(self, now: float) -> bool:
        return False

    def hang_up(self) -> None:
        """Do nothing: the connection belongs to the transport."""

    def close(self) -> None:
        """Do nothing: the connection belongs to the transport."""

    def after_fork(self) -> None:
        """Do nothing: there is no state."""


def _report(reply: asyncio.Future[Any], answered: Answered) -> None:
    if reply.cancelled():
        answered(None, no_answer("a node", "the request was cancelled", unknown=True))
    elif isinstance(error := reply.exception(), StoreUnavailable):
        answered(None, error)
    elif error is None:
        answered(reply.result(), None)
    else:
        raise error
