"""What the locks protect in a run: a resource that checks tokens, and writes down in which order it saw what.

It lives in the process that steers the run, on a loopback port, so that a client that is stopped in the middle of a
write holds up nobody else. Its rule is that of every guarded resource: a token must not be below the highest one seen,
and an equal one must be of the same owner.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sqlite3
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from leasehold.guard import Stale, sql
from leasehold.testing.history import Write

ANSWERS_WITHIN = 10.0
"""Seconds after which a client gives up on the resource: the run has ended."""


class Values:
    """Any number of guarded values, by name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.writes: list[Write] = []
        self._now = now
        self._latest: dict[str, tuple[int, str]] = {}
        self._mutex = threading.Lock()

    def write(self, who: str, name: str, token: int) -> bool:
        """Apply a write of ``who``, unless a newer holder has written; return whether it was applied."""
        with self._mutex:
            at = self._now()
            fence, owner = self._latest.get(name, (0, ""))
            accepted = (token != fence or owner == who) and self._apply(who, name, token)
            if accepted:
                self._latest[name] = token, who
            self.writes.append(Write(who, name, len(self.writes), token, who, accepted, at))
            return accepted

    def _apply(self, who: str, name: str, token: int) -> bool:
        """Write, unless the token is below the highest one seen; return whether it was."""
        return token >= self._latest.get(name, (0, ""))[0]


class Resource(Values):
    """Guarded values that other processes can reach: rows of a table, which the guard that users have protects."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._rows = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._rows.execute("CREATE TABLE guarded (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER NOT NULL DEFAULT 0)")
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="guarded-resource", daemon=True
        )

    def _apply(self, who: str, name: str, token: int) -> bool:
        self._rows.execute("INSERT OR IGNORE INTO guarded (name) VALUES (?)", (name,))
        try:
            sql.update(self._rows, "guarded", {"owner": who}, where={"name": name}, token=token)
        except Stale:
            return False
        return True

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 on which it listens."""
        return self._server.server_address[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._mutex:  # a client that is cut off in a write gets no answer
            self._rows.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        super().__init__(("127.0.0.1", 0), _Visitor)


class _Visitor(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        resource = cast("_Server", self.server).resource
        try:
            for line in self.rfile:
                who, name, token = json.loads(line)
                self.wfile.write(b"1\n" if resource.write(who, name, token) else b"0\n")
        except (OSError, ValueError, sqlite3.ProgrammingError):  # it was killed, perhaps in a line; or the run is over
            return


class Visitor:
    """A client's way to the resource; for one thread or event loop."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWERS_WITHIN)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def write(self, who: str, name: str, token: int) -> bool:
        """Write under a token; return whether it was applied."""
        self._socket.sendall(json.dumps([who, name, token]).encode() + b"\n")
        return self._reader.readline() == b"1\n"

    def close(self) -> None:
        """Hang up."""
        self._reader.close()
        self._socket.close()
