"""Several processes of ``alembic upgrade head`` at once, on real servers: one carries it out, and all end with 0."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy

import leasehold
from leasehold.integrations.alembic import migration_lock
from leasehold_lab.servers import MariaDBServer, PgBouncerServer, PostgresServer, RedisServer
from support.patience import until

PROJECT = Path(__file__).parent / "project"
REVISIONS = 3
PROCESSES = 5
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leasehold.__file__).parents[1])}

_count = itertools.count(1)


def command(url: str, *asked: str) -> list[str]:
    """Return the command line of one upgrade; ``-x`` passes each of the words to env.py."""
    words = [part for word in (f"url={url}", *asked) for part in ("-x", word)]
    return [sys.executable, "-m", "alembic", "-c", str(PROJECT / "alembic.ini"), *words, "upgrade", "head"]


@contextmanager
def started(
    commands: Sequence[list[str]], first_takes: float = 0.3, until: Path | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start programs; those that are still running at the end are killed.

    The first migration takes some seconds, or the time until a file exists.
    """
    env = {**ENVIRONMENT, "FIRST_TAKES": str(first_takes), **({} if until is None else {"FIRST_UNTIL": str(until)})}
    children = [
        subprocess.Popen(each, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


def outcome(child: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Wait for a process; return its exit code, the revisions that it ran, and what it wrote."""
    _, written = child.communicate(timeout=90)
    return child.returncode, re.findall(r"Running upgrade .*-> (\w+)", written), written


def race(*commands: list[str]) -> list[tuple[int, list[str], str]]:
    with started(commands) as children:
        return [outcome(child) for child in children]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Return a function that makes an empty database on a server, and returns its URL for SQLAlchemy."""
    made: list[tuple[str, str]] = []

    def make(system: str) -> str:
        name = f"migrated_{os.getpid()}_{next(_count)}"
        made.append((system, name))
        if system == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            server.query(f"CREATE DATABASE {name}")
            return re.sub(r"^postgresql:(.*)/\w+$", rf"postgresql+psycopg:\1/{name}", server.url)
        if system == "mysql":
            other: MariaDBServer = request.getfixturevalue("mariadb_server")
            other.query(f"CREATE DATABASE {name}")
            other.query(f"GRANT ALL ON {name}.* TO 'app'@'127.0.0.1'")
            return re.sub(r"^mysql:(.*)/\w+$", rf"mysql+pymysql:\1/{name}", other.url)
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/{name}.db"

    yield make
    for system, name in made:
        if system != "sqlite":
            server = request.getfixturevalue("postgres_server" if system == "postgresql" else "mariadb_server")
            server.query(f"DROP DATABASE {name}" + (" WITH (FORCE)" if system == "postgresql" else ""))


def flavored(url: str, flavor: str) -> tuple[str, ...]:
    """Return the URL and the words for env.py that run it in a flavor."""
    if flavor == "blocking":
        return (url,)
    return (url.replace("+pymysql:", "+asyncmy:").replace("sqlite:", "sqlite+aiosqlite:"), "async=yes")


def migrated(url: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the revision of a database, and the rows that the migrations wrote."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        revisions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").fetchall()
        rows = connection.exec_driver_sql("SELECT id, name, price FROM item").fetchall()
    engine.dispose()
    return [row[0] for row in revisions], [tuple(row) for row in rows]


def race_and_check(url: str, processes: int, *asked: str, flavor: str = "blocking") -> None:
    """One ran all revisions, the others none, all ended with 0, and the schema is that of a single run."""
    outcomes = race(*[command(*flavored(url, flavor), *asked)] * processes)
    said = "\n---\n".join(written for *_, written in outcomes)
    assert [code for code, *_ in outcomes] == [0] * processes, said
    assert sorted(len(ran) for _, ran, _ in outcomes) == [*[0] * (processes - 1), REVISIONS], said
    assert migrated(url) == (["three"], [(1, "first", None)])


@pytest.mark.parametrize("system", ["postgresql", "mysql"])
def test_two_races_of_five_processes(system: str, database: Callable[[str], str]) -> None:
    for _ in range(2):
        race_and_check(database(system), PROCESSES)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", ["postgresql", "mysql"])
def test_twenty_races_of_five_processes(system: str, database: Callable[[str], str]) -> None:
    began = time.monotonic()
    for _ in range(20):
        race_and_check(database(system), PROCESSES)
    print(f"{system}: 20 races of {PROCESSES} processes in {time.monotonic() - began:.0f} s")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", ["postgresql", "mysql"])
def test_without_the_lock_processes_fail(system: str, database: Callable[[str], str]) -> None:
    """What the lock is for."""
    outcomes = [race(*[command(database(system), "lock=off")] * PROCESSES) for _ in range(20)]
    failed = [sum(code != 0 for code, *_ in each) for each in outcomes]
    print(f"{system}: without the lock {sum(map(bool, failed))} of 20 races fail, {sum(failed)} of 100 processes")
    assert any(failed)


@pytest.mark.parametrize("system", ["postgresql", "mysql", "sqlite"])
def test_an_asyncio_env(system: str, database: Callable[[str], str]) -> None:
    race_and_check(database(system), 2, flavor="asyncio")


def test_a_file_of_sqlite(database: Callable[[str], str]) -> None:
    race_and_check(database("sqlite"), 3)


def test_the_lock_can_be_on_another_store(database: Callable[[str], str], redis_server: RedisServer) -> None:
    race_and_check(database("mysql"), 2, f"lock={redis_server.url}")


def test_one_transaction_for_each_migration(database: Callable[[str], str]) -> None:
    race_and_check(database("postgresql"), 2, "each=yes")


@pytest.mark.parametrize("system", ["postgresql", "sqlite"])
def test_a_killed_process_is_succeeded_by_the_next(system: str, database: Callable[[str], str]) -> None:
    """On PostgreSQL, the next one finds nothing half done. Python's SQLite commits each DDL statement at once."""
    url = database(system)
    with started([command(url)], first_takes=60) as (first,):
        until_in_the_middle(first)
        with started([command(url)]) as (second,):
            first.kill()
            code, ran, written = outcome(second)
    if system == "sqlite":
        assert (code, ran) == (1, ["one"]), written
        assert "table item already exists" in written
        repair(url)
        ((code, ran, written),) = race(command(url))
    assert (code, len(ran)) == (0, REVISIONS), written
    assert migrated(url) == (["three"], [(1, "first", None)])


def repair(url: str) -> None:
    """Remove the table that was committed without its revision."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE item")
    engine.dispose()


def until_in_the_middle(child: subprocess.Popen[str]) -> None:
    """Wait until a process has made the table of the first revision, which now takes its time."""
    assert child.stderr is not None
    assert any("the table is made" in line for line in child.stderr)


def until_waits(child: subprocess.Popen[str]) -> None:
    """Wait until a process has looked at the database, and then for longer than it takes to ask for the lock."""
    assert child.stderr is not None
    assert any("Context impl" in line for line in child.stderr)
    time.sleep(1.5)


@pytest.mark.parametrize("system", ["postgresql", "mysql"])
def test_the_database_dies_in_the_middle(system: str, tmp_path: Path) -> None:
    """Nothing stays locked, and a waiter's error names what to do; on PostgreSQL, the next run is as the first."""
    with PostgresServer() if system == "postgresql" else MariaDBServer() as server:
        url = server.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
        with started([command(url)], until=(go := tmp_path / "go")) as (first,):
            until_in_the_middle(first)
            with started([command(url)]) as (second,):
                until_waits(second)
                restart(server)
                go.touch()
                code, ran, written = outcome(second)
                assert (code, ran) == (1, []), written
                last = written.strip().splitlines()[-1]
                assert "StoreUnavailable: could not acquire 'alembic': the database failed while" in last
                assert "try again when the database answers" in last
            code, _, written = outcome(first)
            assert code == 1
            assert "sqlalchemy.exc.OperationalError" in written
        if system == "mysql":  # it has committed the table, but not the revision: repaired by hand
            ((code, _, written),) = race(command(url))
            assert code == 1
            assert "already exists" in written
            repair(url)
        race_and_check(url, 2)


def restart(server: PostgresServer | MariaDBServer) -> None:
    """Kill a server and start it with its data."""
    if isinstance(server, PostgresServer):
        server.restart(crash=True)
    else:
        server.restart()


def waiter_on(store: str) -> None:
    """Wait until there is a waiter for the lock on a store."""
    with leasehold.Client.from_url(store) as locks:
        until(lambda: (info := locks.inspect("alembic")) is not None and info.waiters, within=60)


@pytest.mark.parametrize("lease", [3, pytest.param(30, marks=pytest.mark.nightly)])
def test_the_store_of_the_lock_dies_in_the_middle(database: Callable[[str], str], tmp_path: Path, lease: int) -> None:
    """The one that migrates ends well within its lease; a waiter gets an error, and the next run finds it done.

    The one that waits tolerates an outage of one lease: by day it has a shorter one than `migration_lock` gives it.
    """
    url = database("postgresql")
    with RedisServer() as store:
        with started([command(url, f"lock={store.url}")], until=(go := tmp_path / "go")) as (first,):
            until_in_the_middle(first)
            with started([command(url, f"lock={store.url}", f"lease={lease}")]) as (second,):
                waiter_on(store.url)
                store.kill()
                go.touch()
                code, ran, written = outcome(first)
                assert (code, len(ran)) == (0, REVISIONS - 1), written  # the first of them was read above
                code, ran, written = outcome(second)
                assert (code, ran) == (1, []), written
                assert "cannot connect to Redis" in written.splitlines()[-1]
        store.start()
        ((code, ran, written),) = race(command(url, f"lock={store.url}"))
        assert (code, ran) == (0, []), written
    assert migrated(url) == (["three"], [(1, "first", None)])


def test_the_database_dies_while_the_lock_is_on_another_store(redis_server: RedisServer, tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.url.replace("postgresql:", "postgresql+psycopg:")
        lock = f"lock={redis_server.url}"
        with started([command(url, lock)], until=(go := tmp_path / "go")) as (first,):
            until_in_the_middle(first)
            restart(server)
            go.touch()
            code, _, written = outcome(first)
            assert code == 1
            assert "sqlalchemy.exc.OperationalError" in written
        race_and_check(url, 2, lock, "timeout=5")  # at once: the lock was released


def test_a_lock_that_is_lost_in_the_middle_is_reported_at_the_end(
    database: Callable[[str], str], tmp_path: Path
) -> None:
    url = database("postgresql")
    with (
        RedisServer() as store,
        started([command(url, f"lock={store.url}")], until=tmp_path / "go") as (first,),
    ):
        until_in_the_middle(first)
        with leasehold.Client.from_url(store.url) as locks:
            info = locks.inspect("alembic")
            assert info is not None
            assert locks.force_release("alembic", info.holders[0].token)
        (tmp_path / "go").touch()
        code, _, written = outcome(first)
    assert code == 1
    assert "LeaseLost" in written
    assert migrated(url)[0] == ["three"]  # it was committed before


ENDS = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT connection_id()", "KILL {}"),
}


@pytest.mark.parametrize("system", ENDS)
def test_a_session_that_ends_after_the_commit_is_reported_at_the_end(
    system: str, database: Callable[[str], str]
) -> None:
    def ends() -> None:
        session = connection.exec_driver_sql(ENDS[system][0]).scalar()
        connection.commit()
        other.exec_driver_sql(ENDS[system][1].format(session))
        other.commit()

    engine = sqlalchemy.create_engine(database(system), poolclass=sqlalchemy.NullPool)
    with engine.connect() as other, engine.connect() as connection:
        with pytest.raises(leasehold.LeaseLost, match="not be released") as caught, migration_lock(connection):
            ends()
        assert isinstance(caught.value.__cause__, sqlalchemy.exc.DBAPIError)
        with migration_lock(other, timeout=5):
            pass


def test_a_timeout_says_which_session_has_it(database: Callable[[str], str]) -> None:
    url = database("postgresql")
    with started([command(url)], first_takes=60) as (first,):
        until_in_the_middle(first)
        code, ran, written = race(command(url, "timeout=0"))[0]
    assert (code, ran) == (1, []), written
    assert re.search(r"could not acquire 'alembic' within 0 s: held by database session \d+ from 127", written)


def test_a_pooler_is_refused(postgres_server: PostgresServer, database: Callable[[str], str]) -> None:
    with PgBouncerServer(postgres_server, mode="transaction") as pooler:
        url = pooler.url.replace("postgresql:", "postgresql+psycopg:")
        code, _, written = race(command(url))[0]
        assert code == 1
        assert "a connection pooler is in front of the server" in written
