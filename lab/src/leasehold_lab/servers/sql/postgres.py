"""A PostgreSQL server for tests, in its own folder. It refuses to run as root, so root starts it as another user."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leasehold_lab.servers.base import STOP_WITHIN, Account, change_owner, find_files, find_program
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.clock import ClockedServer

PLACES = "usr/lib/postgresql/*/bin"
"""Where Debian installs it; this folder is not on the PATH."""

SUPERUSER = "postgres"

FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "autovacuum_naptime": "5s",
    "logging_collector": "off",
}
"""Settings for speed. The data of a test need not survive a crash of the machine."""


class PostgresServer(ClockedServer):
    """A single server with one database, ``postgres``.

    Args:
        password: of the superuser ``postgres``; with it, each TCP connection must authenticate with SCRAM.
        tls: offer TLS; together with a password, TCP without TLS is refused. `certificates` has the files.
        config: further settings, by name.
        binary: the program; without it the newest ``postgres`` that is found.

    """

    programs = ("postgres",)
    package = "postgresql"
    accounts = ("postgres",)

    def __init__(
        self,
        *,
        password: str | None = None,
        tls: bool = False,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        super().__init__(binary or find_binary("postgres"))
        self.password = password
        self.certificates = Certificates.make(self.folder) if tls else None
        self.data = self.folder / "data"
        self._config = {
            **FAST,
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": f"'{self.folder}'",
            **self._tls(),
            **(config or {}),
        }

    def _tls(self) -> dict[str, str]:
        files = self.certificates
        if files is None:
            return {}
        names = {"ssl_ca_file": files.authority, "ssl_cert_file": files.server, "ssl_key_file": files.server_key}
        return {"ssl": "on", **{name: f"'{path}'" for name, path in names.items()}}

    @property
    def url(self) -> str:
        """The URL as the superuser."""
        secret = f":{quote(self.password, safe='')}" if self.password else ""
        return f"postgresql://{SUPERUSER}{secret}@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        """The program and its version, for example ``postgres 15.12``."""
        return f"postgres {version_of(self.binary)}"

    def connect(self, **options: Any) -> Any:
        """Open a psycopg connection that autocommits. By default, it is the superuser's, over the Unix socket."""
        import psycopg

        defaults: dict[str, Any] = {
            "autocommit": True,
            "host": str(self.folder),
            "port": self.port,
            "user": SUPERUSER,
            "dbname": "postgres",
        }
        return psycopg.connect(**{**defaults, **options})

    def query(self, text: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, over a connection of its own, and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(text, args or None)
            return cursor.fetchall() if cursor.description else []

    def execute(self, script: str) -> None:
        """Run many statements as the superuser."""
        with self.connect() as connection:
            connection.execute(script)

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart, as an operator does."""
        for name, value in settings.items():
            self.query(f"ALTER SYSTEM SET {name} = '{value}'")
        self.query("SELECT pg_reload_conf()")
        time.sleep(0.05)  # each server process reloads its settings when it gets to it

    def restart(self, *, crash: bool = False) -> None:
        """End and start it on the same port, with its data."""
        if crash:
            self.kill()
        else:
            self.terminate()
        self.start()

    def terminate(self) -> None:
        """Shut the server down without waiting for its clients (the fast mode, SIGINT)."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def kill(self) -> None:
        """End all its processes as a crash does."""
        pids = self._process_ids()
        super().kill()
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        until = time.monotonic() + STOP_WITHIN
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.005)

    def pause(self) -> None:
        """Pause all its processes (SIGSTOP): connections stay open and nothing answers."""
        for pid in self._process_ids():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all its processes (SIGCONT)."""
        for pid in self._process_ids():
            _signal(pid, signal.SIGCONT)

    def _process_ids(self) -> list[int]:
        if self._process is None:
            return []
        pids = [self.pid]
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            try:
                pids += map(int, task.read_text().split())
            except OSError:  # it ended
                continue
        return pids

    def _arguments(self) -> Sequence[str]:
        if not self.data.exists():
            account = self.account()
            shutil.copytree(template(self.binary, account), self.data)
            if self.password:
                self._set_password(self.password, account)
            if self.certificates is not None:
                self.certificates.server_key.chmod(0o600)
                if account is not None:
                    change_owner(self.folder, account)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        lines = [f"{name} = {value}" for name, value in self._config.items()]
        (self.data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")
        return ["-D", str(self.data)]

    def _set_password(self, password: str, account: Account | None) -> None:
        doubled = password.replace("'", "''")
        statement = f"ALTER USER {SUPERUSER} PASSWORD '{doubled}'"
        if account is not None:
            change_owner(self.folder, account)
        run_as(account, [self.binary, "--single", "-D", str(self.data), "postgres"], self.folder, statement)
        kind = "host" if self.certificates is None else "hostssl"
        rules = f"local all all trust\n{kind} all all 127.0.0.1/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(rules)

    def _ready(self) -> bool:
        try:
            self.query("SELECT 1")
        except Exception as error:
            if "OperationalError" not in type(error).__name__ and "CannotConnectNow" not in type(error).__name__:
                raise
            return False
        return True


def find_binary(name: str) -> str:
    """Return the newest program of this name from the first of the folders that has any.

    Raises:
        MissingServer: there is none.

    """
    for found in find_files(f"{PLACES}/{name}"):
        return str(max(found, key=lambda path: float(path.parts[-3])))
    return find_program((name,), PostgresServer.package)


def run_as(account: Account | None, command: Sequence[str], folder: Path, stdin: str = "") -> None:
    """Run a program that refuses to run as root, and wait until it exits."""
    uid, gid = account or (None, None)
    groups = None if account is None else ()
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, cwd=folder, user=uid, group=gid,
        extra_groups=groups,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout)[-1000:]}")


_templates: dict[tuple[int, str], Path] = {}


def template(binary: str, account: Account | None) -> Path:
    """Return a fresh data folder, to be copied. It is made once in each process, since that takes a second."""
    key = (os.getpid(), binary)
    if key not in _templates:
        folder = Path(tempfile.mkdtemp(prefix="leasehold-initdb-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        if account is not None:
            change_owner(folder, account)
        initdb = str(Path(binary).with_name("initdb"))
        words = ["-D", str(folder / "data"), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        run_as(account, [initdb, *words], folder)
        _templates[key] = folder / "data"
    return _templates[key]


@functools.cache
def version_of(binary: str) -> str:
    """Return the version of the program."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+|\d+", said)
    return found[0] if found else said.strip()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
