"""A MariaDB or MySQL server for tests."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import quote

from leasehold_lab.servers.base import Account, change_owner, find_program
from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.clock import ClockedServer
from leasehold_lab.servers.sql import mysql

USER, DATABASE = "app", "locks"
"""The user of the library in tests, and the only database in which it has rights: there it has all."""

ANSWER_WITHIN = 5.0
"""Seconds that the server may take to answer the administrator."""

SMALL: Mapping[str, str] = {
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "8M",
    "innodb-buffer-pool-dump-at-shutdown": "0",
    "innodb-buffer-pool-load-at-startup": "0",
    "key-buffer-size": "1M",
    "performance-schema": "OFF",
}
"""Settings for a fast start and little memory. Durability is as by default: each commit is synced."""


class MariaDBServer(ClockedServer):
    """A single server with a fresh database. Root starts it as the account ``mysql``.

    Args:
        password: of the user ``app``; none by default.
        tls: offer TLS; `certificates` has the files. With it the user ``app`` must use TLS.
        sql: further statements, executed by the administrator at each start.
        config: further settings, by name without dashes in front.
        binary: the program; without it ``mariadbd`` or else ``mysqld``.

    Attributes:
        is_mysql: whether the program is MySQL's.

    """

    programs = ("mariadbd", "mysqld")
    package = "mariadb-server"
    accounts = ("mysql",)

    def __init__(
        self,
        *,
        password: str | None = None,
        tls: bool = False,
        sql: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        super().__init__(binary)
        self.password = password
        self.certificates = Certificates.make(self.folder) if tls else None
        self.unix_path = str(self.folder / "s")
        self._sql = tuple(sql)
        self.is_mysql = "mariadb" not in version_text(self.binary).lower()
        self._config = {**(mysql.SMALL if self.is_mysql else SMALL), **(config or {})}

    @property
    def url(self) -> str:
        """The URL as the user ``app``, in the database ``locks``. It has no options for TLS; see `certificates`."""
        secret = f":{quote(self.password, safe='')}" if self.password else ""
        return f"mysql://{USER}{secret}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def version(self) -> str:
        """The program and its version, for example ``mariadbd 10.11.14``."""
        return version_of(self.binary)

    def restart(self) -> None:
        """Crash it and start it on the same port, with its data."""
        self.kill()
        self.start()

    def connect(self, user: str = "root", password: str | None = None, database: str | None = DATABASE) -> Any:
        """Open a PyMySQL connection that commits each statement; by default, it is the administrator's."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority)) if self.certificates else None
        return _driver().connect(
            host="127.0.0.1", port=self.port, user=user, password=(password or "").encode(), database=database,
            autocommit=None, init_command="SET SESSION autocommit = 1",  # MySQL's greeting reports it as on by default
            connect_timeout=ANSWER_WITHIN, read_timeout=ANSWER_WITHIN, charset="utf8mb4",
            ssl=context, ssl_disabled=context is None,
        )  # fmt: skip

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement as the administrator over a connection of its own and return its rows."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def statements(self) -> dict[str, int]:
        """Return how often each kind of statement was run since the server started: ``select``, ``commit``, ...

        ``questions`` is how many requests clients sent; a request of several statements counts once for each.
        """
        asked = "Variable_name LIKE 'Com|_%' ESCAPE '|' OR Variable_name = 'Questions'"
        rows = self.query(f"SHOW GLOBAL STATUS WHERE {asked}")
        return {name.lower().removeprefix("com_"): int(count) for name, count in rows}

    def sessions(self, user: str = USER) -> list[int]:
        """Return the ids of the connections of a user."""
        found = self.query("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %s ORDER BY ID", user)
        return [int(row[0]) for row in found]

    def end_sessions(self, user: str = USER) -> int:
        """End all connections of a user, as an operator does with KILL; return how many there were."""
        ended: set[int] = set()
        for session in self.sessions(user):
            try:
                self.query(f"KILL CONNECTION {session:d}")
                ended.add(session)
            except Exception as error:
                if not error.args or error.args[0] != NO_SUCH_THREAD:
                    raise
        until = time.monotonic() + ANSWER_WITHIN
        while ended.intersection(self.sessions(user)) and time.monotonic() < until:
            time.sleep(0.005)
        return len(ended)

    def _arguments(self) -> Sequence[str]:
        data = self.folder / "data"
        if not data.exists():
            self._install()
        settings = {
            "datadir": str(data),
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            "socket": self.unix_path,
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self._first_statements()),
            "tmpdir": str(self.folder),
            **self._config,
        }
        if self.certificates is not None:
            files = self.certificates
            settings |= {
                "ssl-ca": str(files.authority),
                "ssl-cert": str(files.server),
                "ssl-key": str(files.server_key),
            }
        flags = ["--skip-name-resolve"]
        if self.is_mysql and "log-bin" not in self._config:
            flags.append("--skip-log-bin")
        return ["--no-defaults", *flags, *(f"--{name}={value}" for name, value in settings.items())]

    def _install(self) -> None:
        account: Account | None = self.account()
        if self.is_mysql:
            shutil.copytree(mysql.template(self.binary, account), self.folder / "data")
            (self.folder / "data" / "auto.cnf").unlink(missing_ok=True)  # each server has an id of its own
            return
        command = [
            find_program(("mariadb-install-db",), self.package),
            *("--no-defaults", f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", "--skip-name-resolve", f"--innodb-log-file-size={SMALL['innodb-log-file-size']}"),
            f"--tmpdir={self.folder}",  # in the shared folder, it would delete the files of others
        ]
        if account is not None:
            change_owner(self.folder, account)
            import pwd

            command.append(f"--user={pwd.getpwuid(account[0]).pw_name}")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout)[-1000:]}")

    def _first_statements(self) -> Any:
        user = f"'{USER}'@'127.0.0.1'"
        known = f" IDENTIFIED BY {_quoted(self.password)}" if self.password else ""
        lines = [
            *(mysql.ADMINISTRATOR if self.is_mysql else ()),
            f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
            f"CREATE USER IF NOT EXISTS {user}{known}{' REQUIRE SSL' if self.certificates else ''}",
            f"GRANT ALL ON {DATABASE}.* TO {user}",
            *self._sql,
        ]
        path = self.folder / "init.sql"
        path.write_text("".join(f"{line};\n" for line in lines))
        return path

    def _ready(self) -> bool:
        try:
            return bool(self.query("SELECT 1"))
        except _driver().MySQLError as error:
            if error.args and error.args[0] in NOT_UP:
                return False
            raise RuntimeError(f"the server refuses its own test: {error}") from error


NO_SUCH_THREAD = 1094
NOT_UP = frozenset({1049, 1053, 2003, 2006, 2013})
"""Error numbers while the server starts or ends: no database yet, connection refused, connection closed."""


def _driver() -> Any:
    return import_module("pymysql")  # untyped, and needed here only


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def version_of(binary: str) -> str:
    """Ask a program of MariaDB or MySQL for its name and version."""
    found = re.search(r"Ver (\d+(?:\.\d+)*)", version_text(binary))
    return f"{binary.rpartition('/')[2]} {found[1] if found else version_text(binary).strip()}"


@cache
def version_text(binary: str) -> str:
    """Return the version text of the program."""
    return subprocess.run([binary, "--no-defaults", "--version"], capture_output=True, text=True, check=True).stdout
