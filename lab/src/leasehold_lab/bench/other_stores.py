"""Observers of the stores other than Redis: version, processor time, and clean-up."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from leasehold._url import parse
from leasehold_lab.bench.processes.server_counters import Counters
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.subjects.floors.rows import table_of


class Started:
    """Counts the processor time of a server that this process started, and of its children; 0 for other servers.

    The kernel reports hundredths of a second, which is too coarse for short trials.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def read(self) -> Counters:
        """Read the counters."""
        ticks = 0 if self._pid is None else _ticks(self._pid)
        return Counters({}, 0, ticks / float(os.sysconf("SC_CLK_TCK")), 0)

    def close(self) -> None:
        """Do nothing: no connection is kept."""


class FileObserver(Started):
    """For locks in a file: there is no server."""

    version = ""

    def clean(self, namespace: str) -> None:
        """Do nothing: the files are deleted with their folder."""


class SqlObserver(Started):
    """For PostgreSQL, MySQL and MariaDB."""

    def __init__(self, scope: Scope, pid: int | None, subject: Any) -> None:
        super().__init__(pid)
        self._url, self._connect, self._here = scope.url, subject.connect, subject.HERE

    @property
    def version(self) -> str:
        """Program and version, as the server reports them."""
        (said,) = self._rows("SELECT version()")
        text = str(said[0])
        return " ".join(text.split()[:2]) if text.startswith("PostgreSQL") else f"MySQL or MariaDB {text}"

    def clean(self, namespace: str) -> None:
        """Drop the floor's tables, and delete leasehold's rows."""
        tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = "
        for (table,) in self._rows(tables + self._here):
            if table.startswith(table_of(namespace)):
                self._rows(f"DROP TABLE {table}")
        like = f"{namespace}%".encode()
        names = "SELECT id FROM leasehold_name WHERE space LIKE %s"
        self._rows(f"DELETE FROM leasehold_entry WHERE name_id IN ({names})", like)
        self._rows("DELETE FROM leasehold_name WHERE space LIKE %s", like)

    def _rows(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        connection = self._connect(self._url)
        try:
            cursor = connection.cursor()
            cursor.execute(text, args or None)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


class ZooKeeperObserver(Started):
    """For ZooKeeper."""

    def __init__(self, scope: Scope, pid: int | None) -> None:
        super().__init__(pid)
        self._url, self._root = scope.url, f"/{parse(scope.url).path.strip('/')}"

    @property
    def version(self) -> str:
        """Program and version."""
        with _Kazoo(self._url) as client:
            return "ZooKeeper " + ".".join(map(str, client.server_version()))

    def clean(self, namespace: str) -> None:
        """Delete the nodes."""
        with _Kazoo(self._url) as client:
            if client.exists(self._root):
                for child in client.get_children(self._root):
                    if child.startswith(namespace):
                        client.delete(f"{self._root.rstrip('/')}/{child}", recursive=True)


class _Kazoo:
    """A session for one block."""

    def __init__(self, url: str) -> None:
        from leasehold_lab.bench.subjects.floors.nodes import connect

        self._client = connect(url)

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *error: object) -> None:
        self._client.stop()
        self._client.close()


class EtcdObserver(Started):
    """For etcd."""

    def __init__(self, scope: Scope, pid: int | None) -> None:
        from leasehold_lab.bench.subjects.floors.keys import Gateway

        super().__init__(pid)
        self._gateway = Gateway(scope.url)

    @property
    def version(self) -> str:
        """Program and version."""
        return f"etcd {self._gateway.version()}"

    def clean(self, namespace: str) -> None:
        """Delete the keys."""
        self._gateway.delete(f"{self._gateway.root}/{namespace}")

    def close(self) -> None:
        """Close the connection."""
        self._gateway.close()


def _ticks(pid: int) -> int:
    """Return the processor time of a process and its children, living and dead, in the kernel's ticks."""
    own = _stat(pid)
    if own is None:
        return 0
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        living = [stat for child in text.split() if (stat := _stat(int(child))) is not None]
        return sum(own) + sum(utime + stime for utime, stime, _, _ in living)
    return sum(own)


def _stat(pid: int) -> tuple[int, int, int, int] | None:
    """Return a process's time in user and system mode, and the same of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    utime, stime, children_utime, children_stime = map(int, fields[11:15])
    return utime, stime, children_utime, children_stime
