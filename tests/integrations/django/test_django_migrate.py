"""Several processes of ``manage.py migrate`` at once, on real servers: one carries it out, and all end with 0."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from sites import APP, Site, command, ended, made

from leasehold import Client
from leasehold_lab.servers import MariaDBServer, PgBouncerServer, PostgresServer, RedisServer
from support.patience import until

MIGRATIONS = 3
PROCESSES = 5
FIRST = {"DJ_FIRST_TAKES": "0.3"}
SYSTEMS = pytest.mark.parametrize("system", ["postgresql", "mysql"])
ALL = pytest.mark.parametrize("system", ["postgresql", "mysql", "sqlite"])
ON_POSTGRES = pytest.mark.parametrize("system", ["postgresql"])
MIGRATE = command("migrate", "--no-color")


def race(site: Site, processes: int, **env: object) -> list[tuple[int, list[str], str]]:
    with site.started(*[MIGRATE] * processes, **{**FIRST, **env}) as children:
        return [ended(child) for child in children]


def race_and_check(site: Site, processes: int = PROCESSES, **env: object) -> None:
    """One ran all migrations, the others none, all ended with 0, and the data is that of a single run."""
    outcomes = race(site, processes, **env)
    said = "\n---\n".join(written for *_, written in outcomes)
    assert [code for code, *_ in outcomes] == [0] * processes, said
    assert sorted(len(ran) for _, ran, _ in outcomes) == [*[0] * (processes - 1), MIGRATIONS], said
    assert sum("No migrations to apply" in written for *_, written in outcomes) == processes - 1, said
    assert len(site.query("SELECT id FROM shop_run")) == 1
    assert site.query("SELECT count(*) FROM django_migrations WHERE app = 'shop'") == [(MIGRATIONS,)]


def wiped(site: Site) -> None:
    """Make the database empty again."""
    name = site.database["NAME"]
    site.server.query(f"DROP DATABASE {name}")
    site.server.query(f"CREATE DATABASE {name}")


@SYSTEMS
def test_two_races_of_five_processes(site: Site) -> None:
    race_and_check(site)
    wiped(site)
    race_and_check(site)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@SYSTEMS
def test_twenty_races_of_five_processes(site: Site) -> None:
    began = time.monotonic()
    for _ in range(20):
        race_and_check(site)
        wiped(site)
    print(f"{site.system}: 20 races of {PROCESSES} processes in {time.monotonic() - began:.0f} s")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@SYSTEMS
def test_without_leasehold_processes_fail(site: Site) -> None:
    """What the lock is for."""
    races = []
    for _ in range(20):
        outcomes = race(site, PROCESSES, DJ_APPS=[])
        twice = len(site.query("SELECT id FROM shop_run")) > 1 if all(c == 0 for c, *_ in outcomes) else False
        races.append((sum(code != 0 for code, *_ in outcomes), twice))
        wiped(site)
    failed, twice = [count for count, _ in races], sum(ran for _, ran in races)
    print(
        f"{site.system}: without leasehold {sum(map(bool, failed))} of 20 races have a process that fails, "
        f"{sum(failed)} of 100 processes; {twice} races ran a migration twice"
    )
    assert any(failed) or twice


@pytest.mark.parametrize("system", ["sqlite"])
def test_a_file_of_sqlite(site: Site) -> None:
    race_and_check(site, 3)


@SYSTEMS
def test_the_lock_can_be_on_a_store(site: Site, redis_server: RedisServer, namespace: str) -> None:
    stores = {"slow": {"URL": redis_server.url, "NAMESPACE": namespace}}
    race_and_check(site, 2, DJ_LEASEHOLD=stores, DJ_MIGRATE={"ON": "slow"})


@ALL
def test_a_killed_process_is_succeeded_by_the_next(site: Site) -> None:
    """On PostgreSQL and SQLite DDL is transactional: the next one finds nothing half done."""
    with site.started(MIGRATE, DJ_FIRST_TAKES="60") as (first,):
        begun(first)
        with site.started(MIGRATE) as (second,):
            until_waits(second)
            first.kill()
            code, ran, written = ended(second)
    if site.system == "mysql":  # it commits each statement: half a migration is left, with or without a lock
        assert code == 1, written
        assert "already exists" in written
    else:
        assert (code, len(ran)) == (0, MIGRATIONS), written


def begun(child: subprocess.Popen[str]) -> None:
    """Wait until a process applies the first migration of the shop."""
    assert child.stdout is not None
    seen = ""
    while "shop.0001_initial" not in seen:
        seen += child.stdout.read(1)
        assert child.poll() is None, seen


def until_waits(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith("Another process migrates this database ("), line


@ALL
def test_a_timeout_says_who_migrates(site: Site) -> None:
    with site.started(MIGRATE, DJ_FIRST_TAKES="60") as (first,):
        begun(first)
        done = site.manage("migrate", "--lock-timeout", "0")
    assert done.returncode == 75, done.stderr
    assert "could not acquire 'django-migrate' within 0 s: " in done.stderr
    if site.system == "postgresql":
        assert re.search(r"held by database session \d+ from 127", done.stderr)


@ALL
def test_opting_out(site: Site) -> None:
    """By an option, by the settings, and for what only reads, even while another process migrates."""
    assert site.manage("migrate").returncode == 0
    path = site.database["NAME"]
    with site.started(MIGRATE, DJ_FIRST_TAKES="60") as (_,):
        for arguments, env in (
            (["migrate", "--no-lock"], {}),
            (["migrate"], {"DJ_MIGRATE": {"ON": None}}),
            (["migrate", "--check"], {}),
            (["migrate", "--plan"], {}),
        ):
            done = site.manage(*arguments, **env)
            assert done.returncode == 0, (path, arguments, done.stderr)


@SYSTEMS
def test_a_server_that_is_killed_in_the_middle(system: str, tmp_path: Path) -> None:
    """Nothing stays locked, and a waiter's error names what to do; on PostgreSQL, the next run is as the first."""
    kind, go = PostgresServer if system == "postgresql" else MariaDBServer, tmp_path / "go"
    with kind() as server, made(system, server, tmp_path) as site:
        with site.started(MIGRATE, DJ_FIRST_UNTIL=str(go)) as (first,):
            begun(first)
            with site.started(MIGRATE) as (second,):
                until_waits(second)
                time.sleep(1.5)  # it has asked once more
                restart(server)
                go.touch()
                code, ran, written = ended(second)
                assert (code, ran) == (1, []), written
                last = written.strip().splitlines()[-1]
                assert last.startswith("CommandError: could not acquire 'django-migrate': the database failed")
                assert "try again when the database answers" in last
            code, ran, written = ended(first)
        assert (code, ran) == (1, []), written
        assert "OperationalError" in written  # of the driver
        if system == "mysql":  # it has committed a table, but not the migration: repaired by hand
            code, _, written = race(site, 1)[0]
            assert code == 1
            assert "already exists" in written
            site.query("DROP TABLE shop_shelf, shop_run")
            assert race(site, 1)[0][0] == 0
        else:
            race_and_check(site, 2)


def restart(server: PostgresServer | MariaDBServer) -> None:
    """Kill a server and start it with its data."""
    if isinstance(server, PostgresServer):
        server.restart(crash=True)
    else:
        server.restart()


@pytest.mark.nightly  # it lasts for a lease; Alembic's runs each time
@ON_POSTGRES
def test_the_store_of_the_lock_is_killed_in_the_middle(site: Site, tmp_path: Path) -> None:
    """The one that migrates ends well within its lease; a waiter gets an error, and the next run finds it done."""
    go = tmp_path / "go"
    with RedisServer() as store:
        env = {"DJ_LEASEHOLD": {"slow": {"URL": store.url}}, "DJ_MIGRATE": {"ON": "slow"}}
        with site.started(MIGRATE, DJ_FIRST_UNTIL=str(go), **env) as (first,):
            begun(first)
            with site.started(MIGRATE, **env) as (second,):
                until_waits(second)
                with Client.from_url(store.url) as locks:
                    until(lambda: (info := locks.inspect("django-migrate:default")) and info.waiters, within=60)
                store.kill()
                go.touch()
                code, ran, written = ended(first)
                assert code == 0, written
                assert ran[-1] == "shop.0003_run"
                code, ran, written = ended(second)
                assert (code, ran) == (1, []), written
                assert written.splitlines()[-1].startswith("CommandError: "), written
        store.start()
        with site.started(MIGRATE, **env) as (third,):
            code, ran, written = ended(third)
        assert (code, ran) == (0, []), written
        assert "No migrations to apply" in written


@ON_POSTGRES
def test_the_database_is_killed_while_the_lock_is_on_a_store(
    system: str, tmp_path: Path, redis_server: RedisServer, namespace: str
) -> None:
    stores = {"slow": {"URL": redis_server.url, "NAMESPACE": namespace}}
    env = {"DJ_LEASEHOLD": stores, "DJ_MIGRATE": {"ON": "slow", "TIMEOUT": 20}}
    go = tmp_path / "go"
    with PostgresServer() as server, made(system, server, tmp_path) as site:
        with site.started(MIGRATE, DJ_FIRST_UNTIL=str(go), **env) as (first,):
            begun(first)
            restart(server)
            go.touch()
            code, ran, written = ended(first)
        assert (code, ran) == (1, []), written
        race_and_check(site, 2, **env)  # the lock was released


@ON_POSTGRES
def test_a_lock_that_is_lost_ends_the_command_before_the_next_migration(
    site: Site, redis_server: RedisServer, namespace: str
) -> None:
    stores = {"slow": {"URL": redis_server.url, "NAMESPACE": namespace}}
    env = {"DJ_LEASEHOLD": stores, "DJ_MIGRATE": {"ON": "slow"}}
    with site.started(MIGRATE, DJ_FIRST_TAKES="8", **env) as (first,):  # busy machines start slowly
        begun(first)
        done = site.manage("leasehold", "--store", "slow", "break", "django-migrate:default", "--yes", **env)
        assert done.returncode == 0, done.stderr
        code, _, written = ended(first)
    assert code == 1, written
    assert site.query("SELECT name FROM django_migrations WHERE app = 'shop'") == [("0001_initial",)], "not the next"
    assert "lost" in written.splitlines()[-1]


@ON_POSTGRES
def test_a_pooler_is_refused(site: Site, postgres_server: PostgresServer) -> None:
    with PgBouncerServer(postgres_server, mode="transaction") as pooler:
        port = pooler.url.rpartition(":")[2].partition("/")[0]
        site.database = {**site.database, "PORT": port, "NAME": "postgres"}
        done = site.manage("migrate", "shop", "zero", "--fake")
    assert done.returncode == 1
    assert "a connection pooler is in front of the server" in done.stderr
    assert "Traceback" not in done.stderr


@ON_POSTGRES
def test_an_interrupted_wait_ends_at_once(site: Site) -> None:
    with site.started(MIGRATE, DJ_FIRST_TAKES="60") as (first,):
        begun(first)
        with site.started(MIGRATE) as (second,):
            until_waits(second)
            second.send_signal(signal.SIGINT)
            code, ran, _ = ended(second, 20)
    assert code != 0
    assert ran == []


@ON_POSTGRES
def test_the_migrate_of_another_app_is_kept(site: Site) -> None:
    done = site.manage("migrate", "--verbosity", "1", DJ_APPS=[APP, "loud"])
    assert done.returncode == 0, done.stderr
    assert "loud: migrating" in done.stdout
    assert site.manage("migrate", "--lock-timeout", "1", DJ_APPS=[APP, "loud"]).returncode == 0


@ON_POSTGRES
def test_an_error_of_a_migration_is_its_own(site: Site) -> None:
    """Also one of the classes that the lock raises: it keeps its traceback, and nothing stays locked."""
    done = site.manage("migrate", DJ_FIRST_FAILS="yes")
    assert done.returncode == 1
    assert "leasehold.errors.AcquireTimeout: of a migration" in done.stderr
    race_and_check(site, 2)


@ON_POSTGRES
def test_wrong_settings_are_named(site: Site) -> None:
    done = site.manage("migrate", DJ_MIGRATE={"ON": "nowhere"})
    assert done.returncode == 1
    assert (
        "LEASEHOLD_MIGRATE['ON'] is 'database', an alias of LEASEHOLD, or None for no lock, not 'nowhere'"
        in done.stderr
    )
