"""The processes that a run starts: clients of both flavors, each reaching the store through a proxy of its own."""

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
from leasehold_lab.verify.clients.forkserver import Nursery
from leasehold_lab.verify.clients.worker import ENDS_WITHIN, Orders

STARTS_WITHIN = 60.0
"""Seconds that a client may take to be ready."""

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
"""Ports of the schemes whose servers are reached at the hosts of the URL, and nowhere else."""


class VerifyError(Exception):
    """The run is not possible, or it broke down; the message says why, and what to do."""


def default_port(url: StoreURL) -> int | None:
    """Return the port of a host that names none; None where the clients find their servers by themselves.

    A scheme of one's own that ends in ``+redis`` is reached as ``redis`` is.
    """
    return PORTS.get(url.scheme.rpartition("+")[2])


class Links:
    """A client's connections: one fault proxy for each host of the URL. Without proxies the store is reached directly.

    Args:
        url: of the store.
        through: whether they shall lead through proxies, since faults will be made on them.

    """

    def __init__(self, url: StoreURL, *, through: bool) -> None:
        port = default_port(url)
        hosts = url.hosts if through and port is not None else ()
        self.proxies = [FaultProxy((host, at or port or 0)).start() for host, at in hosts]
        self._url = url

    @property
    def url(self) -> Secret:
        """The URL by which the client reaches the store."""
        if not self.proxies:
            return self._url.raw
        parts = urlsplit(self._url.raw.reveal())
        user, at, _ = parts.netloc.rpartition("@")
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        return Secret(urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}")))

    def close(self) -> None:
        """Hang up."""
        for proxy in self.proxies:
            proxy.close()


class Process:
    """One client that works."""

    def __init__(self, orders: Orders, links: Links, folder: Path, nursery: Nursery) -> None:
        self.who = orders.who
        self.links = links
        self.orders = orders
        self.journal = Path(orders.journal)
        self.log = folder / f"client-{orders.who}.log"
        with self.log.open("wb") as complaints:
            self._child = nursery.client(complaints)
        self._child.stdin.write(_as_line(orders, links.url))
        self._child.stdin.flush()

    def wait_ready(self) -> None:
        """Wait until it works.

        Raises:
            VerifyError: it could not; the message is the last line that it said.

        """
        until = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < until:
            if self._child.stdout.readline():
                return
            if self._child.poll() is not None:
                break
            time.sleep(0.005)
        raise VerifyError(f"a client did not start: {self.last_words()}")

    @property
    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self._child.poll() is None

    def stop(self) -> None:
        """Make it stand still, wherever it is."""
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, without a word to anybody."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(ENDS_WITHIN)
        self._close()

    def ask_to_end(self) -> None:
        """Say that the run is over; it ends what it is at."""
        if self.alive:
            try:
                self._child.stdin.write(b"stop\n")
                self._child.stdin.flush()
            except BrokenPipeError:
                return

    def end(self) -> bool:
        """Wait until it has ended; return whether it did so by itself and well."""
        code = self._child.wait(ENDS_WITHIN)
        if code is None:
            self.kill()
        else:
            self._close()
        return code == 0

    def last_words(self) -> str:
        """Return the last line that it wrote on standard error."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _close(self) -> None:
        self._child.close()
        self.links.close()


def _as_line(orders: Orders, url: Secret) -> bytes:
    facts = {**asdict(replace(orders, url="")), "url": url.reveal(), "flavor": orders.flavor.value}
    return json.dumps(facts).encode() + b"\n"


def end_all(processes: Iterable[Process]) -> list[Process]:
    """End all; return those that did not end well."""
    running = [process for process in processes if process.alive]
    for process in running:
        process.ask_to_end()
    return [process for process in running if not process.end()]
