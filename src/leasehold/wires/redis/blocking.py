"""The blocking wire: a connection for each call under way, and one for the client's channel.

Messages are read by whoever waits: one waiter reads for all, hands each message to the waiter that it is for, and
passes the reading on when it has its own. So a client with one waiter pays no switch between threads, and one with
many needs no thread of its own.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from leasehold.errors import StoreUnavailable
from leasehold.runtimes.base import Colour, Runtime
from leasehold.wires.redis.base import HELLO, Ear, OnMessage, OnSilence, ReplyError, no_answer, pack, refused
from leasehold.wires.redis.settings import Settings, check_handshake, connect_error

IDLE_CONNECTIONS = 32
"""Connections kept open for later calls; more than these are closed after use."""

CHUNK = 65_536
"""Bytes read at once."""


SILENT = (OSError, EOFError, hiredis.ProtocolError)
"""What a connection raises on which no more answers come."""


class BlockingWire:
    """See `leasehold.wires.redis.base.Wire`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._idle: list[Line] = []
        self._closed = False
        self._facts: dict[str, str] = {}
        self._ears = Channel(runtime, self, channel, on_message, on_silence)

    async def call(self, command: bytes, *, within: float) -> Any:
        return self._exchange(command, 1, within)[0]

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        return self._exchange(b"".join(commands), len(commands), within)

    async def listen(self, within: float) -> int:
        return self._ears.open(within)

    def epoch(self) -> int:
        return self._ears.epoch

    async def hear(self, ear: Ear, timeout: float) -> None:
        await self._ears.hear(ear, timeout)

    def nudge(self, ear: Ear) -> None:
        self._ears.nudge(ear)

    def facts(self) -> dict[str, str]:
        return self._facts

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        self._ears.close()

    def after_fork(self, channel: bytes) -> None:
        self._idle = []  # dropped, not shut down: the parent goes on using the sockets
        self._closed = False
        self._ears.after_fork(channel)

    def connect(self, within: float) -> Line:
        """Open a connection and check who answers.

        Raises:
            StoreUnavailable: nobody does, or nobody that can be used; nothing was sent.
        """
        connection, until = self._settings.connection(Colour.BLOCKING, within), self._runtime.now() + within
        where = self._settings.where
        if self._closed:
            raise no_answer(where, "the client is closed", unknown=False)
        failed: Exception | None = None
        try:
            connection.connect()
        except (redis.RedisError, OSError, ValueError) as error:
            failed = connect_error(error, where)
        if failed is not None:
            raise failed  # out here it has no context: local variables in the frames of redis-py show the password
        line = Line(connection)
        try:
            (said,) = line.exchange(HELLO, 1, until, self._runtime)
            self._facts = check_handshake(said, where)
        except BaseException as error:
            line.close()
            if isinstance(error, SILENT) and not isinstance(error, StoreUnavailable):
                raise no_answer(where, error, unknown=False) from error
            raise
        return line

    def subscribed(self, channel: bytes, within: float) -> Line:
        """Open a connection that hears ``channel``."""
        line, where = self.connect(within), self._settings.where
        try:
            (reply,) = line.exchange(pack(b"SUBSCRIBE", channel), 1, self._runtime.now() + within, self._runtime)
            if isinstance(reply, ReplyError):
                raise refused(where, reply)
        except BaseException as error:
            line.close()
            if isinstance(error, SILENT) and not isinstance(error, StoreUnavailable):
                raise no_answer(where, error, unknown=False) from error
            raise
        return line

    def _exchange(self, command: bytes, replies: int, within: float) -> list[Any]:
        until = self._runtime.now() + within
        line = self._fresh() or self.connect(within)
        try:
            answers = line.exchange(command, replies, until, self._runtime)
        except BaseException as error:
            line.close()  # a reply may still be on its way: nobody must ever read it as an answer to something else
            if isinstance(error, SILENT):
                self._drop_idle()  # they go to the same server, and each would cost another attempt
                raise no_answer(self._settings.where, error, unknown=True) from error
            raise
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed:
            self._idle.append(line)
        else:
            line.close()
        if self._closed:
            self._drop_idle()  # it may have been closed just before this line was put back
        return answers

    def _fresh(self) -> Line | None:
        """Take an idle connection that the server has not closed meanwhile; None if there is none."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if line.quiet():
                return line
            line.close()

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()


class Line:
    """One connection that redis-py made, read and written without it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.socket: socket.socket = connection._get_socket()
        self.reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)

    def exchange(self, command: bytes, replies: int, until: float, runtime: Runtime) -> list[Any]:
        """Send, and read so many replies before ``until``."""
        sock, reader = self.socket, self.reader
        sock.settimeout(max(until - runtime.now(), 0.001))
        sock.sendall(command)
        answers: list[Any] = []
        while len(answers) < replies:
            reply = reader.gets()
            if reply is False:
                self.feed()
                if runtime.now() > until:
                    raise TimeoutError("it answered too slowly")
            else:
                answers.append(reply)
        return answers

    def quiet(self) -> bool:
        """Say whether nothing came unasked: bytes or an end of file mean that it is of no more use."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def feed(self) -> None:
        """Read what has come.

        Raises:
            EOFError: the server closed the connection.
        """
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError("it closed the connection")
        self.reader.feed(data)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


class Channel:
    """The subscription to the client's channel, read by one of those who wait."""

    def __init__(
        self, runtime: Runtime, wire: BlockingWire, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._wire = wire
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._forget()

    def _forget(self) -> None:
        self.epoch = 0
        self._count = 0
        self._line: Line | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._mutex = self._runtime.mutex()
        self._opening = threading.Lock()  # held while connecting, so waited for with a limit
        self._reading: Ear | None = None
        self._waiting: dict[int, Ear] = {}

    def open(self, within: float) -> int:
        """Subscribe if that is not done; return the number of the subscription."""
        until = self._runtime.now() + within
        if not self._opening.acquire(timeout=within):
            raise no_answer(self._wire.where, "another thread still tries to subscribe", unknown=False)
        try:
            if self._line is not None:
                return self.epoch
            line = self._wire.subscribed(self._channel, max(until - self._runtime.now(), 0.001))
            if self._bell is None:
                self._bell = socket.socketpair()
                self._bell[0].setblocking(False)
            self._line = line
            self._count += 1
            self.epoch = self._count
            return self.epoch
        finally:
            self._opening.release()

    async def hear(self, ear: Ear, timeout: float) -> None:
        """Wait for ``ear.news``, reading for all if nobody does."""
        until, signal = self._runtime.now() + timeout, ear.ready(self._runtime)
        while not ear.news and (left := until - self._runtime.now()) > 0:
            with self._mutex:
                line = self._line
                reads = self._reading is None and line is not None
                if reads:
                    self._reading = ear
                else:
                    self._waiting[id(ear)] = ear
            try:
                if line is None:
                    return
                if reads:
                    self._read(line, ear, until)
                else:
                    await signal.wait(left)
                    if not ear.news:
                        signal.clear()  # called to read on; news that came meanwhile is in `news`
            finally:
                self._pass_on(ear)

    def nudge(self, ear: Ear) -> None:
        """Wake one who waits, or who reads for all."""
        ear.ring()
        bell = self._bell
        if self._reading is ear and bell is not None:
            try:
                bell[1].send(b"!")
            except OSError:  # closed meanwhile: whoever read has found out
                pass

    def close(self) -> None:
        """Close the connection; those who wait find out and ask again."""
        with self._mutex:
            reading = self._reading
        if reading is not None:
            reading.news = True
            self.nudge(reading)
        with self._opening:  # a thread that is connecting ends first: its connection must not outlive the client
            line = self._line
        self._drop(line)
        bell, self._bell = self._bell, None
        for end in bell or ():
            end.close()

    def after_fork(self, channel: bytes) -> None:
        """Start anew in a forked child, on a channel of its own."""
        self._channel = channel
        self._forget()

    def _pass_on(self, ear: Ear) -> None:
        with self._mutex:
            self._waiting.pop(id(ear), None)
            if self._reading is not ear and self._reading is not None:
                return
            self._reading = None
            following = next(iter(self._waiting.values()), None)
        if following is not None:
            following.ring()

    def _read(self, line: Line, ear: Ear, until: float) -> None:
        try:
            while not ear.news and (left := until - self._runtime.now()) > 0:
                reply: list[Any] | bytes | int | bool | None = line.reader.gets()
                if reply is False:
                    self._feed(line, left)
                elif isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
                    self._on_message(reply[2])
        except (OSError, EOFError, ValueError, hiredis.ProtocolError):
            self._drop(line)
            self._on_silence()

    def _feed(self, line: Line, left: float) -> None:
        bell = self._bell
        if bell is None:
            raise EOFError("closed")
        pending = getattr(line.socket, "pending", None)
        if pending is None or not pending():
            poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
            poll.register(line.socket, select.POLLIN)
            poll.register(bell[0], select.POLLIN)
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            if bell[0].fileno() in ready:
                bell[0].recv(CHUNK)
            if line.socket.fileno() not in ready:
                return
        line.socket.settimeout(1.0)  # for a TLS record that is only half there
        line.feed()

    def _drop(self, line: Line | None) -> None:
        with self._opening:
            if line is None or self._line is not line:
                return
            self._line = None
            self.epoch = 0
            line.close()
