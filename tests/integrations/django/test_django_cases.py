"""The cases of the project, run by Django's own test runner on each database, and what needs processes of its own."""

from __future__ import annotations

import pytest
from sites import APP, TABLES, Site

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
            assert site.query("SELECT version FROM leasehold_meta") == [(1,)]
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


@SERVERS
def test_the_migration_finds_the_tables_of_init(site: Site) -> None:
    stores = {"default": {"DATABASE": "default"}}
    done = site.manage("leasehold", "init", DJ_LEASEHOLD=stores)
    assert done.returncode == 0, done.stderr
    assert site.manage("migrate", DJ_APPS=[APP, TABLES], DJ_LEASEHOLD=stores).returncode == 0
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_APPS=[APP, TABLES], DJ_LEASEHOLD=stores)
    assert done.returncode == 0, done.stderr


@SERVERS
def test_missing_tables_are_found_by_the_deployment_check(site: Site) -> None:
    done = site.manage("check", "--deploy", "--tag", "leasehold", DJ_LEASEHOLD={"default": {"DATABASE": "default"}})
    assert done.returncode == 1
    assert "leasehold_meta" in done.stderr
