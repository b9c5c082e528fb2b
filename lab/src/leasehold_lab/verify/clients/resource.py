"""What the locks protect in a run: a resource that checks tokens, and writes down in which order it saw what.

It lives in the process that steers the run, on a loopback port, so that a client that is stopped in the middle of a
write holds up nobody else. Its rule is that of every guarded resource: a token must not be below the highest one seen,
and an equal one must be of the same owner.
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
"""Seconds after which a client gives up on the resource: the run has ended."""

CHUNK = 1 << 12


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
    """Guarded values that other processes can reach: rows of a table, which the guard that users have protects.

    One thread answers all visitors, in the order in which they come: with one for each, the interpreter would mostly
    hand itself from the one to the other.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._rows = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._rows.execute("CREATE TABLE guarded (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER NOT NULL DEFAULT 0)")
        self._door = socket.create_server(("127.0.0.1", 0))
        self._bell, self._ringer = socket.socketpair()  # rings when it is time to end
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
        port: int = self._door.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ringer.close()
        self._thread.join()
        self._bell.close()
        self._rows.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as waiting, self._door:
            waiting.register(self._bell, selectors.EVENT_READ)
            waiting.register(self._door, selectors.EVENT_READ, partial(self._welcome, waiting))
            while True:
                for key, _ in waiting.select():
                    if key.data is None:
                        _hang_up_on_all(waiting)
                        return
                    key.data()

    def _welcome(self, waiting: selectors.BaseSelector) -> None:
        link, _ = self._door.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = bytearray()  # a line that has not ended
        waiting.register(link, selectors.EVENT_READ, partial(self._answer, waiting, link, begun))

    def _answer(self, waiting: selectors.BaseSelector, link: socket.socket, begun: bytearray) -> None:
        try:
            data = link.recv(CHUNK)
            begun += data
            while (end := begun.find(b"\n")) >= 0:
                who, name, token = json.loads(begun[:end])
                del begun[: end + 1]
                link.sendall(b"1\n" if self.write(who, name, token) else b"0\n")
        except OSError:
            data = b""
        if not data:  # it was killed, perhaps in a line
            waiting.unregister(link)
            link.close()


def _hang_up_on_all(waiting: selectors.BaseSelector) -> None:
    for key in list(waiting.get_map().values()):
        if isinstance(key.fileobj, socket.socket) and key.data is not None:
            key.fileobj.close()


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
