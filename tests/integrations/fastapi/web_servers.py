"""uvicorn with workers, the store of its locks, and requests that break off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from leasehold import Client
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until
from support.workers import PATIENCE, Entry, Journal, Worker, working


@dataclass(frozen=True, slots=True)
class Serving:
    """The shop in uvicorn."""

    port: int
    server: RedisServer
    uvicorn: Worker
    journal: Journal
    folder: Path


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop, a client of it, and a rival of its locks."""

    of: Serving
    http: httpx.Client
    rival: Client

    def post(self, path: str) -> httpx.Response:
        return self.http.post(path)

    def begun(self, name: str) -> Entry:
        """Wait until an endpoint works under its lock."""
        return self.of.journal.until(1, "begin", name=name)[0]

    def waiters(self, name: str) -> int:
        info = self.rival.inspect(name)
        return len(info.waiters) if info else 0

    def is_free_at_once(self, name: str) -> None:
        hold = self.rival.lock(name).acquire(timeout=PATIENCE)
        assert hold is not None, f"{name} is still held\n{self.of.uvicorn.said()}"
        hold.release()

    @contextmanager
    def half(self, text: str) -> Iterator[socket.socket]:
        """Send a request, or the beginning of one; the connection is closed at the end of the block."""
        with socket.create_connection(("127.0.0.1", self.of.port), timeout=PATIENCE) as connection:
            connection.sendall(text.replace("\n", "\r\n").encode())
            yield connection


@contextmanager
def serving(folder: Path, *options: str, workers: int = 2) -> Iterator[Serving]:
    """Run the shop; all processes end with the block."""
    port, journal = free_port(), Journal(folder / "journal")
    command = ("-m", "uvicorn", "web_shop:app", "--port", str(port), "--workers", str(workers), *options)
    with RedisServer() as server:
        given = {"LOCKS": server.url, "JOURNAL": str(journal.path)}
        with working(*command, folder=folder, name="uvicorn", path=Path(__file__).parent, **given) as worker:
            until(lambda: worker.said().count("Application startup complete") >= workers, within=PATIENCE)
            yield Serving(port, server, worker, journal, folder)


@contextmanager
def visited(serving: Serving) -> Iterator[Shop]:
    """Connect to a shop, and to the store of its locks."""
    with (
        httpx.Client(
            base_url=f"http://127.0.0.1:{serving.port}",
            timeout=PATIENCE,
            limits=httpx.Limits(max_keepalive_connections=0),  # each request goes to either worker
            trust_env=False,
        ) as http,
        Client.from_url(serving.server.url) as rival,
    ):
        yield Shop(serving, http, rival)
