"""A database of its own on a PostgreSQL or MariaDB server that other tests use, too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold import tables

_count = itertools.count(1)


class OwnDatabase:
    """An empty database; `drop` drops it.

    Attributes:
        system: ``postgresql`` or ``mariadb``.
        url: its URL, as a user who may create tables.
    """

    def __init__(self, system: str, server: Any) -> None:
        self.system = system
        self.server = server
        self.name = f"own_{os.getpid()}_{next(_count)}"
        self.url = server.url.rpartition("/")[0] + f"/{self.name}"
        server.query(f"CREATE DATABASE {self.name}")
        if system == "mariadb":
            server.query(f"GRANT ALL ON {self.name}.* TO 'app'@'127.0.0.1'")

    def connect(self) -> Any:
        """Open a connection that autocommits, as the administrator."""
        if self.system == "postgresql":
            return self.server.connect(dbname=self.name)
        return self.server.connect(database=self.name)

    def run(self, text: str, *args: Any, on: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, on a connection of its own unless one is given."""
        connection = on or self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(text, args or None)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            if on is None:
                connection.close()

    def drop(self) -> None:
        """Drop it, with all sessions in it."""
        self.server.query(f"DROP DATABASE {self.name}" + (" WITH (FORCE)" if self.system == "postgresql" else ""))


def with_tables(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    """Yield a database with leasehold's tables on the server that the fixture's parameter names, and drop it."""
    server = request.getfixturevalue("postgres_server" if request.param == "postgresql" else "mariadb_server")
    made = OwnDatabase(request.param, server)
    tables.create(made.url)
    yield made
    made.drop()
