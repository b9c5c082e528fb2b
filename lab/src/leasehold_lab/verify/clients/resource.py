"""The resource that the locks protect in a run: it checks tokens, and records the writes in order.

It runs in the process of the run, and clients connect to it on a loopback port. So a client that is stopped in the
middle of a write delays no other client. Its rule is that of every guarded resource: a token must not be below the
highest one seen, and an equal one must have the same owner.
"""

from __future__ import annotations

import json
import selectors
import socket
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from leasehold.guards import Stale, sql
from leasehold_lab.history import Write

ANSWERS_WITHIN = 10.0
"""Seconds after which a client stops waiting for the resource: the run has ended."""

CHUNK = 1 << 12


class Values:
    """Any number of guarded values, by name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.writes: list[Write] = []
        self._now = now
        self._latest: dict[str, tuple[int, str]] = {}
        self._mutex = threading.Lock()

    def write(self, who: str, name: str, token: int) -> bool:
        """Apply a write, unless a newer holder has written; return whether it was applied."""
        with self._mutex:
            at = self._now()
            fence, owner = self._latest.get(name, (0, ""))
            accepted = (token != fence or owner == who) and self._apply(who, name, token)
            if accepted:
                self._latest[name] = token, who
            self.writes.append(Write(who, name, len(self.writes), token, who, accepted, at))
            return accepted

    def _apply(self, who: str, name: str, token: int) -> bool:
        """Write, unless the token is below the highest one seen; return whether it was applied."""
        return token >= self._latest.get(name, (0, ""))[0]


class Resource(Values):
    """Guarded values that other processes can reach: rows of a table, protected by `leasehold.guards.sql`.

    One thread serves all clients, in order of arrival: with one thread for each, the interpreter would spend most of
    its time on switching between threads.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._rows = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._rows.execute("CREATE TABLE guarded (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER NOT NULL DEFAULT 0)")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop_reader, self._stop_writer = socket.socketpair()  # closing the writer stops the thread
        self._thread = threading.Thread(target=self._serve, name="guarded-resource", daemon=True)

    def _apply(self, who: str, name: str, token: int) -> bool:
        if name not in self._latest:
            self._rows.execute("INSERT OR IGNORE INTO guarded (name) VALUES (?)", (name,))
        try:
            sql.update(self._rows, "guarded", {"owner": who}, where={"name": name}, token=token)
        except Stale:
            return False
        return True

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 on which it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_writer.close()
        self._thread.join()
        self._stop_reader.close()
        self._rows.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._stop_reader, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ, partial(self._accept, selector))
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        _close_all(selector)
                        return
                    key.data()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        partial_line = bytearray()
        selector.register(connection, selectors.EVENT_READ, partial(self._answer, selector, connection, partial_line))

    def _answer(self, selector: selectors.BaseSelector, connection: socket.socket, partial_line: bytearray) -> None:
        try:
            data = connection.recv(CHUNK)
            partial_line += data
            while (end := partial_line.find(b"\n")) >= 0:
                who, name, token = json.loads(partial_line[:end])
                del partial_line[: end + 1]
                connection.sendall(b"1\n" if self.write(who, name, token) else b"0\n")
        except OSError:
            data = b""
        if not data:  # the client was killed, perhaps in the middle of a line
            selector.unregister(connection)
            connection.close()


def _close_all(selector: selectors.BaseSelector) -> None:
    for key in list(selector.get_map().values()):
        if isinstance(key.fileobj, socket.socket) and key.data is not None:
            key.fileobj.close()


class ResourceClient:
    """A client's connection to the resource; for one thread or event loop."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWERS_WITHIN)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def write(self, who: str, name: str, token: int) -> bool:
        """Write under a token; return whether it was applied."""
        self._socket.sendall(json.dumps([who, name, token]).encode() + b"\n")
        return self._reader.readline() == b"1\n"

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()
