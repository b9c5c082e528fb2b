"""Wake-up hints between processes of one host: a loopback datagram for a waiter, and one thread that receives them.

A lost, late, duplicated or forged hint does no harm: a waiter reads the store after each hint, and the thread polls the
store at a stated interval, too. A `HintSignal` has an address only while its thread runs: network namespace, port and a
random key. So a hint to a port that another program uses by now has no effect.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable

LINGER = 40
"""Polls in a row without a waiter after which the thread and its socket end; the next waiter starts them again."""

CLOSE_PATIENCE = 2.0
"""Seconds that closing waits for the thread, which may be polling."""

KEY_BYTES = 16

log = logging.getLogger("leasehold")


class HintSignal:
    """Receives the hints for one store. Safe to use from any thread."""

    def __init__(
        self,
        key: bytes,
        network: str,
        *,
        rung: Callable[[str], None],
        look: Callable[[], bool],
        waited_for: Callable[[], bool],
        every: float,
    ) -> None:
        """Make one without a thread.

        Args:
            key: random bytes that a hint must carry.
            network: identifies the network namespace of the port.
            rung: called with the ticket of each hint; a bound method, held weakly.
            look: polls the store; returns whether there are waiters; a bound method, held weakly.
            waited_for: as ``look``, but without the store, since `listen` may wait for it; held weakly.
            every: seconds between two polls.

        """
        self._key = key
        self._network = network
        self._rung = weakref.WeakMethod(rung)
        self._look = weakref.WeakMethod(look)
        self._waited_for = weakref.WeakMethod(waited_for)
        self._every = every
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._port = 0
        self._address = ""

    def listen(self) -> str | None:
        """Start the thread if needed; return the address for hints, None if no thread can be started.

        The waiter must be known to ``waited_for`` before, so that the thread does not end now.
        """
        with self._mutex:
            if self._thread is None:
                self._start()
            return self._address if self._thread is not None else None

    def rings(self, ticket: str) -> None:
        """Take a hint that came without a datagram, from another store of this process."""
        rung = self._rung()
        if rung is not None:
            rung(ticket)

    def close(self) -> None:
        """End the thread and close the socket."""
        with self._mutex:
            thread, port = self._thread, self._port  # read before the stop, after which the thread closes the socket
            self._stop.set()
            self._silence()
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
        thread = threading.Thread(
            target=self._run, args=(listener, self._stop), name="leasehold-sqlite-hints", daemon=True
        )
        _signals[self._address] = self
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: a waiter polls by itself
            self._silence()
            if listener is not None:
                listener.close()
        else:
            self._thread = thread

    def _run(self, listener: socket.socket | None, stop: threading.Event) -> None:
        idle, due = 0, time.monotonic() + self._every
        try:
            while not stop.is_set():
                left = due - time.monotonic()
                if left > 0:  # a stream of hints must not delay the poll, which replaces lost ones
                    ticket = self._hear(listener, stop, left)
                    if ticket:
                        self.rings(ticket)
                    continue
                due = time.monotonic() + self._every
                idle = 0 if self._looks() else idle + 1
                if idle >= LINGER and self._ends_idle():
                    return
        finally:
            if listener is not None:
                listener.close()

    def _hear(self, listener: socket.socket | None, stop: threading.Event, timeout: float) -> str:
        """Return the ticket of a hint; empty for noise, or if nothing came in time."""
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
        if not hmac.compare_digest(data[:KEY_BYTES], self._key):
            return ""
        return data[KEY_BYTES:].decode("ascii", "replace")

    def _looks(self) -> bool:
        look = self._look()
        try:
            return look is not None and look()
        except Exception:
            log.exception("a poll for grants failed unexpectedly; polling continues")
            return True

    def _ends_idle(self) -> bool:
        with self._mutex:  # no poll in here: it locks the database, whose user may wait in `listen` for this mutex
            waited_for = self._waited_for()
            if waited_for is not None and waited_for():
                return False
            self._silence()
            return True

    def _silence(self) -> None:
        self._thread = None
        self._socket = None
        _signals.pop(self._address, None)


_signals: weakref.WeakValueDictionary[str, HintSignal] = weakref.WeakValueDictionary()


def hint(address: str, ticket: str, network: str) -> None:
    """Send a hint for ``ticket`` to ``address``: at once in this process, else by a datagram.

    Nothing is sent to another network namespace: the port there is not the port here.
    """
    hint_signal = _signals.get(address)
    if hint_signal is not None:
        hint_signal.rings(ticket)
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
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        listener.bind(("127.0.0.1", 0))
    except OSError:
        listener.close()
        return None
    return listener


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_signals.clear)  # the parent's signals do not belong to the child
