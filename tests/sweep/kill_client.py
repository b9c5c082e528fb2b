"""A process whose children carry out orders. A child kills itself after the k-th effect of its order.

Orders are lines of JSON on standard input. The reports of the children are lines of JSON on standard output. The
process has no threads, so that it can fork. It imports the modules that its children need, so that a child starts fast.

An effect is a reply of the server: the request is done, but the client never learns of it. The child has read the
reply from the socket, and dies before it parses the reply. With SQLite, an effect is a statement. Effects before the
operation, for the connection and one `inspect`, do not count.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from sweeping.operations import OPERATIONS, done, turns

from leasehold import LeaseLost, StoreUnavailable, Unsupported
from leasehold._runtimes.clock import boottime
from leasehold.events import Acquired, Event
from leasehold.stores.postgres.connection.exchange import Connection
from leasehold.stores.registry import factory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

NEEDED = ("encodings.idna", "leasehold.stores.mysql.connection.blocking")
"""Modules that a store imports only when it connects."""

WORK = {**OPERATIONS, "turns": turns}


def report(**facts: Any) -> None:
    """Write one line with a single system call, so that lines of several children do not mix."""
    try:
        os.write(1, json.dumps(facts).encode() + b"\n")
    except BrokenPipeError:  # the test has ended
        os._exit(1)


class Effects:
    """Counts effects in all threads from `begin` on, and kills the process at the effect number ``last``."""

    def __init__(self, who: str, last: int) -> None:
        self._who = who
        self._last = last
        self._mutex = threading.Lock()
        self._count: int | None = None

    def begin(self) -> None:
        self._count = 0

    def end(self) -> int:
        count, self._count = self._count, None
        return count or 0

    def one_more(self) -> None:
        with self._mutex:
            if self._count is None:
                return
            self._count += 1
            if self._count == self._last:
                report(id=self._who, killed=self._count, at=boottime())
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, url: str) -> None:
        """Count each read from a server by Python's sockets or by libpq, and each statement of SQLite."""
        if url.startswith("sqlite:"):
            threading.setprofile(self._statement)
            sys.setprofile(self._statement)
            return
        for name in ("recv", "recv_into"):
            setattr(socket.socket, name, self._reading(getattr(socket.socket, name)))
        begin, one_more = Connection.__init__, self.one_more

        def begin_watched(connection: Connection, pgconn: Any) -> None:
            begin(connection, pgconn)
            connection._pgconn = Watched(pgconn, one_more)  # type: ignore[assignment]

        Connection.__init__ = begin_watched  # type: ignore[method-assign]

    def _reading(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def receiving(stream: socket.socket, *args: Any) -> Any:
            got = receive(stream, *args)
            if got and stream.family != socket.AF_UNIX and stream.type == socket.SOCK_STREAM:
                self.one_more()
            return got

        return receiving

    def _statement(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and arg.__name__ == "execute" and isinstance(arg.__self__, sqlite3.Connection):
            self.one_more()


class Watched:
    """A connection of libpq that counts its reads."""

    def __init__(self, pgconn: Any, one_more: Callable[[], None]) -> None:
        self._pgconn = pgconn
        self._one_more = one_more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pgconn, name)

    def consume_input(self) -> None:
        self._pgconn.consume_input()
        self._one_more()


def live(order: dict[str, Any]) -> None:
    """Carry out an order: its operations, one after the other, each in its own namespace."""
    me, effects = order["id"], Effects(order["id"], order["last"])
    effects.watch(order["url"])

    def observe(event: Event) -> None:
        if isinstance(event, Acquired):
            report(id=me, token=event.token, of=event.name)

    async def body(harness: Harness) -> None:
        for name, namespace in order["work"]:
            client = harness.client(order["url"], namespace=namespace, response_timeout=10.0, observer=observe)
            await client.inspect("a")
            effects.begin()
            try:
                await done(WORK[name](harness, client, order["lease"]))
            except Unsupported:
                report(id=me, lacks=name)
            except (LeaseLost, StoreUnavailable):  # on a busy machine; an error ends the operation, too
                report(id=me, lost=name)
            report(id=me, did=name, effects=effects.end())
            await client.close()

    harness = BlockingHarness() if order["flavor"] == "blocking" else AsyncioHarness()
    harness.run(body)
    report(id=me, done=True)


def prepare(url: str) -> None:
    """Import what the children will need once, instead of in each child."""
    factory(url.partition(":")[0])
    for module in NEEDED:
        importlib.import_module(module)
    gc.freeze()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so no child becomes a zombie
    while line := sys.stdin.readline():
        order = json.loads(line)
        prepare(order["url"])
        if os.fork() == 0:
            code = 1
            try:
                live(order)
                code = 0
            except BaseException as error:
                report(id=order["id"], failed=repr(error)[:1000])
                raise
            finally:
                os._exit(code)


if __name__ == "__main__":
    main()
