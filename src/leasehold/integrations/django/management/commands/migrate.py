"""``manage.py migrate`` that one of several containers carries out, while the others wait and then find it done."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from leasehold.errors import AcquireTimeout, LeaseholdError, LeaseLost
from leasehold.integrations.django import conf
from leasehold.integrations.django.migrating import NAME, Check, migration_lock, next_migrate

TEMPORARY = 75
"""The exit code of ``leasehold run``, too: another one has the lock; try again later."""


class Command(next_migrate("leasehold.integrations.django")):  # type: ignore[misc]
    """Django's command, or that of the next app which has one, under a lock of the database that it migrates."""

    _check: Check | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the two options of the lock."""
        super().add_arguments(parser)
        parser.add_argument(
            "--no-lock", action="store_true", help="Migrate without a lock, even if another process migrates."
        )
        parser.add_argument(
            "--lock-timeout",
            type=float,
            metavar="SECONDS",
            help="Seconds to wait for another process that migrates (LEASEHOLD_MIGRATE['TIMEOUT'], or 600).",
        )

    def handle(self, *args: Any, **options: Any) -> Any:
        """Migrate, unless the command only reads, under the lock."""
        try:
            settings = conf.migrate_settings()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        if options.get("no_lock") or settings.on is None or options.get("plan") or options.get("check_unapplied"):
            return super().handle(*args, **options)
        if options.get("lock_timeout") is not None:
            settings = replace(settings, timeout=options["lock_timeout"])
        tell = self.stdout.write if options["verbosity"] else _say_nothing
        with ExitStack() as stack:
            stack.enter_context(_reported_loss())
            try:
                self._check = stack.enter_context(migration_lock(connections[options["database"]], settings, tell))
            except (LeaseholdError, ImproperlyConfigured) as error:
                code = TEMPORARY if isinstance(error, AcquireTimeout) else 1
                raise CommandError(str(error), returncode=code) from error
            try:
                return super().handle(*args, **options)
            finally:
                self._check = None

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:
        """Check that the lock is still held before each migration."""
        if action in ("apply_start", "unapply_start") and self._check is not None:
            self._check()
        super().migration_progress_callback(action, migration, fake)


@contextmanager
def _reported_loss() -> Generator[None, None, None]:
    """Report the loss of our lock in one line; errors of the migrations keep their tracebacks."""
    try:
        yield
    except LeaseLost as error:
        if not (error.name or "").startswith(NAME):
            raise
        raise CommandError(str(error)) from error


def _say_nothing(_: str) -> None:
    """Print nothing, for ``--verbosity 0``."""
