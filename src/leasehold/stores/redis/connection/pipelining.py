"""Asking without waiting: a command is sent by whoever asks, and its reply goes to whoever is to be told of it.

Theory of operation
-------------------
Who asks several servers at once must not wait for each in turn, and needs no thread for each: it posts to all, and then
reads what comes first. A connection answers in order, so a reply that nobody waited for is read before the next one,
by whoever uses the connection then. Until a reply was read its connection is a `PipelinedConnection` that owes it.

Blocking, a pipe belongs to one thread at a time. It takes the pipe out, posts, reads until it has what it needs, and
puts the pipe back, whatever it still owes. A pipe that has come back with a debt and is not taken again is read by the
background, by `read`. Whoever is interrupted in the middle of writing or reading leaves a pipe of which nobody knows
what comes next: it is closed, and all that it owes is told as lost. Connecting takes time, so whoever asks does not:
that is for the background, too, by `add`.

Under asyncio the client's one connection does all this already.
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
"""Answers that a pipe may owe; a server that owes so many is not asked on it."""

NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises that would have to wait."""

Answered = Callable[[Any, StoreUnavailable | None], None]
"""Called once with the reply, which may be a `ReplyError`, or with the reason why there is none. It must not wait."""


class Pipelining(Protocol):
    """One server, asked without waiting. Used from many threads at once."""

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        """Send a packed command if that can be done at once; return False if not, and then nothing was sent.

        Args:
            command: what to send.
            until: boot-time clock from which on no reply is waited for.
            answered: told of the reply, in the thread or loop that reads it. A `StoreUnavailable` is always `unknown`.
            taken: gets the pipe that is to be read, and then to be given back; nothing under asyncio.

        """
        ...

    def add(self, within: float) -> None:
        """Make one more pipe, if there is none idle and there may be more; blocks for ``within`` seconds at most.

        Raises:
            StoreUnavailable: the server does not answer.

        """
        ...

    def read(self, now: float) -> bool:
        """Read what has come for nobody who waits, and give up what is too late; return whether more is owed."""
        ...

    def hang_up(self) -> None:
        """Close the connections that nobody uses."""
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
        """Return what asks the right one of them without waiting."""
        ...


def posting(runtime: Runtime, transport: Transport) -> Pipelining | None:
    """Return what asks the server of a transport without waiting; None if that transport cannot."""
    if isinstance(transport, BlockingTransport):
        return PipelinedConnections(runtime, transport)
    if isinstance(transport, Routing):
        return transport.posting()
    return LoopPipelining(runtime, transport) if isinstance(transport, AioTransport) else None


PendingReply = tuple[Answered, float]
"""Who is told of a reply, and the boot-time clock from which on nobody waits for it."""


class PipelinedConnection:
    """A connection that is written and read without waiting. For one thread at a time."""

    __slots__ = ("__weakref__", "_connection", "_home", "_plain", "_send", "_unsent", "fd", "open", "pending", "sound")

    def __init__(self, connection: Connection, home: PipelinedConnections) -> None:
        self._connection = connection
        self._home = home
        self._send = connection.socket.send
        self._unsent = b""
        self._plain = hasattr(connection.socket, "recv_into") and not isinstance(connection.socket, ssl.SSLSocket)
        self.fd = connection.socket.fileno()
        self.open = True
        self.sound = True  # all that was begun was ended; else nobody knows what comes next
        self.pending: deque[PendingReply] = deque()
        connection.socket.setblocking(False)

    @property
    def full(self) -> bool:
        """Whether the server has taken something only in part: the rest is sent when there is room again."""
        return bool(self._unsent)

    def post(self, command: bytes, until: float, answered: Answered) -> None:
        """Send a command. A failure is told to all whose answers it costs, this one among them."""
        self.sound = False
        self.pending.append((answered, until))  # first: an answer that nobody is noted for would be taken for another's
        if self._unsent:
            self._unsent += command
        else:
            self._unsent = command
        self._send_on()
        self.sound = True

    def read(self) -> None:
        """Read what has come, send what is left, and tell who is answered."""
        self.sound = False
        if self._unsent:
            self._send_on()
        reader, owed, receive = self._connection.reader, self.pending, self._connection.socket.recv
        try:
            while self.open:
                data = receive(CHUNK)
                if not data:
                    raise EOFError("it closed the connection")
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    if not owed:
                        raise EOFError("it answered a question that nobody asked")
                    owed.popleft()[0](reply, None)
                if self._plain and len(data) < CHUNK:
                    break
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)
        self.sound = True

    def usable(self) -> bool:
        """Say whether it is open, as far as is known here."""
        return self.open if self.pending else self._connection.usable()

    def late(self, now: float) -> bool:
        """Say whether it owes what nobody waits for any more."""
        return bool(self.pending) and self.pending[0][1] < now

    def end(self, why: object) -> None:
        """Close it; whoever is owed an answer is told that none will come."""
        self.open, self._unsent = False, b""
        self._connection.close()
        while self.pending:
            self.pending.popleft()[0](None, no_answer(self._home.where, why, unknown=True))

    def give_back(self) -> None:
        """Let others have it, whatever it owes."""
        self._home.give(self)

    def _send_on(self) -> None:
        try:
            self._unsent = self._unsent[self._send(self._unsent) :]
        except NOT_YET:
            pass
        except SILENT as error:
            self.end(error)

    def __del__(self) -> None:
        if self.pending:  # an interrupt came between taking it and noting that; whoever reads next tells of the loss
            self._home.orphans.extend(self.pending)


_pop: Callable[[list[PipelinedConnection]], PipelinedConnection] = list[PipelinedConnection].pop


class PipelinedConnections:
    """See `Pipelining`. Those to one server, for all threads of a client."""

    def __init__(self, runtime: Runtime, transport: BlockingTransport) -> None:
        self._runtime = runtime
        self._transport = transport
        self._forget()

    def _forget(self) -> None:
        self._idle: list[PipelinedConnection] = []
        self._all: weakref.WeakSet[PipelinedConnection] = weakref.WeakSet()
        self.orphans: list[PendingReply] = []
        self._closed = False

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        while True:
            try:
                # Taken and noted in one step of the interpreter, so that no interrupt comes in between.
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
        """Take a pipe back."""
        if self._closed or not pipelined.sound:
            pipelined.end("the client is closed" if self._closed else "the question was broken off")
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
            except ValueError:  # somebody has taken it
                continue
            pipelined.read()
            if pipelined.late(now):
                pipelined.end(TOO_SLOW)
            self.give(pipelined)
        while self.orphans:
            self.orphans.pop()[0](None, no_answer(self.where, "the question was broken off", unknown=True))
        return any(pipelined.pending for pipelined in self._idle)

    def hang_up(self) -> None:
        while self._idle:
            try:
                pipelined = self._idle.pop()
            except IndexError:  # somebody has taken it
                return
            pipelined.end("the client is closed" if self._closed else "it was left for another server")

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    def after_fork(self) -> None:
        self._forget()  # dropped, not shut down: the parent goes on using the sockets


class LoopPipelining:
    """See `Pipelining`. The one connection of an asyncio client, which the loop reads."""

    def __init__(self, runtime: Runtime, transport: AioTransport) -> None:
        self._runtime = runtime
        self._transport = transport

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        reply = self._transport.post(command, max(until - self._runtime.now(), 0.001))
        if reply is None:
            return False
        reply.add_done_callback(lambda reply: _tell(reply, answered))
        return True

    def add(self, within: float) -> None:
        """Make none: calls connect."""

    def read(self, now: float) -> bool:
        return False

    def hang_up(self) -> None:
        """Leave that to the transport, whose connection it is."""

    def close(self) -> None:
        """Leave that to the transport, too."""

    def after_fork(self) -> None:
        """Keep nothing."""


def _tell(reply: asyncio.Future[Any], answered: Answered) -> None:
    if reply.cancelled():
        answered(None, no_answer("a node", "the question was cancelled", unknown=True))
    elif isinstance(error := reply.exception(), StoreUnavailable):
        answered(None, error)
    elif error is None:
        answered(reply.result(), None)
    else:
        raise error
