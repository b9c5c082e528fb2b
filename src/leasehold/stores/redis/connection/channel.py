"""The subscription of a blocking client to its channel, read by one of the waiting threads.

One waiter reads for all. It hands each message to the waiter that it is for, and another waiter goes on reading when it
has its own. So a client with one waiter needs no switch between threads, and one with many needs no extra thread.

The reader owns the descriptors that it waits on. If another thread ends the subscription, that thread only shuts the
connection down, and the reader closes it when it stops reading. A closed descriptor's number may be reused at once.

The connection may be dead at the server's side only, as after a firewall has forgotten it. Neither an end nor an error
shows that. So the reader sends a request after a time without messages, and ends the subscription if nothing comes.
"""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import HELLO, OnSilence, Subscriber, no_answer
from leasehold.stores.redis.connection.connection import SILENT, SOON, Connection, WakeUp
from leasehold.stores.redis.connection.replies import TOO_SLOW

LEAST_SILENCE, MOST_SILENCE = 0.1, 5.0
"""Seconds without a message after which the reader sends a request: between these bounds a sixth of the shortest lease.

Something must come in the same time then: so a dead subscription is found within a third of the lease.
"""

ANSWER_AFTER = 1.0
"""Seconds that an answer may take at least: latency, or a pause of the server, must not end a subscription."""

Subscribe = Callable[[float], Awaitable[Connection]]
"""Opens a connection that is subscribed, within so many seconds."""


class Channel:
    """The subscription. Its connection, which ``subscribe`` opens, passes the messages on."""

    def __init__(self, runtime: Runtime, subscribe: Subscribe, where: str, on_silence: OnSilence) -> None:
        self._runtime = runtime
        self._subscribe = subscribe
        self._where = where
        self._on_silence = on_silence
        self.generation = 0
        self._count = 0
        self._connection: Connection | None = None
        self._wake_up: WakeUp | None = None
        self._mutex = runtime.mutex()
        self._opening = threading.Lock()  # held while connecting, so acquired with a time limit
        self._poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        self._reading: Subscriber | None = None
        self._reader = 0  # the thread that reads
        self._waiting: dict[int, Subscriber] = {}
        self._ended: list[Callable[[], None]] = []  # what the reader closes when it stops reading
        self._undelivered = False  # whether a reader has received messages that it has not handed on yet
        self._silence = MOST_SILENCE  # seconds: see there
        self._heard = self._asked = 0.0  # boot-time clock when something came, and when the last request was sent
        self._soon = False  # whether the last messages came within `SOON` after a thread began to wait for them

    async def open(self, within: float) -> int:
        """Subscribe if there is no subscription; return its number."""
        if self._connection is not None:
            return self.generation
        until, got = self._runtime.now() + within, list[bool]()
        try:
            # Acquired and recorded in one step of the interpreter: no exception of a signal handler comes between.
            got.extend(map(self._opening.acquire, (True,), (within,)))
            if not got[0]:
                raise no_answer(self._where, "another thread is still subscribing", unknown=False)
            if self._connection is not None:
                return self.generation
            connection = await self._subscribe(max(until - self._runtime.now(), 0.001))
            if self._wake_up is None:
                self._wake_up = WakeUp()
            self._silence, self._heard = MOST_SILENCE, self._runtime.now()
            self._poll = select.poll()
            self._poll.register(connection.socket, select.POLLIN)
            self._poll.register(self._wake_up.fd, select.POLLIN)
            self._count += 1
            self.generation = self._count
            self._undelivered = True  # messages may have come together with the confirmation
            self._connection = connection  # last: other threads read it first
            return self.generation
        finally:
            if got == [True]:
                self._opening.release()

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        """Wait for ``subscriber.news``; read for all if no other thread does."""
        until = self._runtime.now() + timeout
        try:
            while not subscriber.news and (left := until - self._runtime.now()) > 0:
                signal = None
                with self._mutex:
                    self._hurry(subscriber)
                    connection = self._connection
                    reads = self._reading is None and connection is not None
                    if reads:
                        self._reading, self._reader = subscriber, threading.get_ident()
                    else:
                        signal = subscriber.ready(self._runtime)  # the reader needs none
                        self._waiting[id(subscriber)] = subscriber
                try:
                    if connection is None:
                        return
                    if signal is None:
                        self._read(connection, subscriber, until)
                        continue
                    if not subscriber.news:  # else it was set before the signal existed
                        await signal.wait(left)
                    if not subscriber.news:
                        signal.clear()  # woken to take over the reading; a message that came meanwhile is in `news`
                finally:
                    self._stop_reading(subscriber)
        except BaseException:
            # A signal handler may raise before the inner `try`, or as its `finally` begins. If this thread then still
            # counted as the reader, no other would ever read.
            self._stop_reading(subscriber)
            raise

    def notify(self, subscriber: Subscriber) -> None:
        """Wake a subscriber that waits, or that reads for all."""
        subscriber.set()
        wake_up = self._wake_up
        if self._reading is subscriber and wake_up is not None and threading.get_ident() != self._reader:
            wake_up.set()  # not for the reader itself, which checks its `news` next

    def close(self) -> None:
        """Close the connection; waiters retry."""
        with self._mutex:
            reading = self._reading
        if reading is not None:
            reading.news = True
            self.notify(reading)
        with self._opening:  # a thread that is connecting ends first: its connection must not outlive the client
            connection = self._connection
        self._drop(connection)
        wake_up, self._wake_up = self._wake_up, None
        if wake_up is not None:
            self._close(wake_up.close)

    def has_unread(self) -> bool:
        """Return whether there is data that no thread has read; if there is only an end, hang up."""
        connection = self._connection
        if connection is None or connection.quiet():
            return False
        if connection.ended():
            self.hang_up()
            return False
        return True

    def hang_up(self) -> None:
        """End the subscription; waiters retry."""
        connection = self._connection
        if connection is not None:
            self._drop(connection)
            self._on_silence()

    def _hurry(self, subscriber: Subscriber) -> None:
        """Look for a dead subscription as often as a waiter needs it, also if another thread reads, and polls now."""
        silence = max(LEAST_SILENCE, subscriber.lease / 6)
        if silence < self._silence:
            self._silence = silence
            if self._reading is not None and self._wake_up is not None:
                self._wake_up.set()

    def _stop_reading(self, subscriber: Subscriber) -> None:
        with self._mutex:
            self._waiting.pop(id(subscriber), None)
            if self._reading is not subscriber and self._reading is not None:
                return
            self._reading = None
            ended, self._ended = self._ended, []
            successor = next(iter(self._waiting.values()), None)
        for close in ended:
            close()
        if successor is not None:
            successor.set()

    def _read(self, connection: Connection, subscriber: Subscriber, until: float) -> None:
        try:
            if self._undelivered:  # by a reader that was interrupted
                connection.data_received(b"")
                self._undelivered = False
            while connection.open and not subscriber.news and (left := until - self._runtime.now()) > 0:
                self._receive(connection, min(left, self._checked(connection)))
        except (*SILENT, ValueError):
            connection.open = False
        if not connection.open:
            self._drop(connection)
            self._on_silence()

    def _checked(self, connection: Connection) -> float:
        """Send a request if nothing has come for long; return the seconds until the next check.

        Raises:
            TimeoutError: nothing has come since the last request.
        """
        now = self._runtime.now()
        if now < (due := self._heard + self._silence):
            return due - now
        answered = max(self._silence, ANSWER_AFTER)
        if self._asked <= self._heard:
            connection.send_all(HELLO, now + answered)  # needs no right, unlike PING
            connection.pending.append((_ignore, math.inf, math.inf))
            self._asked = now
        if now < (due := self._asked + answered):
            return due - now
        if connection.quiet():  # else this process was stopped for that long
            raise TimeoutError(TOO_SLOW)
        return 0.0

    def _receive(self, connection: Connection, left: float) -> None:
        """Take the messages that come within ``left`` seconds, unless another thread ends the wait before.

        If the last ones came soon, it begins with a read, which waits for `SOON` at most. Else it polls before that.
        """
        began = self._runtime.now()
        if not (self._soon and connection.plain and left > SOON) and not self._wait(connection, left):
            return
        self._undelivered = True
        try:
            connection.receive()
            self._heard = self._runtime.now()
            self._soon = self._heard - began < SOON
        except BlockingIOError:
            self._soon = False
        self._undelivered = False

    def _wait(self, connection: Connection, left: float) -> bool:
        """Wait; return whether there is something to read."""
        wake_up = self._wake_up
        if wake_up is None:
            raise EOFError("closed")
        pending = getattr(connection.socket, "pending", None)
        if pending is not None and pending():
            return True
        ready = [fd for fd, _ in self._poll.poll(left * 1000)]
        if wake_up.fd in ready:
            wake_up.clear()
        if connection.socket.fileno() not in ready:
            return False
        if pending is not None:
            connection.socket.settimeout(1.0)  # for a TLS record that is only half there
        return True

    def _drop(self, connection: Connection | None) -> None:
        with self._opening:
            if connection is None or self._connection is not connection:
                return
            self._connection = None
            self.generation = 0
        self._close(connection.close, connection.hang_up)

    def _close(self, close: Callable[[], None], wake: Callable[[], None] | None = None) -> None:
        """Close something now, or let the thread that waits on it do so, and wake that thread."""
        with self._mutex:
            if self._reading is not None and self._reader != threading.get_ident():
                self._ended.append(close)
                if wake is not None:
                    wake()
                return
        close()


def _ignore(reply: Any, failure: StoreUnavailable | None) -> None:
    """Take a reply that shows no more than that there is one."""
