"""A process whose children do what they are ordered, and are killed by their own hand after the k-th effect of it.

Orders are lines of JSON on standard input; what the children say are lines of JSON on standard output. The process is
itself without threads, so that it can fork, and imports whatever they need, so that a child begins at once.

An effect is an answer that a server sent, so that what was asked for is done, and that its client never saw: the child
has read it, and dies before anybody looks at it. With SQLite it is a statement. What comes before the operation, a
connection and one look, does not count.
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

from operations import OPERATIONS, done, turns

from leasehold import LeaseLost, StoreUnavailable, Unsupported
from leasehold._runtimes.clock import boottime
from leasehold.events import Acquired, Event
from leasehold.stores.postgres.connection.exchange import Connection
from leasehold.stores.registry import factory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

NEEDED = ("encodings.idna", "leasehold.stores.mysql.connection.blocking")
"""What is imported later than a store, as it connects."""

WORK = {**OPERATIONS, "turns": turns}


def tell(**facts: Any) -> None:
    """Say a line in one piece."""
    try:
        os.write(1, json.dumps(facts).encode() + b"\n")
    except BrokenPipeError:  # nobody wants to know any more
        os._exit(1)


class Effects:
    """Counts them from `begin` on, in whatever threads; with the last that it may have the process ends."""

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
                tell(id=self._who, killed=self._count, at=boottime())
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, url: str) -> None:
        """Notice whatever is read from a server, by Python's sockets or by libpq, or is executed by SQLite."""
        if url.startswith("sqlite:"):
            threading.setprofile(self._statement)
            sys.setprofile(self._statement)
            return
        for name in ("recv", "recv_into"):
            setattr(socket.socket, name, self._reading(getattr(socket.socket, name)))
        begin, one_more = Connection.__init__, self.one_more

        def begin_watched(link: Connection, pgconn: Any) -> None:
            begin(link, pgconn)
            link._pgconn = Watched(pgconn, one_more)  # type: ignore[assignment]

        Connection.__init__ = begin_watched  # type: ignore[method-assign]

    def _reading(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def receiving(link: socket.socket, *args: Any) -> Any:
            got = receive(link, *args)
            if got and link.family != socket.AF_UNIX and link.type == socket.SOCK_STREAM:
                self.one_more()
            return got

        return receiving

    def _statement(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and arg.__name__ == "execute" and isinstance(arg.__self__, sqlite3.Connection):
            self.one_more()


class Watched:
    """A connection of libpq, but for what it reads."""

    def __init__(self, pgconn: Any, one_more: Callable[[], None]) -> None:
        self._pgconn = pgconn
        self._one_more = one_more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pgconn, name)

    def consume_input(self) -> None:
        self._pgconn.consume_input()
        self._one_more()


def live(order: dict[str, Any]) -> None:
    """Do all that was ordered, one operation after the other, each in a namespace of its own."""
    me, effects = order["id"], Effects(order["id"], order["last"])
    effects.watch(order["url"])

    def observe(event: Event) -> None:
        if isinstance(event, Acquired):
            tell(id=me, token=event.token, of=event.name)

    async def body(harness: Harness) -> None:
        for name, namespace in order["work"]:
            client = harness.client(order["url"], namespace=namespace, response_timeout=10.0, observer=observe)
            await client.inspect("a")
            effects.begin()
            try:
                await done(WORK[name](harness, client, order["lease"]))
            except Unsupported:
                tell(id=me, lacks=name)
            except (LeaseLost, StoreUnavailable):  # the machine is busy: it was told, and that is an end, too
                tell(id=me, lost=name)
            tell(id=me, did=name, effects=effects.end())
            await client.close()

    harness = BlockingHarness() if order["flavor"] == "blocking" else AsyncioHarness()
    harness.run(body)
    tell(id=me, done=True)


def prepare(url: str) -> None:
    """Import whatever the children will need, once instead of in each."""
    factory(url.partition(":")[0])
    for module in NEEDED:
        importlib.import_module(module)
    gc.freeze()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    while line := sys.stdin.readline():
        order = json.loads(line)
        prepare(order["url"])
        if os.fork() == 0:
            code = 1
            try:
                live(order)
                code = 0
            except BaseException as error:
                tell(id=order["id"], failed=repr(error)[:1000])
                raise
            finally:
                os._exit(code)


if __name__ == "__main__":
    main()
