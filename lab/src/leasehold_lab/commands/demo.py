"""``leasehold demo``: counts page views in several services, without and with a lock, and shows the lost updates."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from leasehold.errors import MissingDriver, StoreUnavailable
from leasehold_lab.commands.status_line import StatusLine
from leasehold_lab.demo.children import DemoError
from leasehold_lab.demo.report.page import page
from leasehold_lab.demo.report.picture import picture
from leasehold_lab.demo.report.table import table
from leasehold_lab.demo.result import DemoResult, RowResult
from leasehold_lab.demo.rows import TITLES, Guard
from leasehold_lab.demo.run import Settings, run
from leasehold_lab.lifetime import Ended, end_on_signals


class ProgressLine:
    """Shows each row on standard error: its begin, its progress, and its result."""

    def __init__(self) -> None:
        self._line = StatusLine()
        self._title = ""
        self._requests = 0

    def row_begins(self, guard: Guard, requests: int) -> None:
        """Announce a row."""
        self._title, self._requests = TITLES[guard], requests
        self._line.begin(f"{self._title}: {requests} requests ...")

    def row_moves(self, answered: int, failed: int) -> None:
        """Show how many requests were answered."""
        text = f"{answered + failed} of {self._requests} answered" + (f", {failed} failed" if failed else "")
        self._line.update(f"{self._title}: {text}")

    def row_ends(self, row: RowResult) -> None:
        """Say what the row came to."""
        text = f"{row.final} of {row.requests} counted, {row.lost} lost, {row.seconds:.1f} s"
        self._line.say(f"{self._title}: {text}" + (f", {len(row.failures)} failed" if row.failures else ""))


@click.command()
@click.option("--url", help="Store to use, as for Client.from_url. Default: SQLite in a temporary folder; no server.")
@click.option("--requests", type=click.IntRange(1, 20_000), default=666, show_default=True, help="Sent all at once.")
@click.option("--services", type=click.IntRange(1, 16), default=2, show_default=True, help="Processes that serve them.")
@click.option("--nginx", is_flag=True, help="Let nginx spread the requests, as a reverse proxy.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with pictures, as HTML.")
@click.option(
    "--picture", "drawing", type=click.Path(dir_okay=False, path_type=Path), help="Write one picture, as SVG."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(
    url: str | None,
    requests: int,
    services: int,
    nginx: bool,
    report: Path | None,
    drawing: Path | None,
    as_json: bool,
) -> None:
    """Count page views in several services, and see updates lost without a lock.

    Real service processes read a counter from one store, add one, and write it back, for many requests at once:
    without a lock, with a thread lock in each process, and with leasehold.

    Exit code: 0 if leasehold lost nothing and no request failed, 1 if not, 64 for a mistake in the options.
    """
    _check_folders(report, drawing)
    result = _run(Settings(url, requests, services, nginx))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print(result)
    for path, text in (report, page), (drawing, picture):  # printed first: nothing is lost if it cannot be written
        if path is not None:
            path.write_text(text(result), encoding="utf-8")
            if not as_json:
                click.echo(f"Written: {path}")
    sys.exit(0 if result.passed else 1)


def _check_folders(*files: Path | None) -> None:
    """Refuse before the run what could not be written after it."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"the folder of {file} does not exist; make it first")


def _run(settings: Settings) -> DemoResult:
    end_on_signals()
    try:
        return run(settings, ProgressLine())
    except Ended:
        click.echo("\ninterrupted; all services are ended", err=True)
        raise
    except (ValueError, MissingDriver) as error:
        raise click.UsageError(str(error)) from None
    except (DemoError, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def _print(result: DemoResult) -> None:
    services = "1 service" if result.services == 1 else f"{result.services} services"
    click.echo(f"\n{result.requests} requests at once, {services}, one counter in {result.store}; {result.balancer}\n")
    click.echo(table(result.rows, lambda text, good: click.style(text, fg="green" if good else "red")))
    for row in result.rows:
        for reason, count in row.reasons.items():
            click.secho(f"{row.title}: {count} failed: {reason}", fg="red")
    click.echo(f"\n{result.verdict()}")
