"""The group of commands. Each is imported when it is called, so that help and completion stay fast."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

import click

from leasehold.cli.codes import Exit
from leasehold.cli.options import Failed, usage


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, and its line in the list of commands."""

    module: str
    attribute: str
    line: str

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = getattr(import_module(self.module), self.attribute)
        return command


GROUP = "leasehold.commands"
"""The group of entry points by which other distributions add commands; the name is the command's."""

COMMANDS: Mapping[str, Entry] = {
    "run": Entry("leasehold.cli.run.command", "run", "Run a command while holding a lock."),
    "ls": Entry("leasehold.cli.ls", "ls", "List the locks that are held."),
    "show": Entry("leasehold.cli.show", "show", "Show one lock: who holds it, who waits."),
    "break": Entry("leasehold.cli.break_", "break_", "Take a lock from its holder."),
    "doctor": Entry("leasehold.cli.doctor", "doctor", "Check the store's settings, and explain them."),
    "init": Entry("leasehold.cli.init", "init", "Create the tables of a store on a database server."),
}

LAB: Mapping[str, str] = {
    "demo": "See updates lost without a lock, and none lost with it.",
    "bench": "Measure locks in your store.",
    "servers": "Start servers on this machine, for development.",
    "verify": "Look for broken promises in your store under faults.",
}
"""Commands of the distribution ``leasehold-lab``, each with its line in the list."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if entry := COMMANDS.get(cmd_name):
            return entry.load()
        if point := _added().get(cmd_name):
            command: click.Command = point.load()
            return command
        if cmd_name in LAB:
            raise Failed(
                f"{cmd_name!r} belongs to leasehold-lab; install it with: pip install 'leasehold[lab]'", Exit.MISSING
            )
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._line(ctx, name)) for name in self.list_commands(ctx)])

    def _line(self, ctx: click.Context, name: str) -> str:
        if entry := COMMANDS.get(name):
            return entry.line
        if line := LAB.get(name):
            return line
        command = self.get_command(ctx, name)
        return command.get_short_help_str() if command else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise usage(error) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise usage(error) from None

    def main(self, *args: Any, **options: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no error
        return super().main(*args, **options)


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("leasehold"), prog_name="leasehold")
def main() -> None:
    """Locks for several processes and machines, from the shell.

    The store is --url, or LEASEHOLD_URL from the environment, or else SQLite in your state folder.
    """
