"""Tables of demos that were killed, or whose machine died: they do not stay in the user's database."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from leasehold.guards.connection import Statement, Statements, dialect_of, run
from leasehold_lab.demo.counters import prepared
from leasehold_lab.demo.rows import LEFT_FOR
from leasehold_lab.demo.tables import NOW, STEM
from leasehold_lab.servers import EtcdServer, MariaDBServer, PostgresServer

Server = PostgresServer | MariaDBServer
DAY = round(LEFT_FOR)


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "mariadb":
        request.getfixturevalue("mariadb_url")  # with the tables made
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


def rows(connection: Any, text: str) -> list[tuple[Any, ...]]:
    def asking() -> Statements[list[tuple[Any, ...]]]:
        return (yield Statement(text)).rows

    return run(connection, asking())


def demo_tables(connection: Any) -> set[str]:
    found = rows(connection, "SELECT table_name FROM information_schema.tables")
    return {name for (name,) in found if name.startswith(STEM)}


def test_the_next_demo_drops_old_tables_of_demos_and_no_others(server: Server, namespace: str, tmp_path: Path) -> None:
    with closing(server.connect()) as outsider:
        now = int(rows(outsider, NOW[dialect_of(outsider)])[0][0])

        def named(age: int) -> str:
            return f"{STEM}{now - age}_{secrets.token_hex(6)}"

        old = {named(DAY + 60), named(30 * DAY)}
        kept = {named(0), named(DAY - 60), named(-DAY), f"{STEM}{now - 2 * DAY}_of_mine", f"{STEM}report"}
        busy = named(2 * DAY)
        for name in {*old, *kept, busy}:
            rows(outsider, f"CREATE TABLE {name} (n INTEGER)")
        with closing(server.connect()) as reader:
            rows(reader, "BEGIN")
            rows(reader, f"SELECT n FROM {busy}")
            with Client.from_url(server.url, namespace=namespace) as locks:
                began = time.monotonic()
                with prepared(locks, server.url, namespace, tmp_path) as place:
                    assert time.monotonic() - began < 10, "it waits for no user of an old table"
                    assert demo_tables(outsider) == {*kept, busy, place.name}
                assert demo_tables(outsider) == {*kept, busy}
            rows(reader, "ROLLBACK")
        for name in demo_tables(outsider):
            rows(outsider, f"DROP TABLE {name}")


@pytest.fixture
def left(request: pytest.FixtureRequest, kind: str) -> tuple[str, Callable[[], set[str]]]:
    """Where a demo runs, and what it has there that does not end by itself."""
    if kind == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        return etcd.url, lambda: {key for key in etcd.keys("leasehold/leasehold-demo-") if "/demo/" in key}
    if kind == "mariadb":
        request.getfixturevalue("mariadb_url")
    database: Server = request.getfixturevalue(f"{kind}_server")

    def tables() -> set[str]:
        with closing(database.connect()) as outsider:
            return demo_tables(outsider)

    return database.url, tables


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "etcd"])
def test_a_killed_demo_leaves_nothing(left: tuple[str, Callable[[], set[str]]]) -> None:
    """Its services see that it is gone, and take its counters away."""
    url, found = left
    before = found()
    command = [sys.executable, "-m", "leasehold", "demo", "--url", url, "--requests", "300"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        assert "no lock: 300" in demo.stderr.readline()
        until = time.monotonic() + 60
        while not found() - before:
            assert time.monotonic() < until, "it never began to count"
            time.sleep(0.05)
        demo.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while found() - before:
        assert time.monotonic() < until, found() - before
        time.sleep(0.05)
