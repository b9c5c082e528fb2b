"""The group of commands. Each is imported when it is called, so that help and completion stay fast."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli.options import Exit, Failed, one_line_errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "leasehold.commands"
"""The group of entry points by which other distributions add commands; the name is the command's."""

COMMANDS: Mapping[str, str] = {
    "run": "leasehold.cli.run.command:run",
    "ls": "leasehold.cli.ls:ls",
    "show": "leasehold.cli.show:show",
    "top": "leasehold.cli.top.command:top",
    "break": "leasehold.cli.break_:break_",
    "doctor": "leasehold.cli.doctor:doctor",
    "init": "leasehold.cli.init:init",
    "completion": "leasehold.cli.completion:completion",
    "ui": "leasehold.cli.ui:ui",
}
"""Where each command is."""

LAB = ("bench", "demo", "report", "servers", "verify")
"""Commands of the distribution ``leasehold-lab``."""

LINES: Mapping[str, str] = {
    "run": "Run a command while holding a lock.",
    "ls": "List the locks that are held.",
    "show": "Show one lock: who holds it, who waits.",
    "top": "Watch the locks, live in the terminal.",
    "break": "Take a lock from its holder.",
    "doctor": "Check the store's settings, and explain them.",
    "init": "Create the tables of a store on a database server.",
    "ui": "Show the locks in a browser, live.",
    "completion": "Print or install what completes commands in your shell.",
    "demo": "See updates lost without a lock, and none lost with it.",
    "bench": "Measure locks in your store.",
    "report": "Show who held which lock when, from records.",
    "servers": "Start servers on this machine, for development.",
    "verify": "Look for broken promises in your store under faults.",
}
"""The line of a command in the list, so that the list imports none of them."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if place := COMMANDS.get(cmd_name):
            command = resolve_name(place)
        elif point := _added().get(cmd_name):
            command = point.load()
        elif cmd_name in LAB:
            raise Failed(
                f"{cmd_name!r} belongs to leasehold-lab; install it with: pip install 'leasehold[lab]', or in a clone: "
                "pip install ./lab",
                Exit.MISSING,
            )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._line(ctx, name)) for name in self.list_commands(ctx)])

    def _line(self, ctx: click.Context, name: str) -> str:
        if line := LINES.get(name):
            return line
        command = self.get_command(ctx, name)
        return command.get_short_help_str() if command else ""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with one_line_errors():
            return super().make_context(*args, **{"color": _color(), **extra})

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors():
            return super().invoke(ctx)

    def main(self, *args: Any, **options: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no error
        if os.environ.get("_LEASEHOLD_COMPLETE"):
            resolve_name(COMMANDS["completion"])  # which registers how bash is answered
            with suppress(click.ClickException):  # a mistake in the words so far: there is nothing to propose
                super().main(*args, **options)
            sys.exit()
        return super().main(*args, **options)


def _color() -> bool | None:
    """Return whether the environment wants colors or none; None leaves it to whether there is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def _added() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes a fifth of a command's start, and few commands need it

    return {point.name: point for point in entry_points(group=GROUP)}


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leasehold", prog_name="leasehold")
def main() -> None:
    """Locks for several processes and machines, from the shell.

    The store is --url, or LEASEHOLD_URL from the environment, or else SQLite in your state folder.
    """
