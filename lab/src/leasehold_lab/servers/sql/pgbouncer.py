"""PgBouncer, a connection pooler, in front of a PostgreSQL server for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

from leasehold_lab.servers.base import Server
from leasehold_lab.servers.sql.postgres import SUPERUSER, PostgresServer


class PgBouncerServer(Server):
    """A pooler in front of ``server``.

    Args:
        server: where its connections go.
        mode: ``transaction``, ``session`` or ``statement``.
        binary: the program.

    """

    programs = ("pgbouncer",)
    package = "pgbouncer"
    accounts = ("postgres",)

    def __init__(self, server: PostgresServer, *, mode: str = "transaction", binary: str | None = None) -> None:
        super().__init__(binary)
        self.server = server
        self.mode = mode

    @property
    def url(self) -> str:
        """The URL as the superuser, through the pooler."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        """The program and its version, for example ``pgbouncer 1.18.0``."""
        return f"pgbouncer {version_of(self.binary)}"

    def _arguments(self) -> Sequence[str]:
        users = self.folder / "users.txt"
        users.write_text(f'"{SUPERUSER}" ""\n')
        path = self.folder / "pgbouncer.ini"
        path.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self.server.port} dbname=postgres user={SUPERUSER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = {self.mode}\nmax_client_conn = 100\n"
            f"default_pool_size = 10\n"
        )
        return [str(path)]

    def _ready(self) -> bool:
        import psycopg

        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": SUPERUSER, "dbname": "postgres"}
        try:
            with psycopg.connect(**where):
                return True
        except psycopg.OperationalError:
            return False


@cache
def version_of(binary: str) -> str:
    """Return the version of the program."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[1]
