"""Groups of servers: started and stopped together; each server can be killed, paused and restarted."""

from __future__ import annotations

import concurrent.futures
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from leasehold_lab.servers.base import Server
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.redis.resp import RedisError
from leasehold_lab.servers.redis.server import RedisServer

HEALTHY_WITHIN = 40.0
"""Seconds within which the servers of a group must find each other."""

LINK = "link"
"""The user by which the servers of a group reach each other; disabling it partitions them."""


class Group(ABC):
    """Several servers. They are started by `start` or ``with``, and leave nothing behind after `stop`."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for `Client.from_url`."""

    @property
    def version(self) -> str:
        """The program and its version, for people."""
        return self.servers[0].version

    def start(self) -> Self:
        """Start all servers, and wait until they work together.

        Raises:
            RuntimeError: a server does not start, or they do not find each other.

        """
        try:
            self._start_all()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all servers, and remove their files."""
        for server in self.servers:
            server.kill()  # its data are not kept, so there is no need for a clean shutdown
        for server in self.servers:
            server.stop()

    def wait_healthy(self, within: float = HEALTHY_WITHIN) -> None:
        """Wait until every running server is in its role.

        Raises:
            RuntimeError: this is not so after ``within`` seconds.

        """
        self.wait_until(self._healthy, within, "the servers work together")

    def wait_until(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait until ``condition()`` is true; if a server does not answer, that counts as false."""
        until = time.monotonic() + within
        while not _is_true(condition):
            if time.monotonic() > until:
                logs = "\n".join(f"--- {server.port}\n{server.log()[-600:]}" for server in self.servers)
                raise RuntimeError(f"not within {within} s: {what}\n{logs}")
            time.sleep(0.02)

    def _start_all(self) -> None:
        """Start all servers at once. A subclass that must connect them to each other does so here."""
        with concurrent.futures.ThreadPoolExecutor(len(self.servers), thread_name_prefix="server-start") as threads:
            for started in [threads.submit(server.start) for server in self.servers]:
                started.result()

    def _healthy(self) -> bool:
        return all(server.running for server in self.servers)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Node(RedisServer):
    """A server of a group: a restart keeps the settings that other servers have changed, as on a real host."""

    secret = ""

    @classmethod
    def make(
        cls,
        *,
        password: str | None,
        users: Sequence[str],
        tls: bool | Certificates,
        config: Mapping[str, str],
        binary: str | None,
    ) -> Self:
        """Make a node that others reach as the user `LINK`."""
        secret = secrets.token_hex(8)
        link = f"{LINK} on >{secret} ~* &* +@all"
        node = cls(password=password, users=[*users, link], tls=tls, config=config, binary=binary)
        node.secret = secret
        if node._major >= 7:
            node._config.setdefault("shutdown-timeout", "0")
        if tls:
            node._config.setdefault("tls-replication", "yes")
        return node

    @property
    def role(self) -> str:
        """``master`` or ``slave``, as the server reports it."""
        reply = self.command("ROLE")
        return str(reply[0]) if isinstance(reply, list) else ""

    @property
    def offset(self) -> int:
        """How much was written, in bytes: to a primary, or as far as a replica has it; -1 without its primary."""
        found = self.info("replication")
        if found["role"] == "master":
            return int(found["master_repl_offset"])
        return int(found["slave_repl_offset"]) if found["master_link_status"] == "up" else -1

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        lines = (line.partition(":") for line in str(self.command("INFO", section)).splitlines())
        return {name: value for name, colon, value in lines if colon}

    def cut_off(self) -> None:
        """Cut it off from replicas and sentinels, as a network does; clients still reach it, except for PING."""
        self.command("ACL", "SETUSER", LINK, "off")
        self.command("ACL", "SETUSER", "default", "-ping")  # a sentinel that is refused continues as the default user
        self.command("CLIENT", "KILL", "USER", LINK)

    def rejoin(self) -> None:
        """Undo `cut_off`."""
        self.command("ACL", "SETUSER", "default", "+ping")
        self.command("ACL", "SETUSER", LINK, "on")

    def _arguments(self) -> Sequence[str]:
        path = self.folder / "server.conf"
        return [str(path)] if path.exists() else super()._arguments()


def _is_true(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (OSError, RedisError, RuntimeError):  # down, still loading, or not running at all
        return False
