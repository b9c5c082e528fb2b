"""The project of the tests on one database: its environment, its processes, and a database of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import leasehold

PROJECT = Path(__file__).parent / "project"
APP = "leasehold.integrations.django"
TABLES = "leasehold.integrations.django.tables"

ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}

_count = itertools.count(1)


@dataclass
class Site:
    """The project on a database.

    Attributes:
        system: ``postgresql``, ``mysql`` or ``sqlite``.
        database: its entry in ``DATABASES``.
        server: what has it.
        env: environment variables of the project's settings.
    """

    system: str
    database: dict[str, Any]
    server: Any = None
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: Any) -> dict[str, str]:
        """Return the environment of a process; values that are no text are JSON."""
        given = {"DJ_DATABASE": self.database, **self.env, **more}
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
        path = os.pathsep.join([str(Path(leasehold.__file__).parents[1]), str(PROJECT)])
        return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "website.settings", **values}

    def manage(self, *arguments: str, within: float = 90, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` to its end."""
        return subprocess.run(
            command(*arguments),
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    @contextmanager
    def started(self, *commands: Sequence[str], **more: Any) -> Iterator[list[subprocess.Popen[str]]]:
        """Start programs at once; those that still run at the end are killed."""
        children = [
            subprocess.Popen(
                each, env=self.environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for each in commands
        ]
        try:
            yield children
        finally:
            for child in children:
                child.kill()
                child.communicate()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        if self.system == "sqlite":
            import sqlite3
            from contextlib import closing

            with closing(sqlite3.connect(self.database["NAME"])) as connection:
                return connection.execute(text).fetchall()
        if self.system == "mysql":
            connection = self.server.connect(database=self.database["NAME"])
            try:
                with connection.cursor() as cursor:
                    cursor.execute(text)
                    return list(cursor.fetchall())
            finally:
                connection.close()
        with self.server.connect(dbname=self.database["NAME"]) as connection:
            return list(connection.execute(text).fetchall())


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(PROJECT / "manage.py"), *arguments]


def ended(child: subprocess.Popen[str], within: float = 90) -> tuple[int, list[str], str]:
    """Wait for a `migrate`; return its exit code, the migrations of the shop that it applied, and what it wrote."""
    written, _ = child.communicate(timeout=within)
    return child.returncode, re.findall(r"Applying (shop\.\w+)\.\.\. OK", written), written


@contextmanager
def made(system: str, server: Any, folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Site]:
    """Make an empty database, and drop it at the end."""
    name = f"dj_{os.getpid()}_{next(_count)}"
    if system == "sqlite":
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / f"{name}.db")}
        database["OPTIONS"] = {"timeout": 30}
        database["TEST"] = {"NAME": str(folder / f"test_{name}.db")}  # threads have connections of their own
        yield Site(system, database, env=dict(env or {}))
        return
    url = urlsplit(server.url)
    database = {
        "ENGINE": f"django.db.backends.{ENGINES[system]}",
        "NAME": name,
        "HOST": url.hostname,
        "PORT": url.port,
        "USER": url.username,
        "PASSWORD": url.password or "",
    }
    server.query(f"CREATE DATABASE {name}")
    if system == "mysql":
        for each in (name, f"test_{name}"):
            server.query(f"GRANT ALL ON {each}.* TO 'app'@'127.0.0.1'")
    try:
        yield Site(system, database, server, dict(env or {}))
    finally:
        if server.running:
            server.query(f"DROP DATABASE {name}" + (" WITH (FORCE)" if system == "postgresql" else ""))
