"""Many clients for a long time, while their links and their server fail: nothing grows, and at the end nothing is left.

By night this lasts for ten minutes, or for as long as `LEASEHOLD_SOAK_SECONDS` says.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedisServer

PARTY = Path(__file__).parents[1] / "support" / "programs" / "soak_client.py"

BY_NIGHT = float(os.environ.get("LEASEHOLD_SOAK_SECONDS", "600"))

LEASE = 1.0

SETTLED = 1.5 * LEASE
"""Seconds after which nothing is owed any more: answers have come or not, and leases are over."""

RESTS = 10

GROWTH = 0.01
"""Part by which what is in use may in the end be above its most in the first half."""

AN_HOUR = 3600.0
"""Seconds after which the same holds for the memory that the system sees: before, holes come to lie in it."""

THREADS_OF_A_CLIENT = 1
"""Threads that a blocking client may have at rest: its watchdog's."""

TASKS_OF_A_CLIENT = 1
"""Tasks that a client of asyncio may have at rest: its watchdog's."""

FILES_OF_A_CLIENT = 4
"""Descriptors that a client may have at rest: two connections, of which one listens, and the bell of the listener."""

NO_END = -1
"""What Redis says of a key that is never dropped."""

LOOP = 3
"""Descriptors of an event loop."""


class Party:
    """The process with the clients."""

    def __init__(self, url: str, namespace: str, **order: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PARTY), url, namespace, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.before = self._said()

    def rest(self) -> dict[str, Any]:
        """Let all come to rest; return what the process has then."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{SETTLED}\n")
        self._process.stdin.flush()
        return self._said()

    def end(self) -> dict[str, Any]:
        """Close all clients; return what the process has left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._said()

    def kill(self) -> None:
        """End it."""
        with self._process:
            self._process.kill()

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said


@contextmanager
def party(url: str, namespace: str, **order: Any) -> Generator[Party]:
    running = Party(url, namespace, **order)
    try:
        yield running
    finally:
        running.kill()


def faults(server: RedisServer, proxy: FaultProxy) -> list[Callable[[], object]]:
    """Return what may happen to links and to the server; what lasts is ended by `healed`."""
    return [
        proxy.cut,
        proxy.blackhole,
        lambda: proxy.delay(random.uniform(0.001, 0.05)),
        lambda: proxy.hold(Side.REPLIES),
        lambda: proxy.drop_reply(where=b":"),
        proxy.stop,
        server.pause,
        server.restart,
        lambda: server.command("SCRIPT", "FLUSH"),
        lambda: server.command("CLIENT", "KILL", "TYPE", "NORMAL"),
        lambda: server.command("CLIENT", "KILL", "TYPE", "PUBSUB"),
    ]


def healed(server: RedisServer, proxy: FaultProxy) -> None:
    server.resume()
    proxy.start()
    proxy.heal()
    proxy.forget()


def disturb(server: RedisServer, proxy: FaultProxy, seconds: float) -> int:
    """Make faults for so many seconds, and mend them; return how many there were."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        random.choice(faults(server, proxy))()
        time.sleep(random.uniform(0.05, 1.0))
        healed(server, proxy)
        time.sleep(random.uniform(0.2, 2.0))
        count += 1
    return count


@pytest.mark.parametrize(
    ("seconds", "clients", "threads", "tasks", "to_the_end"),
    [(6.0, 40, 5, 10, False), pytest.param(BY_NIGHT, 500, 25, 50, True, marks=pytest.mark.nightly)],
    ids=["day", "night"],
)
@pytest.mark.timeout(BY_NIGHT * 2 + 600)
def test_nothing_grows_and_nothing_is_left(
    seconds: float, clients: int, threads: int, tasks: int, to_the_end: bool, namespace: str, record_property: Any
) -> None:
    with (
        RedisServer() as server,
        FaultProxy(server.port) as proxy,
        party(
            f"redis://127.0.0.1:{proxy.port}", namespace, clients=clients, threads=threads, tasks=tasks, lease=LEASE
        ) as crew,
    ):
        rests, count = list[dict[str, Any]](), 0
        for _ in range(RESTS):
            count += disturb(server, proxy, seconds / RESTS)
            rests.append(crew.rest())
            print(json.dumps(rests[-1]))
            if not to_the_end and sum(rests[-1]["done"].values()) > 2 * clients:
                break
        left = crew.end()
        print(json.dumps([crew.before, left]))
        assert not [what for what in left["failed"] if what.startswith("unexpected")]
        assert sum(left["done"].values()) > 2 * clients
        for rest in rests:
            assert rest["tasks"] <= 1 + tasks + TASKS_OF_A_CLIENT * clients / 2
            assert rest["threads"] <= 2 + threads + THREADS_OF_A_CLIENT * clients / 2
            assert rest["files"] <= crew.before["files"] + LOOP + FILES_OF_A_CLIENT * clients
        assert left["idle"] == 0
        assert (left["threads"], left["files"]) == (crew.before["threads"], crew.before["files"])
        assert proxy.open_connections == 0
        with Client.from_url(server.url, namespace=namespace) as looker:
            assert looker.holds() == []
        keys = server.command("KEYS", f"*{namespace}*")
        assert isinstance(keys, list)
        assert [key for key in keys if server.command("TTL", str(key)) == NO_END] == []
        if to_the_end:
            for what in ("objects", "in use", *(("memory",) if seconds >= AN_HOUR else ())):
                assert rests[-1][what] <= max(rest[what] for rest in rests[: RESTS // 2]) * (1 + GROWTH), what
    record_property("sum:soak: faults", count)
    record_property("sum:soak: deeds", sum(left["done"].values()))
