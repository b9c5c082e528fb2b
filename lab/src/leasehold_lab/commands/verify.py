"""``leasehold verify``: runs clients under faults, and reports whether any promise was broken."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from leasehold.cli.options import DURATIONS, Duration, Exit, Failed, json_option
from leasehold.cli.output import as_json
from leasehold_lab.commands.status_line import StatusLine
from leasehold_lab.history import Promise
from leasehold_lab.lifetime import Ended, end_on_signals
from leasehold_lab.servers import MissingServer
from leasehold_lab.verify.clients.process import VerifyError
from leasehold_lab.verify.deployments import PLANS, Deployment, deploy, known
from leasehold_lab.verify.faults.client_faults import KINDS
from leasehold_lab.verify.faults.leases import default_lease
from leasehold_lab.verify.report.figures import Figures, measure
from leasehold_lab.verify.report.page import page
from leasehold_lab.verify.report.run_information import command, facts
from leasehold_lab.verify.run import Outcome, Settings, read_url, run


class ProgressLine:
    """Shows on standard error how far a run is."""

    def __init__(self) -> None:
        self._line = StatusLine()

    def update(self, seconds: float, of: float, fault: str) -> None:
        """Show how much of the run is over, and the fault that is injected now."""
        self._line.update(f"{min(seconds, of):.0f} of {of:.0f} s" + (f", fault: {fault}" if fault else ""))

    def end(self) -> None:
        """Remove the line."""
        self._line.clear()


@click.command(epilog=DURATIONS)
@click.argument("url", required=False)
@click.option(
    "--servers",
    type=click.Choice(list(PLANS)),
    metavar="KIND",
    help=f"Start servers on this machine, and inject faults into them, too: {', '.join(PLANS)}.",
)
@click.option("--clients", type=click.IntRange(2, 64), default=8, show_default=True, help="Number of client processes.")
@click.option("--seconds", type=Duration(1, 86_400), default=60.0, show_default=True, help="Duration of the run.")
@click.option("--faults", metavar="A,B", help="Faults to inject, or `none`. Default: all. See --list.")
@click.option("--lease", type=Duration(0.5, 60), default=None, help="Default: 1 s, or the store's shortest lease.")
@click.option("--seed", default=None, help="Seed of faults and work. Default: a random one, which is printed.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with a timeline.")
@click.option("--list", "list_", is_flag=True, help="List the faults and exit.")
@json_option
def verify(
    url: str | None,
    servers: str | None,
    clients: int,
    seconds: float,
    faults: str | None,
    lease: float | None,
    seed: str | None,
    html: Path | None,
    list_: bool,
    json_: bool,
) -> None:
    """Check the promises of the store at URL, or LEASEHOLD_URL, while faults are injected.

    Several processes acquire locks, read-write locks and semaphores, and write to a guarded resource. They are stopped,
    killed, and cut off from the store. Then the history of all operations is checked. A run uses a separate namespace,
    and breaks no server except those that --servers starts. The exit code is 0 if every promise was kept, 2 if one was
    broken.
    """
    if list_:
        _list(servers)
        return
    if servers is not None and url is not None:
        raise click.UsageError("give a URL or --servers, not both: a run only breaks servers that it started itself")
    if html is not None and not html.absolute().parent.is_dir():
        raise click.UsageError(f"the folder of {html} does not exist; make it first")
    end_on_signals()
    seed = os.urandom(4).hex() if seed is None else seed
    chosen = _chosen(faults, servers)
    if servers is None:
        where = read_url(url)
        lease = default_lease(where) if lease is None else lease
        outcome = _run(Settings(where, clients, seconds, chosen, seed, lease), None)
    else:
        outcome = _run_on(servers, clients, seconds, chosen, seed, lease)
    figures = measure(outcome)
    if json_:
        as_json(record(outcome, figures))
    else:
        _print(outcome, figures)
    if html is not None:
        _write(html, page(outcome, figures), say=not json_)
    if not outcome.ok:
        raise click.exceptions.Exit(Exit.BAD)


def _run_on(
    servers: str, clients: int, seconds: float, chosen: tuple[str, ...], seed: str, lease: float | None
) -> Outcome:
    lease = PLANS[servers].lease if lease is None else lease
    try:
        with deploy(servers) as started:
            where = read_url(started.url)
            return _run(Settings(where, clients, seconds, chosen, seed, lease, servers=servers), started)
    except MissingServer as error:
        raise Failed(str(error), Exit.MISSING) from None


def _run(settings: Settings, started: Deployment | None) -> Outcome:
    line = ProgressLine()
    try:
        return run(settings, line, started)
    except VerifyError as error:
        raise Failed(str(error), Exit.UNAVAILABLE) from None
    except Ended:
        line.end()
        click.echo("interrupted; all clients are ended", err=True)
        raise
    finally:
        line.end()


def _chosen(faults: str | None, servers: str | None) -> tuple[str, ...]:
    possible = known(servers)
    if faults is None:
        return tuple(possible)
    chosen = tuple(dict.fromkeys(word.strip() for word in faults.split(",") if word.strip() != "none"))
    for word in chosen:
        if word not in possible:
            raise click.BadParameter(
                f"{word!r} is not a fault; known faults: {', '.join(possible)}, none", param_hint="--faults"
            )
    return chosen


def _list(servers: str | None) -> None:
    """Print all faults, with the rows of the fault catalogue that they provoke."""
    for kind in KINDS.values():
        click.echo(f"{kind.key:<24} {kind.description} [{' '.join(kind.ids)}]")
    for name, plan in PLANS.items():
        if servers in (None, name):
            click.echo(f"\n--servers {name}: {plan.description}")
            for fault in plan.faults:
                excuse = "; may lose grants" if fault.loses else ""
                click.echo(f"{fault.key:<24} {fault.description}{excuse} [{' '.join(fault.ids)}]")


def _write(html: Path, text: str, *, say: bool) -> None:
    """Write the page, after the verdict, which is valid even if the page cannot be written."""
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        click.echo(f"{html} could not be written: {error.strerror}", err=True)
        return
    if say:
        click.echo(f"{'page':<28} {html}")


def _print(outcome: Outcome, figures: Figures) -> None:
    for promise in Promise:
        count = outcome.verdict.by_promise.get(promise, 0)
        said = f"{f'BROKEN {count} x' if count else 'kept':<10}"
        click.echo(f"{click.style(said, fg='red' if count else 'green', bold=bool(count))} {promise.value}")
    if outcome.excused:
        click.echo(f"{'excused':<10} {len(outcome.excused)} violations by a server fault that suspended the promise")
    for violation in outcome.verdict.violations[:3]:
        click.echo(f"\n{violation}")
    click.echo()
    for name, text in figures.lines().items():
        click.echo(f"{name:<28} {text}")
    made = {kind: sum(fault.kind == kind for fault in outcome.faults) for kind in outcome.settings.faults}
    click.echo(f"{'faults':<28} " + (", ".join(f"{kind} {count}" for kind, count in made.items() if count) or "none"))
    if outcome.left_out:
        why = next(iter(outcome.left_out.values()))
        click.echo(f"{'not injected':<28} {', '.join(outcome.left_out)}: {why}")
    for who, words in outcome.broken.items():
        click.echo(f"client {who} failed: {words}")
    click.echo(f"{'repeat with':<28} {command(outcome.settings)}")


def record(outcome: Outcome, figures: Figures) -> dict[str, object]:
    """Return what ``--json`` prints."""
    return {
        "ok": outcome.ok,
        "promises": {promise.name.lower(): outcome.verdict.by_promise.get(promise, 0) for promise in Promise},
        "violations": [str(violation) for violation in outcome.verdict.violations],
        "outside": [str(violation) for violation in outcome.excused],
        "operations": outcome.verdict.checked,
        "figures": asdict(figures),
        "faults": [asdict(fault) for fault in outcome.faults],
        "not_made": outcome.left_out,
        "failed_clients": outcome.broken,
        "run": facts(outcome),
        "again": command(outcome.settings),
    }
