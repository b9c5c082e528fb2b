"""Relays bytes between clients and a server, records what clients send, and counts their requests."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType

CHUNK = 65536


class Relay:
    """Listens on a free port of 127.0.0.1, in a thread of its own, until it is closed.

    Attributes:
        port: its port.

    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._kept: list[bytes] = []
        self._requests = 0
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._asking: set[socket.socket] = set()
        self._ends, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True, name="leasehold-relay")
        self._thread.start()

    def take(self) -> bytes:
        """Return the bytes sent since the last call; call it when all replies have arrived."""
        kept = b"".join(self._kept)
        self._kept.clear()
        self._requests = 0
        return kept

    @property
    def requests(self) -> int:
        """The round trips since `take`: how often a client began to send on a connection without an open request."""
        return self._requests

    def close(self) -> None:
        """End the thread and close all sockets."""
        self._end.close()
        self._thread.join()
        for one in (self._listener, self._ends, *self._peers):
            one.close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._ends, *self._peers], [], [])
            if self._ends in ready:
                return
            for one in ready:
                if one is self._listener:
                    self._accept()
                elif one in self._peers:
                    self._pass_on(one)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients.add(client)
        self._peers[client], self._peers[server] = server, client

    def _pass_on(self, one: socket.socket) -> None:
        other = self._peers[one]
        try:
            if data := one.recv(CHUNK):
                self._note(one, other, data)
                other.sendall(data)
                return
        except OSError:
            pass  # one of the two has closed the connection
        for end in (one, other):
            del self._peers[end]
            self._clients.discard(end)
            self._asking.discard(end)
            end.close()

    def _note(self, one: socket.socket, other: socket.socket, data: bytes) -> None:
        if one not in self._clients:
            self._asking.discard(other)
            return
        self._kept.append(data)
        if one not in self._asking:
            self._asking.add(one)
            self._requests += 1

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
