"""``manage.py leasehold ls|show|break|doctor|init|top``: the command ``leasehold``, with the store of the settings."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from leasehold.cli import main
from leasehold.integrations.django import conf

COMMANDS = ("ls", "show", "break", "doctor", "init", "top")


class Command(BaseCommand):  # type: ignore[misc]
    """Runs a command of ``leasehold`` on a store of ``settings.LEASEHOLD``."""

    help = "Lists, shows, breaks and diagnoses locks: ls, show, break, doctor, init, top. Their options follow."
    requires_system_checks: ClassVar[list[str]] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the store, and everything after the name of the command as it is."""
        parser.add_argument("--store", default=conf.DEFAULT, metavar="ALIAS", help="The alias in LEASEHOLD (default).")
        parser.add_argument("what", choices=COMMANDS, help="The command of leasehold.")
        parser.add_argument("rest", nargs=argparse.REMAINDER, help="Its arguments; --help shows them.")

    def handle(self, *, store: str, what: str, rest: list[str], **options: Any) -> None:
        """Run it; it exits with its own code."""
        try:
            settings = conf.store_settings(store)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        run: Any = main  # without click it is a plain function
        output: Any = getattr(self.stdout, "_out", self.stdout)  # Django's wrapper adds a line end to each write
        with _environment(settings), redirect_stdout(output):
            run([what, *rest], prog_name="manage.py leasehold")


@contextmanager
def _environment(settings: conf.StoreSettings) -> Generator[None, None, None]:
    """Set the store and the namespace where the commands read them. The process list does not show them there."""
    given = {"LEASEHOLD_URL": settings.url.reveal(), "LEASEHOLD_NAMESPACE": settings.options["namespace"]}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
