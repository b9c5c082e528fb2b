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
        self._sent: list[bytes] = []
        self._requests = 0
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._awaiting_reply: set[socket.socket] = set()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True, name="leasehold-relay")
        self._thread.start()

    def take(self) -> bytes:
        """Return the bytes that clients have sent since the last call; call it when all replies have arrived."""
        sent = b"".join(self._sent)
        self._sent.clear()
        self._requests = 0
        return sent

    @property
    def requests(self) -> int:
        """The round trips since `take`. One begins when a client sends on a connection that awaits no reply."""
        return self._requests

    def close(self) -> None:
        """End the thread and close all sockets."""
        self._stop_writer.close()
        self._thread.join()
        for one in (self._listener, self._stop_reader, *self._peers):
            one.close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._stop_reader, *self._peers], [], [])
            if self._stop_reader in ready:
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
                self._record(one, other, data)
                other.sendall(data)
                return
        except OSError:
            pass  # one of the two has closed the connection
        for end in (one, other):
            del self._peers[end]
            self._clients.discard(end)
            self._awaiting_reply.discard(end)
            end.close()

    def _record(self, one: socket.socket, other: socket.socket, data: bytes) -> None:
        if one not in self._clients:
            self._awaiting_reply.discard(other)
            return
        self._sent.append(data)
        if one not in self._awaiting_reply:
            self._awaiting_reply.add(one)
            self._requests += 1

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
