"""The subscription of a blocking client to its channel, read by one of those who wait.

One waiter reads for all, hands each message to the waiter that it is for, and passes the reading on when it has its
own. So a client with one waiter pays no switch between threads, and one with many needs no thread of its own.

Whoever reads owns the descriptors that it waits on. If another thread ends the subscription, it only shuts the
connection down, and the reader closes it when it leaves: the number of a closed descriptor may be a stranger's at once.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import hiredis

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import MESSAGES, OnMessage, OnSilence, Subscriber, no_answer
from leasehold.stores.redis.connection.connection import CHUNK, Connection

Subscribe = Callable[[bytes, float], Connection]
"""Opens a connection that hears a channel, within so many seconds."""


class Channel:
    """The subscription.

    Args:
        runtime: clocks and signals.
        subscribe: opens the connection.
        where: the server, for messages to people.
        channel: what to listen to.
        on_message: takes each message.
        on_silence: is called when no more messages come, until somebody subscribes again.

    """

    def __init__(
        self,
        runtime: Runtime,
        subscribe: Subscribe,
        where: str,
        channel: bytes,
        on_message: OnMessage,
        on_silence: OnSilence,
    ) -> None:
        self._runtime = runtime
        self._subscribe = subscribe
        self._where = where
        self.channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._forget()

    def _forget(self) -> None:
        self.generation = 0
        self._count = 0
        self._connection: Connection | None = None
        self._wake_up: tuple[socket.socket, socket.socket] | None = None
        self._mutex = self._runtime.mutex()
        self._opening = threading.Lock()  # held while connecting, so waited for with a limit
        self._poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        self._reading: Subscriber | None = None
        self._reader = 0  # the thread that reads
        self._waiting: dict[int, Subscriber] = {}
        self._ended: list[Callable[[], None]] = []  # what whoever reads is to close when it leaves

    def open(self, within: float) -> int:
        """Subscribe if that is not done; return the number of the subscription."""
        if self._connection is not None:
            return self.generation
        until = self._runtime.now() + within
        if not self._opening.acquire(timeout=within):
            raise no_answer(self._where, "another thread still tries to subscribe", unknown=False)
        try:
            if self._connection is not None:
                return self.generation
            connection = self._subscribe(self.channel, max(until - self._runtime.now(), 0.001))
            if self._wake_up is None:
                self._wake_up = socket.socketpair()
                self._wake_up[0].setblocking(False)
            self._poll = select.poll()
            self._poll.register(connection.socket, select.POLLIN)
            self._poll.register(self._wake_up[0], select.POLLIN)
            self._count += 1
            self.generation = self._count
            self._connection = connection  # last: it says that all the rest is there
            return self.generation
        finally:
            self._opening.release()

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        """Wait for ``subscriber.news``, reading for all if nobody does."""
        until = self._runtime.now() + timeout
        while not subscriber.news and (left := until - self._runtime.now()) > 0:
            signal = None
            with self._mutex:
                connection = self._connection
                reads = self._reading is None and connection is not None
                if reads:
                    self._reading, self._reader = subscriber, threading.get_ident()
                else:
                    signal = subscriber.ready(self._runtime)  # whoever reads needs none
                    self._waiting[id(subscriber)] = subscriber
            try:
                if connection is None:
                    return
                if signal is None:
                    self._read(connection, subscriber, until)
                    continue
                if not subscriber.news:  # else it came before there was a signal
                    await signal.wait(left)
                if not subscriber.news:
                    signal.clear()  # called to read on; news that came meanwhile is in `news`
            finally:
                self._pass_on(subscriber)

    def notify(self, subscriber: Subscriber) -> None:
        """Wake one who waits, or who reads for all."""
        subscriber.set()
        wake_up = self._wake_up
        if self._reading is subscriber and wake_up is not None and threading.get_ident() != self._reader:
            try:  # the reader itself, which found the message, looks at its news next
                wake_up[1].send(b"!")
            except OSError:  # closed meanwhile: whoever read has found out
                pass

    def close(self) -> None:
        """Close the connection; those who wait find out and ask again."""
        with self._mutex:
            reading = self._reading
        if reading is not None:
            reading.news = True
            self.notify(reading)
        with self._opening:  # a thread that is connecting ends first: its connection must not outlive the client
            connection = self._connection
        self._drop(connection)
        wake_up, self._wake_up = self._wake_up, None
        for end in wake_up or ():
            self._close(end.close)

    def after_fork(self, channel: bytes) -> None:
        """Start anew in a forked child, on a channel of its own."""
        self.channel = channel
        self._forget()

    def has_unread(self) -> bool:
        """Say whether something came that nobody has read."""
        connection = self._connection
        return connection is not None and not connection.quiet()

    def hang_up(self) -> None:
        """End the subscription; whoever waits asks again."""
        connection = self._connection
        if connection is not None:
            self._drop(connection)
            self._on_silence()

    def _pass_on(self, subscriber: Subscriber) -> None:
        with self._mutex:
            self._waiting.pop(id(subscriber), None)
            if self._reading is not subscriber and self._reading is not None:
                return
            self._reading = None
            ended, self._ended = self._ended, []
            following = next(iter(self._waiting.values()), None)
        for close in ended:
            close()
        if following is not None:
            following.set()

    def _read(self, connection: Connection, subscriber: Subscriber, until: float) -> None:
        try:
            while not subscriber.news and (left := until - self._runtime.now()) > 0:
                reply: list[Any] | bytes | int | bool | None = connection.reader.gets()
                if reply is False:
                    self._feed(connection, left)
                elif isinstance(reply, list) and len(reply) == 3 and reply[0] in MESSAGES:
                    self._on_message(reply[2])
                elif isinstance(reply, list) and reply[0] == b"sunsubscribe":
                    raise EOFError("its slot has moved")
        except (OSError, EOFError, ValueError, hiredis.ProtocolError):
            self._drop(connection)
            self._on_silence()

    def _feed(self, connection: Connection, left: float) -> None:
        wake_up = self._wake_up
        if wake_up is None:
            raise EOFError("closed")
        pending = getattr(connection.socket, "pending", None)
        if pending is None or not pending():
            ready = [fd for fd, _ in self._poll.poll(left * 1000)]
            if wake_up[0].fileno() in ready:
                wake_up[0].recv(CHUNK)
            if connection.socket.fileno() not in ready:
                return
        if pending is not None:
            connection.socket.settimeout(1.0)  # for a TLS record that is only half there
        connection.feed()

    def _drop(self, connection: Connection | None) -> None:
        with self._opening:
            if connection is None or self._connection is not connection:
                return
            self._connection = None
            self.generation = 0
        self._close(connection.close, connection.hang_up)

    def _close(self, close: Callable[[], None], wake: Callable[[], None] | None = None) -> None:
        """Close something now, or leave that to the thread that waits on it, and wake it."""
        with self._mutex:
            if self._reading is not None and self._reader != threading.get_ident():
                self._ended.append(close)
                if wake is not None:
                    wake()
                return
        close()
