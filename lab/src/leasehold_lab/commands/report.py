"""``leasehold report``: draws what `leasehold.observability.recorder` has recorded."""

from __future__ import annotations

import json
from pathlib import Path

import click

from leasehold_lab.record.page import COLUMNS, cells, page, verdict
from leasehold_lab.record.story import Story, events_of, stories

ROWS = 50  # locks in the table of the terminal


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILES..."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the time lines, as HTML.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def report(files: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Show who held which lock when, from the records of one or more processes.

    FILES are those of a Recorder, with its older ones, in any order: `leasehold report locks.jsonl*`. Two holders of a
    lock at once are marked. Times are the wall clocks of the processes.
    """
    if output is not None and not output.absolute().parent.is_dir():
        raise click.UsageError(f"the folder of {output} does not exist; make it first")
    found = stories(events_of(files))
    if not found:
        raise click.ClickException(f"no event in {', '.join(map(str, files))}; are these files of a Recorder?")
    if as_json:
        click.echo(json.dumps([_facts(story) for story in found], indent=2))
    else:
        _print(found)
    if output is not None:
        output.write_text(page(found, [file.name for file in files]), encoding="utf-8")
        if not as_json:
            click.echo(f"Written: {output}")


def _print(found: list[Story]) -> None:
    lines = [COLUMNS, *(cells(story) for story in found[:ROWS])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    for line in lines:
        padded = [
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  ".join(padded).rstrip())
    if len(found) > ROWS:
        click.echo(f"and {len(found) - ROWS:,} more locks")
    click.echo(f"\n{verdict(found)}")


def _facts(story: Story) -> dict[str, object]:
    return {
        "name": story.name,
        "store": story.store,
        "namespace": story.namespace,
        "holds": len(story.holds),
        "longest_hold": story.longest,
        "longest_wait": story.longest_wait,
        "not_acquired": story.timeouts,
        "lost": story.lost,
        "no_end": story.open,
        "overlaps": [
            [{"owner": hold.owner, "token": hold.token, "start": hold.start, "end": hold.end} for hold in pair]
            for pair in story.pairs
        ],
    }
