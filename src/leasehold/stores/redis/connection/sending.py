"""A send that keeps the interpreter lock, for a client that several threads use.

`socket.send` gives the interpreter lock up for the few microseconds that the kernel needs. Where other threads are
busy, one of them takes it. So the sender must be woken before it can even begin to wait for the reply, which gives the
lock up once more. With eight threads such switches take as long as all else in an acquire. So here the lock is kept. It
must be a send that does not wait (``MSG_DONTWAIT``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""A connection that has ended is an error, and no signal."""

LibrarySend = Callable[[int, bytes, int, int], int]
"""``send`` of the C library: descriptor, data, length, flags; returns how many bytes were taken, or -1."""


@cache
def library_send() -> LibrarySend | None:
    """Return ``send`` of the C library, called with the interpreter lock; None if it cannot be called so."""
    try:
        import ctypes  # some builds of Python lack it; and a client of one thread needs none

        send = ctypes.PyDLL(None).send
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = ctypes.c_ssize_t
    return send


def send_keeping_the_lock(sock: socket.socket) -> Callable[[bytes, int], int]:
    """Return what sends data with flags as ``sock.send`` does; its errors are those of ``sock.send``."""
    send, fileno, usual_send = library_send(), sock.fileno, sock.send
    if send is None:
        return usual_send

    def send_at_once(data: bytes, flags: int) -> int:
        taken = send(fileno(), data, len(data), flags | NO_SIGNAL)  # each time: a closed socket has no number
        return usual_send(data, flags) if taken < 0 else taken

    return send_at_once
