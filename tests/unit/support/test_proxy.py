"""The fault proxy, against a server that says everything back."""

from __future__ import annotations

import gc
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from leasehold_lab.proxy.proxy import FaultProxy, Side

Connect = Callable[[], socket.socket]


class Echo(socketserver.BaseRequestHandler):
    """Echoes what it receives, and keeps it."""

    heard = bytearray()

    def handle(self) -> None:
        try:
            while data := self.request.recv(65536):
                self.heard += data
                self.request.sendall(data)
        except OSError:
            pass


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@pytest.fixture
def echo() -> Iterator[int]:
    Echo.heard = bytearray()
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[FaultProxy]:
    with FaultProxy(echo) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Connect]:
    links: list[socket.socket] = []

    def connect() -> socket.socket:
        links.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=5))
        return links[-1]

    yield connect
    for link in links:
        link.close()


def say(link: socket.socket, words: bytes) -> bytes:
    link.sendall(words)
    return hear(link, len(words))


def hear(link: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        data = link.recv(size - len(heard))
        if not data:
            return heard
        heard += data
    return heard


def is_silent(link: socket.socket, seconds: float = 0.1) -> bool:
    link.settimeout(seconds)
    try:
        link.recv(1)
    except TimeoutError:
        return True
    finally:
        link.settimeout(5)
    return False


def heard_within(words: bytes, seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if words in Echo.heard:
            return True
        time.sleep(0.005)
    return False


def test_it_carries_everything_when_nothing_is_set(proxy: FaultProxy, connect: Connect) -> None:
    words = bytes(range(256)) * 4096  # a MiB: more than one chunk, more than the kernel's buffers
    link = connect()
    sender = threading.Thread(target=link.sendall, args=(words,))
    sender.start()
    assert hear(link, len(words)) == words
    sender.join()
    assert proxy.connections == 1


def test_all_bytes_come_in_order_whatever_is_set_and_ended_meanwhile(proxy: FaultProxy, connect: Connect) -> None:
    link, sent = connect(), b"".join(number.to_bytes(4, "big") for number in range(1 << 19))
    heard = bytearray()

    def hear() -> None:
        while len(heard) < len(sent) and (data := link.recv(1 << 16)):
            heard.extend(data)
            if len(heard) < 1 << 17:
                time.sleep(0.002)  # a slow reader fills all buffers on the way

    reader = threading.Thread(target=hear)
    reader.start()
    sender = threading.Thread(target=link.sendall, args=(sent,))
    sender.start()
    while reader.is_alive():
        fault = proxy.hold(Side.REPLIES) if len(heard) % 2 else proxy.delay(0.001)
        fault.wait(0.02)
        fault.remove()
        time.sleep(0.002)
    sender.join()
    assert bytes(heard) == sent


def test_no_task_fails_when_a_fault_ends_a_connection(
    proxy: FaultProxy, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for fault in (lambda: proxy.cut_at(1), lambda: proxy.drop_reply(1)):
        fault()
        link = connect()
        link.sendall(b"hello")
        with pytest.raises(ConnectionResetError):
            assert link.recv(10), "it ended without a reset"
    proxy.close()
    gc.collect()
    assert not caplog.records


def test_it_counts_what_it_sees_in_each_direction(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    say(link, b"one EVALSHA two EVALSHA")
    assert proxy.count(b"EVALSHA") == 2
    assert proxy.count(b"EVALSHA", Side.REPLIES) == 2
    proxy.forget()
    assert proxy.count(b"EVALSHA") == 0
    assert proxy.seen() == b""


def test_delay_keeps_bytes_back_for_as_long_as_said(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    fault = proxy.delay(0.2, Side.REPLIES)
    start = time.monotonic()
    assert say(link, b"late") == b"late"
    assert time.monotonic() - start >= 0.2
    fault.remove()
    start = time.monotonic()
    say(link, b"soon")
    assert time.monotonic() - start < 0.2


def test_held_requests_do_not_reach_the_server_until_the_fault_is_removed(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    fault = proxy.hold(Side.REQUESTS)
    link.sendall(b"wait")
    assert fault.wait(5)
    assert not heard_within(b"wait", 0.1)
    fault.remove()
    assert hear(link, 4) == b"wait"


def test_a_held_request_is_served_though_its_client_has_given_up_and_gone() -> None:
    acted, gone = threading.Event(), threading.Event()

    class Careful(socketserver.BaseRequestHandler):
        """Does not begin for a client that has closed its connection, as HTTP servers do."""

        def handle(self) -> None:
            self.request.recv(100)
            if select.select([self.request], [], [], 0.2)[0]:
                gone.set()
                return
            acted.set()
            self.request.sendall(b"done")

    with EchoServer(("127.0.0.1", 0), Careful) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        try:
            with FaultProxy(server.server_address[1]) as proxy:
                fault = proxy.hold(Side.REQUESTS)
                with socket.create_connection(("127.0.0.1", proxy.port)) as link:
                    link.sendall(b"wait")
                    assert fault.wait(5)
                fault.remove()
                assert acted.wait(5)
                assert not gone.is_set()
        finally:
            server.shutdown()
            thread.join()


def test_held_replies_come_after_the_server_has_acted(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    fault = proxy.hold(Side.REPLIES)
    link.sendall(b"done")
    assert heard_within(b"done")
    assert is_silent(link)
    proxy.heal()
    assert hear(link, 4) == b"done"
    assert fault.hits == 1


def test_drop_reply_lets_the_request_through_and_cuts_the_client(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    fault = proxy.drop_reply(2, where=b"EVALSHA")
    assert say(link, b"EVALSHA 1") == b"EVALSHA 1"
    assert say(link, b"PING") == b"PING"
    with pytest.raises(ConnectionResetError):
        say(link, b"EVALSHA 2")
    assert heard_within(b"EVALSHA 2")
    assert fault.hits == 1
    assert say(connect(), b"EVALSHA 3") == b"EVALSHA 3"


def test_cut_at_resets_before_the_request_reaches_the_server(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    proxy.cut_at(where=b"EVALSHA")
    with pytest.raises(ConnectionResetError):
        say(link, b"EVALSHA")
    assert not heard_within(b"EVALSHA", 0.1)
    assert say(connect(), b"EVALSHA") == b"EVALSHA"


def test_drop_swallows_only_what_it_names(proxy: FaultProxy, connect: Connect) -> None:
    link = connect()
    fault = proxy.drop(Side.REPLIES, where=b"message")
    link.sendall(b"message")
    assert is_silent(link)
    assert say(link, b"other") == b"other"
    assert fault.hits == 1


def test_cut_resets_every_connection_and_says_how_many(proxy: FaultProxy, connect: Connect) -> None:
    links = [connect(), connect()]
    for link in links:
        say(link, b"x")
    assert proxy.cut() == 2
    for link in links:
        with pytest.raises(ConnectionResetError):
            link.recv(1)
    assert proxy.open_connections == 0
    assert say(connect(), b"again") == b"again"


def test_a_black_hole_accepts_and_says_nothing(proxy: FaultProxy, connect: Connect) -> None:
    fault = proxy.blackhole()
    link = connect()
    link.sendall(b"hello")
    assert is_silent(link)
    assert not heard_within(b"hello", 0.05)
    fault.remove()
    link.sendall(b"harness")
    with pytest.raises(ConnectionResetError):
        link.recv(1)  # its bytes are lost, and no connection goes on with a hole in it
    assert say(connect(), b"harness") == b"harness"


def test_a_deaf_proxy_lets_nobody_connect(proxy: FaultProxy, connect: Connect) -> None:
    proxy.deaf()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=0.3)
    proxy.heal()
    assert say(connect(), b"hello") == b"hello"


def test_a_stopped_proxy_refuses_and_comes_back_on_its_port(proxy: FaultProxy, connect: Connect) -> None:
    link, port = connect(), proxy.port
    say(link, b"x")
    proxy.stop()
    with pytest.raises(ConnectionResetError):
        link.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.start()
    assert proxy.port == port
    assert say(connect(), b"back") == b"back"


def test_a_server_that_refuses_looks_like_a_reset() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy(unused.getsockname()[1]) as proxy, pytest.raises(ConnectionResetError):  # noqa: SIM117
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as link:
                say(link, b"x")


def test_many_connections_at_once_survive_a_storm_of_cuts(proxy: FaultProxy, connect: Connect) -> None:
    """Numbers of closed sockets are used again at once: the loop must not watch the wrong one."""
    for _ in range(30):
        links = [connect() for _ in range(4)]
        for link in links:
            assert say(link, b"hello") == b"hello"
        proxy.cut()
    assert proxy.connections == 120


def test_nothing_outlives_close(echo: int) -> None:
    proxy = FaultProxy(echo).start()
    link = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
    proxy.hold(Side.REPLIES)
    link.sendall(b"x")
    proxy.close()
    with pytest.raises(ConnectionResetError):
        link.recv(1)
    link.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "fault-proxy"]
