"""``leasehold bench``: measure locks on a server, compared with the floor and other libraries."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from leasehold.cli.options import DURATIONS, Duration, Exit, Failed, json_option
from leasehold.cli.output import as_json
from leasehold_lab.bench import quick as small
from leasehold_lab.bench.contestant import Contestant
from leasehold_lab.bench.measures import Measure
from leasehold_lab.bench.processes.pinning import Pin
from leasehold_lab.bench.report import summary
from leasehold_lab.bench.report.markdown import markdown
from leasehold_lab.bench.report.page import page
from leasehold_lab.bench.report.table import text
from leasehold_lab.bench.result import Row
from leasehold_lab.bench.run import Settings, run
from leasehold_lab.commands.status_line import StatusLine
from leasehold_lab.lifetime import end_on_signals
from leasehold_lab.servers.base import MissingServer

TARGET = click.Path(dir_okay=False, path_type=Path)


class ProgressLine:
    """Shows on standard error what is measured now."""

    def __init__(self) -> None:
        self._line = StatusLine()

    def trial_begins(self, measure: Measure, contestant: Contestant, done: int, of: int) -> None:
        """Show which trial begins."""
        self._line.update(f"{done * 100 // of:3} %  {measure.title}: {contestant.title}")

    def row_ends(self, row: Row) -> None:
        """Show that a measure is complete; its figures are in the table at the end."""
        self._line.say(f"done   {row.measure.title}")


@click.command(epilog=DURATIONS)
@click.argument("url", required=False)
@click.option("--seconds", type=Duration(0.01, 60), help="Length of a trial. Default: 0.5, or 0.2 if quick.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Trials of each contestant. Default: 3, or 9 if quick.")
@click.option("--only", multiple=True, metavar="KEY", help="A measure, or the beginning of its key; may be repeated.")
@click.option("--full", is_flag=True, help="Also what takes long: 100 processes, 10,000 locks, 10,000 waiters.")
@click.option(
    "--peers-python",
    type=click.Path(exists=True, dir_okay=False),
    help="Interpreter of an environment that has other lock libraries.",
)
@click.option(
    "--pin",
    type=click.Choice([pin.value for pin in Pin]),
    default=Pin.ALONE.value,
    show_default=True,
    help="Keep client and server on the same core, or on an other; alone: on the same for a single caller, else as the "
    "kernel likes. Only on Linux and without URL.",
)
@click.option(
    "--profile/--no-profile",
    default=None,
    help="Say of leasehold and the floor, on Redis, in which part of them the time goes. Default: with --docs only.",
)
@click.option("--report", type=TARGET, help="Write a page with charts, as HTML.")
@click.option("--docs", type=TARGET, help="Write the documentation's page, its picture and its details.")
@click.option("--quick", is_flag=True, help="Only a few ratios on Redis and SQLite, in less than a minute.")
@click.option("--write", is_flag=True, help="Make the ratios of this quick run the committed ones.")
@json_option
def bench(
    url: str | None,
    seconds: float | None,
    rounds: int | None,
    only: tuple[str, ...],
    full: bool,
    peers_python: str | None,
    pin: str,
    profile: bool | None,
    report: Path | None,
    docs: Path | None,
    quick: bool,
    write: bool,
    json_: bool,
) -> None:
    """Measure locks on the store at URL, compared with the floor and other libraries.

    Without URL it starts a server of each kind that is installed, and measures all. URL may be of redis:, redlock:,
    sqlite:, postgresql:, mysql:, zookeeper: and etcd:, without TLS; a database needs its tables (leasehold init URL).
    It works under names of its own, and deletes them at the end.

    To measure other libraries too, make an environment for them and name its interpreter:

    \b
      python -m venv peers
      peers/bin/pip install --upgrade pip
      peers/bin/pip install --group bench    # in a checkout of leasehold: pyproject.toml lists the libraries
      python -m leasehold_lab.bench.foreign peers/bin
      leasehold bench --peers-python peers/bin/python

    The fourth builds programs for Redisson and redsync there, where the tools of Java and Go are installed.

    --quick shows a few ratios next to those that are committed with the source, and --write commits them.

    Exit code: 0 if all of leasehold's trials came to a result and never two were inside, 1 if not.
    """  # noqa: D301
    for file in (report, docs):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"the folder of {file} does not exist; make it first")
    if quick and (full or report or docs or profile or peers_python):
        raise click.UsageError("--quick does without --full, --report, --docs, --profile and --peers-python")
    if write and not quick:
        raise click.UsageError("--write needs --quick")
    if profile is None:
        profile = docs is not None
    try:
        if quick:
            settings = replace(
                small.settings(url, only, seconds or small.SECONDS, rounds or small.ROUNDS), pin=Pin(pin)
            )
        else:
            settings = Settings(url, seconds or 0.5, rounds or 3, only, full, peers_python, Pin(pin), profile)
        settings.measures()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    end_on_signals()
    try:
        result = run(settings, ProgressLine())
    except MissingServer as error:
        raise Failed(str(error), Exit.MISSING) from None
    if json_:
        as_json(result.as_json())
    else:
        click.echo(small.text(small.ratios(result)) if quick else text(result))
    if write and result.sound:  # printed first: nothing is lost if it cannot be written
        small.write(small.ratios(result))
    if report is not None:
        report.write_text(page(result), encoding="utf-8")
    if docs is not None:
        details = docs.with_name(f"{docs.stem}-details.md")
        details.write_text(markdown(result), encoding="utf-8")
        summary.write(details, docs)
    if not result.sound:
        sys.exit(Exit.NO)
