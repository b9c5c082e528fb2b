"""Wake-up hints between processes of one host: a loopback datagram that says "look again", and one thread that listens.

A hint is only a hint: lost, late, doubled or forged ones do no harm, since whoever gets one reads the truth from the
store, and the thread looks by itself at a stated interval too. A bell has an address only while someone listens for it:
network namespace, port and a random key, so that a port that meanwhile belongs to someone else rings nothing.
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
"""Looks in a row with nobody waiting after which the thread and its socket end; the next waiter starts them anew."""

CLOSE_PATIENCE = 2.0
"""Seconds that closing waits for the thread, which may be looking."""

KEY_BYTES = 16

log = logging.getLogger("leasehold")


class HintSignal:
    """Listens for one store. Safe to use from any thread."""

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
        """Make a silent bell.

        Args:
            key: random bytes that a hint must carry.
            network: what names the network namespace, in which the port counts.
            rung: called with the ticket of each hint; a bound method, held weakly.
            look: called every so often; returns whether anyone still waits; a bound method, held weakly.
            waited_for: returns whether anyone waits, and asks nobody: `listen` may have to wait for it; held weakly.
            every: seconds between two looks.

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
        """Make sure that the thread runs; return the address for hints, None if no thread can be had.

        Who waits must be known to ``waited_for`` before: then the thread does not end now.
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
            thread, port = self._thread, self._port  # of the socket, which the thread closes as soon as it is to stop
            self._stop.set()
            self._silence()
            if thread is not None and port:
                _send(port, self._key)  # rouses the thread
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
            target=self._run, args=(listener, self._stop), name="leasehold-sqlite-bell", daemon=True
        )
        _signals[self._address] = self
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: who waits asks again by itself
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
                if left > 0:  # a stream of hints does not put off the look that lost ones need
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
            log.exception("looking for grants stumbled; it goes on")
            return True

    def _ends_idle(self) -> bool:
        with self._mutex:  # no look in here: it takes the database, whose user may be in `listen` and want this mutex
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
    """Tell whoever listens at ``address`` to look again for ``ticket``: at once in this process, else by a datagram.

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
        return  # no address: who waits there looks by itself
    if there == network and port.isdecimal() and 0 < int(port) < 65536:
        _send(int(port), data)


def _send(port: int, data: bytes) -> None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(data, ("127.0.0.1", port))
    except OSError:
        log.debug("a wake-up hint could not be sent; who waits looks by itself", exc_info=True)


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
    os.register_at_fork(after_in_child=_signals.clear)  # the parent's bells do not ring in the child
