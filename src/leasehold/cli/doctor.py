"""``leasehold doctor``: what the store's settings mean for the promises."""

from __future__ import annotations

import platform
import sqlite3
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import click

from leasehold._model import Finding, Severity
from leasehold.cli.options import Exit, json_option, one_url, store_options
from leasehold.cli.output import as_json, printable, without_secrets
from leasehold.cli.store import connected
from leasehold.stores.registry import shown

CODES = {Severity.OK: 0, Severity.NOTE: 0, Severity.WARNING: int(Exit.NO), Severity.ERROR: int(Exit.BAD)}
"""Exit code by the worst finding."""

COLORS = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}

WIDTH = 100  # columns of the text that explains a finding


@click.command()
@click.argument("store", required=False, metavar="[URL]")
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "error"]),
    default="warning",
    show_default=True,
    help="The least severity of a finding with an exit code other than 0.",
)
@store_options
@json_option
def doctor(store: str | None, url: str | None, namespace: str, json_: bool, fail_on: str) -> None:
    """Check the settings of the store at URL, and explain what they mean for the promises, the worst first.

    Exit code by the worst finding: 0 ok or note, 1 warning (0 with --fail-on error), 2 error; 69 if the store cannot
    be reached.
    """
    url = one_url(store, url)
    with connected(url, namespace) as client:
        findings = sorted(client.diagnose(), key=lambda finding: -finding.severity)
    worst = max((finding.severity for finding in findings), default=Severity.OK)
    if json_:
        record = {"store": shown(url), "versions": _versions(), "worst": worst.name.lower()}
        as_json({**record, "findings": [_record(finding) for finding in findings]})
    else:
        versions = ", ".join(f"{what} {number}" for what, number in _versions().items())
        click.echo(f"{printable(shown(url))} ({versions})")
        for finding in findings:
            _print(finding)
        click.echo(_summary(findings))
    sys.exit(CODES[worst] if worst >= Severity[fail_on.upper()] else 0)


def _versions() -> dict[str, str]:
    versions = {"leasehold": version("leasehold"), "python": platform.python_version()}
    versions["sqlite"] = sqlite3.sqlite_version
    for package in ("redis", "hiredis", "psycopg"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _record(finding: Finding) -> dict[str, str]:
    return asdict(finding) | {"severity": finding.severity.name.lower(), "found": without_secrets(finding.found)}


def _print(finding: Finding) -> None:
    mark = click.style(f"{finding.severity.name:<7}", fg=COLORS[finding.severity], bold=finding.severity > 1)
    click.echo(f"\n{mark} {printable(finding.subject)}: {printable(without_secrets(finding.found))}")
    for label, text in (("means", finding.meaning), ("do", finding.remedy)):
        if text:
            lead = f"        {label}: "
            click.echo(textwrap.fill(printable(text), WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)))


def _summary(findings: list[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[severity]} {severity.name.lower()}" for severity in reversed(Severity) if counts[severity]]
    return "\n" + (", ".join(parts) or "no findings")
