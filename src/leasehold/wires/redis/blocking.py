"""The blocking wire: a connection for each call under way, and one for the client's channel.

Messages are read by whoever waits: one waiter reads for all, hands each message to the waiter that it is for, and
passes the reading on when it has its own. So a client with one waiter pays no switch between threads, and one with
many needs no thread of its own.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from leasehold.errors import StoreUnavailable
from leasehold.runtimes.base import Colour, Runtime
from leasehold.wires.redis.base import (
    HELLO,
    MESSAGES,
    Ear,
    HungUp,
    OnMessage,
    OnSilence,
    ReplyError,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.wires.redis.settings import Settings, check_handshake, connect_error

IDLE_CONNECTIONS = 32
"""Connections kept open for later calls; more than these are closed after use."""

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
        line = self._fresh() or self.connect(within)
        try:
            answer = line.ask(command, within)
        except BaseException as error:
            self._broke(line, error)
            raise
        self._put_back(line)
        return answer

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        line = self._fresh() or self.connect(within)
        try:
            answers = line.exchange(b"".join(commands), len(commands), within)
        except BaseException as error:
            self._broke(line, error)
            raise
        self._put_back(line)
        return answers

    async def listen(self, within: float) -> int:
        return self._ears.open(within)

    def epoch(self) -> int:
        return self._ears.epoch

    async def hear(self, ear: Ear, timeout: float) -> None:
        await self._ears.hear(ear, timeout)

    def nudge(self, ear: Ear) -> None:
        self._ears.nudge(ear)

    def disturbed(self) -> bool:
        return self._ears.disturbed()

    def hang_up(self) -> None:
        self._drop_idle()
        self._ears.hang_up()

    def retune(self, channel: bytes) -> None:
        self._ears.channel = channel

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
        """Open a connection and check who answers; once more if it hangs up before that.

        Raises:
            StoreUnavailable: nobody does, or nobody that can be used; nothing was sent.
        """
        until = self._runtime.now() + within
        try:
            return self._connect(within)
        except HungUp:
            left = until - self._runtime.now()
            if left <= 0:
                raise
        return self._connect(left)

    def _connect(self, within: float) -> Line:
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
        line = Line(connection, self._runtime)
        try:
            said = line.ask(HELLO, max(until - self._runtime.now(), 0.001))
            self._facts = check_handshake(said, self._settings)
        except BaseException as error:
            line.close()
            if isinstance(error, StoreUnavailable) or not isinstance(error, SILENT):
                raise
            gone = no_answer(where, error, unknown=False)
            raise gone if isinstance(error, TimeoutError) else HungUp(str(gone)) from error
        return line

    def subscribed(self, channel: bytes, within: float) -> Line:
        """Open a connection that hears ``channel``."""
        line, where = self.connect(within), self._settings.where
        try:
            asked = subscriptions(channel, version_of(self._facts))
            for reply in line.exchange(b"".join(asked), len(asked), within):
                if isinstance(reply, ReplyError):
                    raise refused(where, reply)
        except BaseException as error:
            line.close()
            if isinstance(error, SILENT) and not isinstance(error, StoreUnavailable):
                raise no_answer(where, error, unknown=False) from error
            raise
        return line

    def _broke(self, line: Line, error: BaseException) -> None:
        """Close a line on which a reply may still be on its way: nobody must ever read it as an answer of theirs."""
        line.close()
        if isinstance(error, SILENT):
            self._drop_idle()  # they go to the same server, and each would cost another attempt
            raise no_answer(self._settings.where, error, unknown=True) from error

    def _put_back(self, line: Line) -> None:
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed:
            self._idle.append(line)
        else:
            line.close()
        if self._closed:
            self._drop_idle()  # it may have been closed just before this line was put back

    def _fresh(self) -> Line | None:
        """Take an idle connection that the server has not closed meanwhile; None if there is none."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if line.usable():
                return line
            line.close()

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()


class Line:
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

    def close(self) -> None:
        """Close the connection."""
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


class Channel:
    """The subscription to the client's channel, read by one of those who wait."""

    def __init__(
        self, runtime: Runtime, wire: BlockingWire, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._wire = wire
        self.channel = channel
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
        self._poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        self._reading: Ear | None = None
        self._reader = 0  # the thread that reads
        self._waiting: dict[int, Ear] = {}

    def open(self, within: float) -> int:
        """Subscribe if that is not done; return the number of the subscription."""
        if self._line is not None:
            return self.epoch
        until = self._runtime.now() + within
        if not self._opening.acquire(timeout=within):
            raise no_answer(self._wire.where, "another thread still tries to subscribe", unknown=False)
        try:
            if self._line is not None:
                return self.epoch
            line = self._wire.subscribed(self.channel, max(until - self._runtime.now(), 0.001))
            if self._bell is None:
                self._bell = socket.socketpair()
                self._bell[0].setblocking(False)
            self._poll = select.poll()
            self._poll.register(line.socket, select.POLLIN)
            self._poll.register(self._bell[0], select.POLLIN)
            self._count += 1
            self.epoch = self._count
            self._line = line  # last: it says that all the rest is there
            return self.epoch
        finally:
            self._opening.release()

    async def hear(self, ear: Ear, timeout: float) -> None:
        """Wait for ``ear.news``, reading for all if nobody does."""
        until = self._runtime.now() + timeout
        while not ear.news and (left := until - self._runtime.now()) > 0:
            signal = None
            with self._mutex:
                line = self._line
                reads = self._reading is None and line is not None
                if reads:
                    self._reading, self._reader = ear, threading.get_ident()
                else:
                    signal = ear.ready(self._runtime)  # whoever reads needs none
                    self._waiting[id(ear)] = ear
            try:
                if line is None:
                    return
                if signal is None:
                    self._read(line, ear, until)
                    continue
                if not ear.news:  # else it came before there was a signal
                    await signal.wait(left)
                if not ear.news:
                    signal.clear()  # called to read on; news that came meanwhile is in `news`
            finally:
                self._pass_on(ear)

    def nudge(self, ear: Ear) -> None:
        """Wake one who waits, or who reads for all."""
        ear.ring()
        bell = self._bell
        if self._reading is ear and bell is not None and threading.get_ident() != self._reader:
            try:  # the reader itself, which found the message, looks at its news next
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
        self.channel = channel
        self._forget()

    def disturbed(self) -> bool:
        """Say whether something came that nobody has read."""
        line = self._line
        return line is not None and not line.quiet()

    def hang_up(self) -> None:
        """End the subscription; whoever waits asks again."""
        line = self._line
        if line is not None:
            self._drop(line)
            self._on_silence()

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
                elif isinstance(reply, list) and len(reply) == 3 and reply[0] in MESSAGES:
                    self._on_message(reply[2])
                elif isinstance(reply, list) and reply[0] == b"sunsubscribe":
                    raise EOFError("its slot has moved")
        except (OSError, EOFError, ValueError, hiredis.ProtocolError):
            self._drop(line)
            self._on_silence()

    def _feed(self, line: Line, left: float) -> None:
        bell = self._bell
        if bell is None:
            raise EOFError("closed")
        pending = getattr(line.socket, "pending", None)
        if pending is None or not pending():
            ready = [fd for fd, _ in self._poll.poll(left * 1000)]
            if bell[0].fileno() in ready:
                bell[0].recv(CHUNK)
            if line.socket.fileno() not in ready:
                return
        if pending is not None:
            line.socket.settimeout(1.0)  # for a TLS record that is only half there
        line.feed()

    def _drop(self, line: Line | None) -> None:
        with self._opening:
            if line is None or self._line is not line:
                return
            self._line = None
            self.epoch = 0
            line.close()
