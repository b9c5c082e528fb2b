"""Listens to what leasehold sends for one acquire and one release, so that the floor can send the very same bytes."""

from __future__ import annotations

import select
import socket
import threading
from dataclasses import dataclass

from leasehold import Client
from leasehold.bench.subjects.base import Scope

NAME = "%07d"
"""Form of the names: all of one length, so that one recording serves for all by putting in another name."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The packed commands of one acquire, of its release, and of a try that is refused, for the name of number 0."""

    acquire: bytes
    release: bytes
    attempt: bytes

    def renamed(self, name: str) -> Recording:
        """Return the same for another name of the form `NAME`."""
        old, new = (NAME % 0).encode(), name.encode()
        if len(old) != len(new):
            raise ValueError(f"{name!r} is not of the form {NAME!r}")
        return Recording(*(part.replace(old, new) for part in (self.acquire, self.release, self.attempt)))


def record(scope: Scope) -> Recording:
    """Let two clients of leasehold lock through a socket that is listened to."""
    tap = _Tap(scope.address)
    url = f"redis://{_userinfo(scope)}127.0.0.1:{tap.port}/{scope.database}"
    name = NAME % 0
    try:
        with _client(url, scope) as one, _client(url, scope) as two:
            for client in (one, two):
                client.lock(NAME % 1).acquire().release()  # type: ignore[union-attr]  # connects
            tap.take()
            hold = one.lock(name).acquire()
            acquire = tap.take()
            two.lock(name).acquire(blocking=False)
            attempt = tap.take()
            hold.release()  # type: ignore[union-attr]
            release = tap.take()
    finally:
        tap.close()
    for what, command in (("acquire", acquire), ("release", release), ("try", attempt)):
        if command.count(b"*") < 1 or command.count(b"\r\n*") > 0:
            raise RuntimeError(f"leasehold sent more than one command for one {what}; the floor has no form for that")
    return Recording(acquire, release, attempt)


def _client(url: str, scope: Scope) -> Client:
    return Client.from_url(url, namespace=scope.namespace)


def _userinfo(scope: Scope) -> str:
    return scope.url.partition("://")[2].rpartition("@")[0] + "@" if "@" in scope.url else ""


class _Tap:
    """Passes bytes on between clients and the server, and keeps what clients send."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._kept: list[bytes] = []
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._ends, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        """Return what was sent since the last call; its replies have come, so all of it has passed here."""
        kept = b"".join(self._kept)
        self._kept.clear()
        return kept

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
        server = socket.create_connection(self._server)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients.add(client)
        self._peers[client], self._peers[server] = server, client

    def _pass_on(self, one: socket.socket) -> None:
        other = self._peers[one]
        data = one.recv(65536)
        if data:
            if one in self._clients:
                self._kept.append(data)
            other.sendall(data)
            return
        for end in (one, other):
            del self._peers[end]
            end.close()
