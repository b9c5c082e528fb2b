"""The client processes of a run: each reaches the store through a proxy of its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from leasehold._url import Secret, StoreURL
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.verify.clients.forkserver import ForkServer
from leasehold_lab.verify.clients.worker import ENDS_WITHIN, Orders

STARTS_WITHIN = 60.0
"""Seconds within which a client must be ready."""

PORTS = {
    "redis": 6379,
    "valkey": 6379,
    "redlock": 6379,
    "postgresql": 5432,
    "postgres": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "zookeeper": 2181,
    "etcd": 2379,
}
"""Default ports of the schemes whose clients connect only to the hosts of the URL."""


class VerifyError(Exception):
    """The run is not possible, or it failed; the message names the reason and what to do."""


def default_port(url: StoreURL) -> int | None:
    """Return the default port of a scheme; None if its clients discover their servers by themselves.

    A custom scheme that ends in ``+redis`` has the port of ``redis``.
    """
    return PORTS.get(url.scheme.rpartition("+")[2])


class Connections:
    """A client's connections: one fault proxy for each host of the URL, or none.

    Args:
        url: of the store.
        through: whether to use proxies, so that faults can be injected.

    """

    def __init__(self, url: StoreURL, *, through: bool) -> None:
        port = default_port(url)
        hosts = url.hosts if through and port is not None else ()
        self.proxies = [FaultProxy((host, at or port or 0)).start() for host, at in hosts]
        self._url = url

    @property
    def url(self) -> Secret:
        """The URL with which the client reaches the store."""
        if not self.proxies:
            return self._url.raw
        parts = urlsplit(self._url.raw.reveal())
        user, at, _ = parts.netloc.rpartition("@")
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        return Secret(urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}")))

    def close(self) -> None:
        """Close the proxies."""
        for proxy in self.proxies:
            proxy.close()


class Process:
    """One client process."""

    def __init__(self, orders: Orders, connections: Connections, folder: Path, forkserver: ForkServer) -> None:
        self.who = orders.who
        self.connections = connections
        self.orders = orders
        self.journal = Path(orders.journal)
        self.log = folder / f"client-{orders.who}.log"
        with self.log.open("wb") as stderr:
            self._child = forkserver.client(stderr)
        self._child.stdin.write(_as_line(orders, connections.url))
        self._child.stdin.flush()

    def wait_ready(self) -> None:
        """Wait until the client is ready.

        Raises:
            VerifyError: it did not start; the message has the last line of its standard error.

        """
        until = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < until:
            if self._child.stdout.readline():
                return
            if self._child.poll() is not None:
                break
            time.sleep(0.005)
        raise VerifyError(f"a client did not start: {self.last_error()}")

    @property
    def alive(self) -> bool:
        """Whether the process runs or is stopped."""
        return self._child.poll() is None

    def stop(self) -> None:
        """Stop it (SIGSTOP), wherever it is."""
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue (SIGCONT)."""
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(ENDS_WITHIN)
        self._close()

    def ask_to_end(self) -> None:
        """Ask it to finish its current operations and to exit."""
        if self.alive:
            try:
                self._child.stdin.write(b"stop\n")
                self._child.stdin.flush()
            except BrokenPipeError:
                return

    def end(self) -> bool:
        """Wait until it has ended; return whether it exited by itself with status 0."""
        code = self._child.wait(ENDS_WITHIN)
        if code is None:
            self.kill()
        else:
            self._close()
        return code == 0

    def last_error(self) -> str:
        """Return the last line of its standard error."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing on standard error"

    def _close(self) -> None:
        self._child.close()
        self.connections.close()


def _as_line(orders: Orders, url: Secret) -> bytes:
    fields = {**asdict(replace(orders, url="")), "url": url.reveal(), "flavor": orders.flavor.value}
    return json.dumps(fields).encode() + b"\n"


def end_all(processes: Iterable[Process]) -> list[Process]:
    """End all processes; return those that failed."""
    running = [process for process in processes if process.alive]
    for process in running:
        process.ask_to_end()
    return [process for process in running if not process.end()]
