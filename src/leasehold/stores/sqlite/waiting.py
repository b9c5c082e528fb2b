"""The waiters of one client, and the three ways to wake them: directly, by a datagram, by a periodic check.

A *hint* tells a waiter to check again. In the same process it is a call. Between processes it is a loopback datagram:
each client with waiters has one thread that receives them. A lost, late, duplicated or forged hint does no harm: a
waiter reads the file after each hint, and the thread reads it every `CHECK_EVERY` seconds, too. A `HintReceiver` has an
address only while its thread runs: network namespace, port and a random key. So a hint has no effect if another program
uses the port by now.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from leasehold._runtimes.base import Flavor, Runtime, Signal, run_sync
from leasehold._runtimes.log import log
from leasehold.stores.sqlite.machine import Machine

CHECK_EVERY = 0.25
"""Seconds between two checks for dead holders and lost hints: about the delay after a crash or a lost hint."""

IDLE_CHECKS = 40
"""Checks in a row without a waiter after which the thread and its socket end; the next waiter starts them again."""

CLOSE_PATIENCE = 2.0
"""Seconds that closing waits for the thread, which may be reading the file."""

KEY_BYTES = 16

Check = Callable[[Mapping[str, str]], Sequence[str]]
"""Takes each name with waiters, and our first ticket there; returns the tickets that must check again."""


class Waiters:
    """Safe to use from any thread. The thread for hints runs only while there are waiters."""

    def __init__(self, runtime: Runtime, machine: Machine, check: Check) -> None:
        self._runtime = runtime
        self._machine = machine
        self._worth_retrying = check
        self._mutex = runtime.mutex()
        self._waiting: dict[str, tuple[str, Signal]] = {}  # name and signal by ticket, in order of arrival
        self._receiver: HintReceiver | None = None

    def expect(self, name: str, ticket: str) -> str | None:
        """Register a waiter; return the address for its hints, None if it must poll.

        Called before its entry is written, so that each hint finds its waiter.
        """
        with self._mutex:
            if ticket not in self._waiting:
                self._waiting[ticket] = (name, self._runtime.signal())
            if self._receiver is None and self._runtime.flavor is not Flavor.SIMULATED:
                self._receiver = HintReceiver(self, self._runtime.random_bytes(KEY_BYTES), self._machine.network())
            receiver = self._receiver
        return None if receiver is None else receiver.listen()

    def forget(self, ticket: str) -> None:
        """Remove a waiter, and wake a caller that still sleeps for it, as when the client is closed."""
        with self._mutex:
            _, signal = self._waiting.pop(ticket, ("", None))
        if signal is not None:
            signal.set()

    def signal(self, ticket: str) -> Signal | None:
        """Return the signal on which the ticket's task or thread sleeps; None if it does not wait."""
        with self._mutex:
            return self._waiting.get(ticket, ("", None))[1]

    def wake(self, ticket: str) -> bool:
        """Let a waiter of this client check again; return whether there is one."""
        signal = self.signal(ticket)
        if signal is not None:
            signal.set()
        return signal is not None

    def wake_all(self, hints: Mapping[str, str]) -> None:
        """Wake the waiters with these tickets, in this client or at these addresses."""
        for ticket, address in hints.items():
            if not self.wake(ticket) and address:
                hint(address, ticket, self._machine.network())

    def close(self) -> None:
        """End the thread and its socket."""
        with self._mutex:
            receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()

    def after_fork(self) -> None:
        """Close the copy of the socket in a forked child. The waiters are the parent's."""
        if self._receiver is not None:
            self._receiver.after_fork()

    def has_waiters(self) -> bool:
        with self._mutex:
            return bool(self._waiting)

    def check(self) -> bool:
        """Check for all waiters at once; return whether there are any."""
        with self._mutex:
            first = {name: ticket for ticket, (name, _) in reversed(self._waiting.items())}
        if not first:
            return False
        for ticket in self._worth_retrying(first):
            self.wake(ticket)
        return True


class HintReceiver:
    """The thread that receives the hints for one client, and checks for its waiters. Safe to use from any thread."""

    def __init__(self, waiters: Waiters, key: bytes, network: str) -> None:
        """Make one without a thread; hints carry ``key``, and ``network`` identifies the namespace of the port."""
        self._waiters = weakref.ref(waiters)  # the thread alone must not keep a client alive
        self._key = key
        self._network = network
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._port = 0
        self._address = ""

    def listen(self) -> str | None:
        """Start the thread if needed; return the address for hints, None if no thread can be started.

        The waiter must be registered before, so that the thread does not end now.
        """
        with self._mutex:
            if self._thread is None:
                self._start()
            return self._address if self._thread is not None else None

    def receive(self, ticket: str) -> None:
        waiters = self._waiters()
        if waiters is not None:
            waiters.wake(ticket)

    def close(self) -> None:
        with self._mutex:
            thread, port = self._thread, self._port  # read before the stop, after which the thread closes the socket
            self._stop.set()
            self._unregister()
            if thread is not None and port:
                _send(port, self._key)  # wakes the thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_PATIENCE)

    def after_fork(self) -> None:
        """Close, in a forked child, the copy of the socket; the parent's own stays open."""
        if self._socket is not None:
            self._socket.close()

    def _start(self) -> None:
        self._stop = threading.Event()
        self._socket = listener = _loopback()
        self._port = listener.getsockname()[1] if listener is not None else 0
        self._address = f"{self._network} {self._port} {self._key.hex()}"
        work = partial(self._run, listener, self._stop)
        thread = threading.Thread(target=lambda: run_sync(work()), name="leasehold-sqlite-hints", daemon=True)
        _receivers[self._address] = self
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: a waiter polls by itself
            self._unregister()
            if listener is not None:
                listener.close()
        else:
            self._thread = thread

    async def _run(self, listener: socket.socket | None, stop: threading.Event) -> None:
        idle, due = 0, time.monotonic() + CHECK_EVERY
        try:
            while not stop.is_set():
                left = due - time.monotonic()
                if left > 0:  # a stream of hints must not delay the check, which replaces lost ones
                    ticket = self._receive_hint(listener, stop, left)
                    if ticket:
                        self.receive(ticket)
                    continue
                due = time.monotonic() + CHECK_EVERY
                idle = 0 if self._check() else idle + 1
                if idle >= IDLE_CHECKS and self._ends_idle():
                    return
        finally:
            if listener is not None:
                listener.close()

    def _receive_hint(self, listener: socket.socket | None, stop: threading.Event, timeout: float) -> str:
        """Return the ticket of a hint; empty for a foreign datagram, or if none came in time."""
        if listener is None:
            stop.wait(timeout)
            return ""
        try:
            listener.settimeout(timeout)
            data = listener.recv(256)
        except TimeoutError:
            return ""
        except OSError:
            stop.wait(timeout)
            return ""
        known = hmac.compare_digest(data[:KEY_BYTES], self._key)
        return data[KEY_BYTES:].decode("ascii", "replace") if known else ""

    def _check(self) -> bool:
        waiters = self._waiters()
        try:
            return waiters is not None and waiters.check()
        except Exception:
            log.exception("a poll for grants failed unexpectedly; polling continues")
            return True

    def _ends_idle(self) -> bool:
        with self._mutex:  # no check in here: it locks the file, whose user may wait in `listen` for this mutex
            waiters = self._waiters()
            if waiters is not None and waiters.has_waiters():
                return False
            self._unregister()
            return True

    def _unregister(self) -> None:
        self._thread = None
        self._socket = None
        _receivers.pop(self._address, None)


_receivers: weakref.WeakValueDictionary[str, HintReceiver] = weakref.WeakValueDictionary()


def hint(address: str, ticket: str, network: str) -> None:
    """Send a hint for ``ticket`` to ``address``: at once in this process, else by a datagram.

    Nothing is sent to another network namespace: the port there is not the port here.
    """
    receiver = _receivers.get(address)
    if receiver is not None:
        receiver.receive(ticket)
        return
    try:
        there, port, key = address.rsplit(" ", 2)
        data = bytes.fromhex(key) + ticket.encode("ascii", "replace")
    except ValueError:
        return  # no address: the waiter polls by itself
    if there == network and port.isdecimal() and 0 < int(port) < 65536:
        _send(int(port), data)


def _send(port: int, data: bytes) -> None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(data, ("127.0.0.1", port))
    except OSError:
        log.debug("a wake-up hint could not be sent; the waiter polls by itself", exc_info=True)


def _loopback() -> socket.socket | None:
    listener = None
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind(("127.0.0.1", 0))
    except OSError:
        if listener is not None:
            listener.close()
        return None
    return listener


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_receivers.clear)  # they belong to the parent
