"""A client of etcd that goes on at another member: its connections there are kept, and an idle watch is no reason."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Request, Unanswered
from leasehold.stores.etcd.http.blocking import BlockingHttp
from leasehold.stores.etcd.http.pool import IDLE_CONNECTIONS
from leasehold.stores.etcd.keys import Keys
from leasehold.stores.etcd.waiting import Watch

RUNTIME = BlockingRuntime()

MEMBERS = (Endpoint("e0", 2379), Endpoint("e1", 2379))

MANY = 50


class Member:
    """Answers each request, and counts its connections."""

    def __init__(self) -> None:
        self.accepted = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self.socket.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.accepted += 1
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(65_536):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        self.socket.close()


@pytest.fixture
def members() -> Iterator[tuple[Member, Member]]:
    both = Member(), Member()
    yield both
    for member in both:
        member.close()


def test_connections_to_a_member_that_was_left_make_room_for_others(members: tuple[Member, Member]) -> None:
    before, after = members
    http = BlockingHttp(RUNTIME)

    def ask(member: Member) -> None:
        request = Request("POST", "/v3/kv/txn", (), b"{}")
        assert finish(http.ask(member.endpoint, request, RUNTIME.now() + 5.0)).status == 200

    at_once: list[Any] = [finish(http._connect(before.endpoint, RUNTIME.now() + 5.0)) for _ in range(IDLE_CONNECTIONS)]
    http._idle += at_once  # after as many requests at the same time
    try:
        for _ in range(MANY):
            ask(before)
        for _ in range(MANY):
            ask(after)
        idle, closed = len(http._idle), [one for one in at_once if one._socket.fileno() == -1]
    finally:
        finish(http.close())
    assert (before.accepted, after.accepted) == (IDLE_CONNECTIONS, 1)
    assert (idle, len(closed)) == (IDLE_CONNECTIONS, 1), "the one that was replaced is closed"


class Stream:
    """A watch without a message; or one that its member ends."""

    def __init__(self, ends: bool) -> None:
        self._ends = ends

    async def read(self, timeout: float) -> bytes:
        if self._ends:
            raise Unanswered("it closed the connection")
        return b""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("ends", [True, False])
def test_a_watch_leaves_its_member_if_that_ended_it_and_not_because_nobody_waits(ends: bool) -> None:
    class Http:
        async def stream(self, endpoint: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
            return 200, Stream(ends)

    settings, http = Settings("the members", MEMBERS), Http()
    gateway = Gateway(RUNTIME, settings, http)  # type: ignore[arg-type]
    gateway.version = "3.5.16"
    watch: Any = Watch(RUNTIME, gateway, Keys.of(settings, "test"))
    assert finish(watch._follow()) is False
    assert gateway._endpoint() is MEMBERS[ends]
