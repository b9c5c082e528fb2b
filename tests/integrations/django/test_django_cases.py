"""The cases of the project, run by Django's own test runner on each database, and what needs processes of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sites import APP, TABLES, Site, command, ended

from leasehold.stores._sql.dialect import LAYOUT
from support.patience import until
from support.stores.old_tables import COLUMNS, THERE, WAITING, downgraded, new_columns

SYSTEMS = pytest.mark.parametrize("system", ["postgresql", "mysql", "sqlite"])
SERVERS = pytest.mark.parametrize("system", ["postgresql", "mysql"])


@SYSTEMS
def test_the_cases_of_the_project(site: Site) -> None:
    done = site.manage("test", "shop", "-p", "case_*.py", within=110, DJ_APPS=[APP, TABLES])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stderr


@SYSTEMS
def test_the_tables_come_and_go_with_the_migration(site: Site) -> None:
    apps = [APP, TABLES]
    for _ in range(2):
        assert site.manage("migrate", DJ_APPS=apps).returncode == 0
        if site.system != "sqlite":
            assert site.query("SELECT version FROM leasehold_meta") == [(LAYOUT,)]
        done = site.manage("migrate", "leasehold_tables", "zero", DJ_APPS=apps)
        assert done.returncode == 0, done.stderr
        if site.system != "sqlite":
            with pytest.raises(Exception, match="leasehold_meta"):
                site.query("SELECT version FROM leasehold_meta")


@SYSTEMS
def test_nothing_is_left_to_migrate_or_to_make(site: Site) -> None:
    """The models and the migrations agree, and the app without tables needs none."""
    apps = [APP, TABLES]
    done = site.manage("makemigrations", "--check", "--dry-run", DJ_APPS=apps)
    assert done.returncode == 0, done.stdout + done.stderr
    done = site.manage("check", "--fail-level", "WARNING", DJ_APPS=apps)
    assert done.returncode == 0, done.stdout + done.stderr


@SYSTEMS
def test_the_model_without_a_table_is_empty_for_djangos_own_commands(site: Site) -> None:
    """`dumpdata` reads all models, and with ``--all`` by their base managers."""
    assert site.manage("migrate", DJ_APPS=[APP]).returncode == 0
    for words in ("dumpdata",), ("dumpdata", "--all"), ("dumpdata", "leasehold"):
        done = site.manage(*words, DJ_APPS=[APP])
        assert done.returncode == 0, done.stderr
        assert "heldlock" not in {each["model"].split(".")[1] for each in json.loads(done.stdout)}


@SERVERS
def test_the_migration_finds_the_tables_of_init(site: Site) -> None:
    stores = {"default": {"DATABASE": "default"}}
    done = site.manage("leasehold", "init", DJ_LEASEHOLD=stores)
    assert done.returncode == 0, done.stderr
    assert site.manage("migrate", DJ_APPS=[APP, TABLES], DJ_LEASEHOLD=stores).returncode == 0
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_APPS=[APP, TABLES], DJ_LEASEHOLD=stores)
    assert done.returncode == 0, done.stderr


@SERVERS
@pytest.mark.parametrize("interrupted", [False, True], ids=["at first", "after an interruption"])
def test_tables_of_layout_1_are_upgraded(site: Site, interrupted: bool) -> None:
    """A client of the earlier version is in a step: its entry is counted. Afterwards nothing is left to do."""
    stores, apps = {"default": {"DATABASE": "default"}}, [APP, TABLES]
    system = "postgresql" if site.system == "postgresql" else "mariadb"
    with opened(site) as old:
        old_tables(site, old)
        for text in (
            *([new_columns(system), "UPDATE leasehold_meta SET version = 0"] if interrupted else []),
            "BEGIN",
            "SELECT id FROM leasehold_name FOR UPDATE",
        ):
            old.execute(text)
        with site.started(command("migrate", "--no-color"), DJ_APPS=apps) as (migrating,):
            until(lambda: site.query(WAITING[system])[0][0] > 0, within=60)
            old.execute(
                f"INSERT INTO leasehold_entry ({COLUMNS}) SELECT id, 'ticket', 0, 7, 9, 'mutex', 1, 0, 1, 1, 0, 9, 0, "
                "'h:1:c', '', '', '' FROM leasehold_name"
            )
            old.execute("COMMIT")
            code, _, written = ended(migrating)
    assert code == 0, written
    assert "0002_layout_2" in written
    assert site.query("SELECT version FROM leasehold_meta") == [(LAYOUT,)]
    assert site.query("SELECT entries FROM leasehold_name") == [(1,)]
    assert site.query(THERE[system].replace("%%", "%")) == [(0,)]
    done = site.manage("leasehold", "init", DJ_LEASEHOLD=stores)
    assert "nothing was missing" in done.stderr, done.stderr
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_APPS=apps, DJ_LEASEHOLD=stores)
    assert done.returncode == 0, done.stderr


LIMITED = """
from importlib import import_module
from django.core.management import call_command
from django.db import OperationalError, connection

upgrade = import_module("leasehold.integrations.django.tables.migrations.0002_layout_2")
upgrade.WITHIN = 1

def limit():
    with connection.cursor() as cursor:
        postgres = connection.vendor == "postgresql"
        cursor.execute("SHOW lock_timeout" if postgres else "SELECT @@SESSION.lock_wait_timeout")
        return cursor.fetchone()

before = limit()
try:
    call_command("migrate")
except OperationalError as error:
    print("refused:", error)
    print("limit:", limit() == before)
"""


@SERVERS
def test_the_upgrade_does_not_wait_for_ever_for_an_open_transaction(site: Site) -> None:
    """All locks wait behind it: a dump, or a transaction that somebody has forgotten, would stop them."""
    apps = [APP, TABLES]
    with opened(site) as old:
        old_tables(site, old)
        old.execute("BEGIN")
        old.execute("SELECT id FROM leasehold_name")
        old.fetchall()
        done = site.manage("shell", "-c", LIMITED, within=60, DJ_APPS=apps)
        assert done.returncode == 0, done.stderr
        assert "refused:" in done.stdout
        assert "limit: True" in done.stdout, "it has changed the session"
        old.execute("COMMIT")
    assert site.query("SELECT version FROM leasehold_meta") == [(1,)]
    assert site.manage("migrate", DJ_APPS=apps).returncode == 0
    assert site.query("SELECT version FROM leasehold_meta") == [(LAYOUT,)]


UNLUCKY = {
    "postgresql": (
        "CREATE SEQUENCE failures",
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('failures') <= {times} THEN "
        "RAISE EXCEPTION 'as told' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER failing BEFORE UPDATE ON leasehold_name FOR EACH ROW EXECUTE FUNCTION fail()",
    ),
    "mysql": (
        "CREATE TRIGGER failing BEFORE UPDATE ON leasehold_name FOR EACH ROW IF COALESCE(@failures, 0) < {times} THEN "
        "SET @failures = COALESCE(@failures, 0) + 1; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF",
    ),
}
"""Lets the last step of the upgrade end in a deadlock, so often."""


@SERVERS
@pytest.mark.parametrize(("times", "code", "version"), [(2, 0, LAYOUT), (10**9, 1, 1)], ids=["twice", "always"])
def test_a_deadlock_in_the_upgrade_is_tried_again(site: Site, times: int, code: int, version: int) -> None:
    """Clients lock names in another order. If it fails for good, clients of the earlier version go on."""
    with opened(site) as old:
        old_tables(site, old)
        for text in UNLUCKY[site.system]:
            old.execute(text.format(times=times))
    done = site.manage("migrate", DJ_APPS=[APP, TABLES])
    assert done.returncode == code, done.stderr
    assert site.query("SELECT version FROM leasehold_meta") == [(version,)]


def old_tables(site: Site, old: Any) -> None:
    """Make tables of layout 1, with one name, that the next migration is to upgrade."""
    assert site.manage("migrate", DJ_APPS=[APP, TABLES]).returncode == 0
    for text in (
        *downgraded("postgresql" if site.system == "postgresql" else "mariadb"),
        "DELETE FROM django_migrations WHERE app = 'leasehold_tables' AND name = '0002_layout_2'",
        "INSERT INTO leasehold_name (space, name, fence, blocked_until, used) VALUES ('default', 'held', 7, 0, 7)",
    ):
        old.execute(text)


@SERVERS
def test_tables_of_layout_1_are_found_by_the_deployment_check(site: Site) -> None:
    stores, apps = {"default": {"DATABASE": "default"}}, [APP, TABLES]
    assert site.manage("migrate", DJ_APPS=apps).returncode == 0
    with opened(site) as old:
        old.execute("UPDATE leasehold_meta SET version = 1")
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_APPS=apps, DJ_LEASEHOLD=stores)
    assert done.returncode == 1
    assert "layout 1" in done.stderr
    assert "leasehold init" in done.stderr


@contextmanager
def opened(site: Site) -> Iterator[Any]:
    """Open a connection to the site's database that commits each statement; yield a cursor."""
    key = "dbname" if site.system == "postgresql" else "database"
    connection = site.server.connect(**{key: site.database["NAME"]})
    try:
        yield connection.cursor()
    finally:
        connection.close()


@SERVERS
def test_missing_tables_are_found_by_the_deployment_check(site: Site) -> None:
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_LEASEHOLD={"default": {"DATABASE": "default"}})
    assert done.returncode == 1
    assert "leasehold_meta" in done.stderr
