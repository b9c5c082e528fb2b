"""``leasehold run``: a command under a lock."""

from __future__ import annotations

import sys
from typing import Any

import click

from leasehold import _validate
from leasehold.cli.completion import lock_names
from leasehold.cli.options import DURATIONS, Duration, Exit, Failed, store_options
from leasehold.cli.store import silence_logging
from leasehold.stores.registry import hide


class RunCommand(click.Command):
    """Takes its options before and after NAME; those after the first word of COMMAND are the command's own."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, rest = self._options_first(ctx, args)
        after, command = self._options_first(ctx, rest[1:])
        return super().parse_args(ctx, [*before, *after, "--", *rest[:1], *command])

    def _options_first(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Split ``args`` into the options that they begin with, and what follows them or a ``--``."""
        options_only = click.Command(self.name, params=[one for one in self.params if isinstance(one, click.Option)])
        rest = options_only.make_parser(ctx).parse_args(list(args))[1]
        options = args[: len(args) - len(rest)]
        return options[:-1] if options[-1:] == ["--"] else options, rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["NAME", "[OPTIONS]", "[--]", "COMMAND..."]


@click.command(cls=RunCommand, epilog=DURATIONS)
@click.argument("name", shell_complete=lock_names)
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--timeout", type=Duration(), help="Wait at most TIME. Default: wait for ever.")
@click.option("--no-wait", is_flag=True, help="Give up at once if another client holds the lock.")
@click.option("--lease", type=Duration(), default=30.0, show_default=True, help="Lease; renewed while COMMAND runs.")
@click.option("--fair", is_flag=True, help="Waiters acquire in order of arrival.")
@click.option("--lock-delay", type=Duration(), default=0.0, help="After an expiry, block the name for TIME.")
@click.option("--meta", metavar="TEXT", help="A text that ls and show print.")
@click.option("--max-hold", type=Duration(), help="Stop renewing after TIME; the lock then ends within a lease.")
@click.option(
    "--grace",
    type=Duration(),
    default=10.0,
    show_default=True,
    help="From SIGTERM to SIGKILL if the lock is lost.",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    "taken_code",
    type=click.IntRange(0, 255),
    metavar="N",
    default=int(Exit.TAKEN),
    show_default=True,
    help="Exit code if another client holds the lock.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about the lock, only errors.")
@store_options
def run(name: str, url: str | None, no_wait: bool, **given: Any) -> None:
    """Run COMMAND while holding the lock NAME.

    The command is started without a shell, with LEASEHOLD_NAME, LEASEHOLD_TOKEN, LEASEHOLD_URL and
    LEASEHOLD_NAMESPACE in its environment. It is stopped if the lock is lost, and does not outlive this process.

    \b
    Exit code: that of the command, or 128+n if signal n ended it; and
      64   a mistake in the command line     126  the command cannot be executed
      69   the store is unavailable          127  the command is not found
      75   another client holds it (-E)       76   the lock was lost; the command was stopped

    Example: leasehold run nightly --no-wait -- ./backup.sh --full
    """  # noqa: D301 - click reads the backspace, which keeps the lines of the table
    if no_wait and given["timeout"] is not None:
        raise Failed("--no-wait and --timeout contradict each other; leave one out", Exit.USAGE)
    from leasehold.cli.run.supervise import RunOptions, supervise

    silence_logging()
    options = RunOptions(_validate.name(name), hide(url).reveal(), wait=not no_wait, **given)
    _validate.name(options.namespace, "namespace")
    _validate.lease(options.lease)
    _validate.at_least_zero(options.grace, "grace")
    sys.exit(supervise(options))
