"""The lock around `manage.py migrate`, and which command it is around.

Theory of operation:

* The plan is made after the lock was acquired. So a process that waited finds the migrations done, and applies none.
* By default the lock belongs to the session that migrates: an advisory lock on PostgreSQL, `GET_LOCK` on MySQL and
  MariaDB (see `integrations._common.advisory`), the lock of a file next to that of SQLite. It needs no table, so it is
  there before the first migration. If the process dies, the session ends, and the next one begins.
* On a store it is a lease. A store whose tables these migrations make cannot guard the first of them.
* Before each migration the lock is checked: one that was lost ends the command before the next migration begins.
"""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import find_commands, load_command_class
from django.core.management.commands.migrate import Command as DjangoCommand

from leasehold._validate import Seconds
from leasehold.errors import AcquireTimeout, LeaseLost, StoreUnavailable
from leasehold.guards.connection import Statement, Statements, run
from leasehold.integrations._common.advisory import lock_on, session_lock
from leasehold.integrations._common.file_lock import file_lock
from leasehold.integrations.django import conf
from leasehold.integrations.django.clients import locks

NAME = "django-migrate"
"""The name of the lock; on the server it is one for each database."""

Check = Callable[[], None]
"""Raises `LeaseLost` if the lock is not held any more."""

LOST = "the lock of this migration was lost, because its database session ended: another process may migrate by now"

_HELD = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = pg_backend_pid()
    AND (classid::bigint << 32) | objid::bigint = {}::bigint
"""


@contextmanager
def migration_lock(
    connection: Any, settings: conf.MigrateSettings, tell: Callable[[str], None]
) -> Generator[Check, None, None]:
    """Hold the lock of a database while a block migrates it; yield what checks that it is still held.

    Raises:
        AcquireTimeout: another process is still migrating; the message says which one.
        StoreUnavailable: the server of the lock failed while this process waited; it has migrated nothing.
        LeaseLost: at the end of the block: the lock was lost before.
        Unsupported: a pooler or Galera would make the lock worthless.
        ImproperlyConfigured: the database has no such locks.
    """
    take = _taker(connection, settings)
    with ExitStack() as stack:
        try:
            check = stack.enter_context(take(0))
        except AcquireTimeout as busy:
            if settings.timeout == 0:
                raise
            tell(f"Another process migrates this database ({busy.held_by or 'unknown'}): waiting for it.")
            check = stack.enter_context(take(settings.timeout))
        yield check


Take = Callable[[Any], Any]
"""Takes a time to wait, and returns a context manager that yields a `Check`."""


def _taker(connection: Any, settings: conf.MigrateSettings) -> Take:
    if settings.on != conf.DATABASE:
        alias = str(settings.on)
        return lambda timeout: _on_store(alias, connection.alias, timeout)
    if connection.vendor in ("postgresql", "mysql"):
        return lambda timeout: _on_session(connection, settings.pooler, timeout)
    if connection.vendor == "sqlite":
        return lambda timeout: _on_file(connection, timeout)
    raise ImproperlyConfigured(
        f"the database {connection.alias!r} is on {connection.vendor}, which has no lock for a migration: set "
        "LEASEHOLD_MIGRATE = {'ON': alias of LEASEHOLD}, or {'ON': None} for no lock"
    )


@contextmanager
def _on_session(connection: Any, pooler: str, timeout: Seconds | None) -> Generator[Check, None, None]:
    def settle() -> None:
        if not connection.get_autocommit() and not connection.in_atomic_block:
            connection.commit()

    def held() -> Statements[bool]:
        lock = yield from lock_on(connection, NAME, pooler="session")  # whether one is in between was checked before
        text = _HELD if isinstance(lock.key, int) else "SELECT IS_USED_LOCK({}) = CONNECTION_ID()"
        return bool((yield Statement(text, (lock.key,))).rows[0][0])

    def check() -> None:
        if not run(connection, held()):
            raise LeaseLost(LOST, name=NAME)
        settle()

    with session_lock(connection, NAME, timeout=timeout, pooler=pooler, settle=settle):
        yield check


@contextmanager
def _on_file(connection: Any, timeout: float | None) -> Generator[Check, None, None]:
    path = run(connection, _path())
    if not path:  # in memory: it belongs to this process
        yield _fine
        return
    with file_lock(f"{path}.migration-lock", NAME, timeout):
        yield _fine


def _path() -> Statements[str]:
    return str((yield Statement("PRAGMA database_list")).rows[0][2] or "")


@contextmanager
def _on_store(alias: str, database: str, timeout: Seconds | None) -> Generator[Check, None, None]:
    with locks[alias].lock(f"{NAME}:{database}", timeout=timeout) as hold:

        def check() -> None:
            try:
                hold.renew()  # the store knows better than our clock: an operator may have broken the lock
            except StoreUnavailable:
                hold.raise_if_lost()

        yield check


def _fine() -> None:
    """Do nothing: the kernel keeps the lock of a file as long as it is open."""


def next_migrate(app: str) -> type[Any]:
    """Return the class of the ``migrate`` that an app overrides: of the next app that has one, or Django's."""
    configs = list(apps.get_app_configs()) if apps.apps_ready else []
    names = [config.name for config in configs]
    for config in configs[names.index(app) + 1 :] if app in names else ():
        if "migrate" in find_commands(f"{config.path}/management"):
            found: type[Any] = type(load_command_class(config.name, "migrate"))
            return found
    plain: type[Any] = DjangoCommand
    return plain
