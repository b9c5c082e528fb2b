"""A send that keeps the interpreter lock, for a client that several threads use.

`socket.send` gives the interpreter lock up for the few microseconds that the kernel needs. Where other threads are
busy, one of them takes it. So the sender must be woken before it can even begin to wait for the reply, which gives the
lock up once more. With eight threads such switches take as long as all else in an acquire. So here the lock is kept: a
send to a socket that has room does not wait. If there is none, the socket's own send waits for it as usual.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import cache

AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)

Send = Callable[[int, bytes, int, int], int]
"""``send`` of the C library: descriptor, data, length, flags; returns how many bytes were taken, or -1."""


@cache
def libc_send() -> Send | None:
    """Return ``send`` of the C library, called with the interpreter lock; None if it cannot be called so."""
    try:
        import ctypes  # some builds of Python lack it; and a client of one thread needs none

        send = ctypes.PyDLL(None).send
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = ctypes.c_ssize_t
    return send


def sendall_at_once(sock: socket.socket) -> Callable[[bytes], None]:
    """Return what sends all of some bytes, as ``sock.sendall`` does; its errors are those of ``sock.sendall``."""
    sendall, fileno, send = sock.sendall, sock.fileno, libc_send()
    if send is None or sys.platform == "win32":
        return sendall

    def send_all(data: bytes) -> None:
        taken = send(fileno(), data, len(data), AT_ONCE)  # the number is asked each time: a closed socket has none
        if taken != len(data):
            sendall(data[max(taken, 0) :])

    return send_all
