"""Sends that keep the interpreter lock: all arrives, errors are the usual ones, and no other thread gets a turn."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from leasehold.stores.redis.connection import sending
from leasehold.stores.redis.connection.sending import send_keeping_the_lock

A_LOT = bytes(range(256)) * 8192

AT_ONCE = socket.MSG_DONTWAIT

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_the_socket_has_room_for_is_taken_and_arrives(pair: Pair) -> None:
    ours, theirs = pair
    send, sent, got = send_keeping_the_lock(ours), 0, bytearray()
    with suppress(BlockingIOError):
        while True:
            sent += send(A_LOT[sent:], AT_ONCE)
    assert 0 < sent < len(A_LOT)
    while len(got) < sent:
        got += theirs.recv(65536)
    assert got == A_LOT[:sent]


def test_a_peer_that_is_gone_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    send = send_keeping_the_lock(ours)
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        send(b"x", AT_ONCE)


def test_nothing_reaches_a_socket_that_has_the_number_of_a_closed_one(pair: Pair) -> None:
    ours, _ = pair
    send, number = send_keeping_the_lock(ours), ours.fileno()
    ours.close()
    one, other = socket.socketpair()
    with one, other:
        assert number in (one.fileno(), other.fileno())
        with pytest.raises(OSError, match="Bad file descriptor"):
            send(b"x", AT_ONCE)
        for each in (one, other):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)


def test_where_the_c_library_cannot_be_called_the_socket_sends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair
    monkeypatch.setattr(sending, "library_send", lambda: None)
    send_keeping_the_lock(ours)(b"hello", AT_ONCE)
    assert theirs.recv(5) == b"hello"


def _first_after(send: Callable[[bytes, int], int]) -> str:
    """Return who runs first after a send: this thread, or one that waits for the interpreter lock meanwhile."""
    order, go = list[str](), threading.Lock()
    go.acquire()
    other = threading.Thread(target=lambda: (go.acquire(), order.append("the other")))
    other.start()
    time.sleep(0.01)  # it waits now
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        go.release()
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:  # keeps the interpreter lock, for which the other waits soon
            pass
        send(b"x", AT_ONCE)
        order.append("the sender")
    finally:
        sys.setswitchinterval(interval)
    other.join()
    return order[0]


def test_no_other_thread_gets_a_turn(pair: Pair) -> None:
    """The socket's own send shows that the other thread would take it."""
    ours, _ = pair
    assert [_first_after(send_keeping_the_lock(ours)) for _ in range(3)] == ["the sender"] * 3
    assert "the other" in [_first_after(ours.send) for _ in range(20)]
