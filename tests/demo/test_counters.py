"""The demo's counter: kept where its locks are, written through a guard, and taken away afterwards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leasehold import Client, LeaseLost, NotHeld
from leasehold.guards import Stale
from leasehold_lab.demo.counters import Place, counter_at, prepared
from leasehold_lab.demo.rows import Guard
from leasehold_lab.servers import PostgresServer

PLACES = {
    "sqlite": "file",
    "redis": "redis",
    "redlock": "file",
    "postgresql": "table",
    "mariadb": "table",
    "etcd": "etcd",
    "zookeeper": "cell",
}
"""What the counter is, by the store."""


@pytest.fixture(params=list(PLACES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match kind:
        case "sqlite":
            return f"sqlite:{tmp_path}/locks.db"
        case "mariadb":
            return str(request.getfixturevalue("mariadb_url"))
        case "redlock":
            return str(request.getfixturevalue("redlock_nodes").url)
        case "postgresql":
            return str(request.getfixturevalue("postgres_server").url)
        case _:
            return str(request.getfixturevalue(f"{kind}_server").url)


def test_a_late_write_is_refused_by_the_guard(kind: str, url: str, namespace: str, tmp_path: Path) -> None:
    with Client.from_url(url, namespace=namespace) as locks, prepared(locks, url, namespace, tmp_path) as place:
        assert place.kind == PLACES[kind]
        assert Place.read(str(place)) == place
        with closing(counter_at(place, locks, url, namespace)) as counter:
            assert counter.read(Guard.LEASEHOLD) == 0
            late = locks.lock("x").acquire()
            assert late is not None
            counter.write(Guard.LEASEHOLD, 1, late)
            locks.force_release("x", late.token)
            with locks.lock("x") as hold:
                counter.write(Guard.LEASEHOLD, 2, hold)
                with pytest.raises((Stale, LeaseLost, NotHeld)):
                    counter.write(Guard.LEASEHOLD, 7, late)
                assert counter.read(Guard.LEASEHOLD) == 2
            assert counter.read(Guard.NONE) == 0
            counter.write(Guard.NONE, 5, None)
            assert counter.read(Guard.NONE) == 5


def test_the_table_is_dropped_at_the_end(postgres_server: PostgresServer, namespace: str, tmp_path: Path) -> None:
    url = postgres_server.url
    with Client.from_url(url, namespace=namespace) as locks, closing(postgres_server.connect()) as outsider:
        with prepared(locks, url, namespace, tmp_path) as place:
            assert outsider.execute("SELECT to_regclass(%s) IS NULL", (place.name,)).fetchone() == (False,)
        assert outsider.execute("SELECT to_regclass(%s) IS NULL", (place.name,)).fetchone() == (True,)


def test_a_user_that_cannot_create_tables_counts_in_a_cell(
    postgres_server: PostgresServer, namespace: str, tmp_path: Path
) -> None:
    parts = urlsplit(postgres_server.url)
    role = f"clerk_{namespace.replace('-', '_')}"
    with closing(postgres_server.connect()) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        url = parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
        try:
            with Client.from_url(url, namespace=namespace) as locks, prepared(locks, url, namespace, tmp_path) as place:
                assert place.kind == "cell"
                with closing(counter_at(place, locks, url, namespace)) as counter, locks.lock("x") as hold:
                    counter.write(Guard.LEASEHOLD, 1, hold)
                    assert counter.read(Guard.LEASEHOLD) == 1
        finally:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")
