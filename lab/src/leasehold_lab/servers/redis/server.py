"""A Redis or Valkey server for tests."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from urllib.parse import quote

from leasehold_lab.servers.base import READY_WITHIN, release_port, reserve_port
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.clock import ClockedServer
from leasehold_lab.servers.redis.resp import Connection, RedisError, Reply

ANSWER_WITHIN = 5.0
"""Seconds that the server may take to answer a test."""


class RedisServer(ClockedServer):
    """A single server, which by default stores nothing on disk.

    Args:
        password: of the default user; without it, no password is needed.
        users: further users, as in an ACL file without the word ``user``, for example ``"app on >secret ~* +@all"``.
        tls: speak TLS and nothing else on the port; `certificates` has the files, made here unless they are given.
        unix_socket: listen on `unix_path` as well.
        append_only: keep data in an append-only file, synced at each write.
        maxmemory: for example ``"8mb"``.
        config: further settings, by name.
        binary: the program; without it ``redis-server`` or else ``valkey-server``.

    """

    programs = ("redis-server", "valkey-server")
    package = "redis-server"

    def __init__(
        self,
        *,
        password: str | None = None,
        users: Sequence[str] = (),
        tls: bool | Certificates = False,
        unix_socket: bool = False,
        append_only: bool = False,
        maxmemory: str | None = None,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        super().__init__(binary)
        self._reserved = [weakref.finalize(self, release_port, reserve_port(self.port))]
        self.password = password
        self.users = tuple(users)
        self.unix_path = str(self.folder / "s") if unix_socket else None
        self.certificates = tls if isinstance(tls, Certificates) else Certificates.make(self.folder) if tls else None
        self._config = {
            "bind": "127.0.0.1",
            "port": "0" if tls else str(self.port),
            "save": '""',
            "appendonly": "yes" if append_only else "no",
            "appendfsync": "always",
            "dir": str(self.folder),
            "daemonize": "no",
            **({"enable-debug-command": "yes"} if self._major >= 7 else {}),  # before version 7 it is always on
            **({"maxmemory": maxmemory} if maxmemory else {}),
            **({"unixsocket": self.unix_path} if self.unix_path else {}),
            **(config or {}),
        }

    @property
    def url(self) -> str:
        """The URL as the default user. It has no options for TLS; see `certificates`."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"{'rediss' if self.certificates else 'redis'}://{secret}127.0.0.1:{self.port}/0"

    @property
    def version(self) -> str:
        """The program and its version, for example ``redis-server 7.0.15``."""
        return version_of(self.binary)

    @property
    def _major(self) -> int:
        return int(re.findall(r"\d+", self.version.partition(" ")[2])[0])

    def stop(self) -> None:
        """End the server, remove its files, and release its ports."""
        self.kill()  # its data are not kept; a clean shutdown begins at its next turn of 100 ms
        super().stop()
        for reserved in self._reserved:
            reserved()

    def restart(self, *, keep_data: bool = True) -> None:
        """End and start it on the same port, with its data, or empty."""
        if keep_data:
            self._save()
        self.kill()
        if not keep_data:
            self._forget_data()
        self.start()

    def connect(self, username: str | None = None, password: str | None = None) -> Connection:
        """Open a connection, as the default user unless another is named."""
        stream = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_WITHIN)
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self.certificates.authority))
            context.load_cert_chain(self.certificates.client, self.certificates.client_key)
            stream = context.wrap_socket(stream, server_hostname="127.0.0.1")
        connection = Connection(stream)
        password = password if username else self.password
        if password is not None:
            try:
                connection.command("AUTH", username or "default", password)
            except BaseException:
                connection.close()
                raise
        return connection

    def command(self, *words: str | bytes | int) -> Reply:
        """Send one command over a connection of its own and return the reply."""
        connection = self.connect()
        try:
            return connection.command(*words)
        finally:
            connection.close()

    def commandstats(self) -> dict[str, int]:
        """Return how often each command was called since the last `reset_stats`, by its name in lower case.

        Commands that a script called are counted, too. A sub-command is ``container|name``. The commands of this
        method and of `reset_stats` (``info``, ``auth``, ``config|resetstat``) are counted as well.
        """
        lines = re.findall(r"^cmdstat_([^:]+):calls=(\d+)", str(self.command("INFO", "commandstats")), re.MULTILINE)
        return {name.lower(): int(calls) for name, calls in lines}

    def reset_stats(self) -> None:
        """Set all counts of `commandstats` to zero."""
        self.command("CONFIG", "RESETSTAT")

    def flush(self) -> None:
        """Delete all data, as an operator may do by mistake."""
        self.command("FLUSHALL")

    def _arguments(self) -> Sequence[str]:
        lines = [f"{name} {value}" for name, value in self._config.items()]
        lines += [*self._tls_lines(), *self._accounts()]
        path = self.folder / "server.conf"
        path.write_text("\n".join(lines) + "\n")
        return [str(path)]

    def _tls_lines(self) -> list[str]:
        if self.certificates is None:
            return []
        return [
            f"tls-port {self.port}",
            f"tls-ca-cert-file {self.certificates.authority}",
            f"tls-cert-file {self.certificates.server}",
            f"tls-key-file {self.certificates.server_key}",
            "tls-auth-clients optional",
        ]

    def _accounts(self) -> list[str]:
        if not self.users and not self.password:
            return []
        secret = f"#{hashlib.sha256(self.password.encode()).hexdigest()}" if self.password else "nopass"
        default = f"user default on {secret} ~* &* +@all"
        path = self.folder / "users.acl"
        path.write_text("\n".join([default, *(f"user {user}" for user in self.users)]) + "\n")
        return [f"aclfile {path}"]

    def _ready(self) -> bool:
        try:
            return self.command("PING") == "PONG"
        except RedisError as error:  # "LOADING": it still reads its data
            if str(error).startswith("LOADING"):
                return False
            raise RuntimeError(f"the server refuses its own test: {error}") from error

    def _save(self) -> None:
        if self._config["appendonly"] == "no":
            connection = self.connect()
            connection.socket.settimeout(READY_WITHIN)
            try:
                connection.command("SAVE")
            finally:
                connection.close()

    def _forget_data(self) -> None:
        (self.folder / "dump.rdb").unlink(missing_ok=True)
        for path in (self.folder / "appendonlydir").glob("*"):
            path.unlink()


@cache
def version_of(binary: str) -> str:
    """Ask a program of Redis or Valkey for its name and version."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", said)
    return f"{binary.rpartition('/')[2]} {found[1] if found else said.strip()}"
