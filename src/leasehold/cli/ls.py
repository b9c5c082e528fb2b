"""``leasehold ls``: a table of the locks that are held, waited for, or blocked by a lock delay."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import click

from leasehold._inspection import LockInfo
from leasehold.cli.options import DURATIONS, Duration, json_option, store_options
from leasehold.cli.output import as_json, meta_text, printable, seconds, shortened, table, who
from leasehold.cli.store import connected, of_others, with_leaders

HEADS = ("NAME", "TOKEN", "HOLDER", "REMAINING", "WAITERS", "META")

WATCHED_EVERY = 2.0  # seconds

ORDERS: Mapping[str, Callable[[LockInfo], Any]] = {
    "name": lambda info: info.name,
    "waiters": lambda info: -len(info.waiters),
    "remaining": lambda info: min((each.remaining for each in info.holders), default=info.free_in or math.inf),
}
"""The keys by which the list can be sorted. Locks with the same key are in order of name."""


@click.command(epilog=DURATIONS)
@click.argument("prefix", default="")
@click.option(
    "--sort",
    type=click.Choice(list(ORDERS)),
    default="name",
    show_default=True,
    help="Sort by name, by the number of waiters, most first, or by the time remaining, shortest first.",
)
@click.option(
    "--watch",
    type=Duration(least=0.1, most=3600),
    is_flag=False,
    flag_value=str(WATCHED_EVERY),
    help="Repeat every TIME (2 s) until Ctrl-C. Write PREFIX before it.",
)
@store_options
@json_option
def ls(prefix: str, sort: str, watch: float | None, url: str | None, namespace: str, json_: bool) -> None:
    """List the locks that are held and whose names begin with PREFIX.

    REMAINING is the time until the lease ends without a renewal. A living holder renews. On a terminal, long names are
    shortened; --json and `leasehold show` have them in full. Locks of other libraries that Redis has, too, are named
    on standard error.
    """
    moves = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not json_
    with connected(url, namespace) as client:
        while True:
            infos = sorted(with_leaders(client, client.holds(prefix)), key=ORDERS[sort])
            if watch is None:
                _print(infos, prefix, json_)
                for text in [] if json_ else of_others(client, namespace, prefix):
                    click.echo(printable(text), err=True)
                return
            if moves:
                _redraw(f"{time.strftime('%H:%M:%S')}, every {watch:g} s\n\n{_text(infos, prefix)}")
            else:
                _print(infos, prefix, json_)
                click.echo()
            time.sleep(watch)


def _print(infos: list[LockInfo], prefix: str, json_: bool) -> None:
    if json_:
        as_json([asdict(info) for info in infos])
    else:
        click.echo(_text(infos, prefix), err=not infos)


def _text(infos: list[LockInfo], prefix: str) -> str:
    if not infos:
        return "no lock is held" + (f" whose name begins with '{printable(prefix)}'" if prefix else "")
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return table(HEADS, [row for info in infos for row in _rows(info)], columns)


def _redraw(text: str) -> None:
    """Write a text over the last one on the terminal, without flicker: lines are replaced, and the rest is cleared."""
    lines, room = text.splitlines(), shutil.get_terminal_size().lines - 1
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def _rows(info: LockInfo) -> list[tuple[str, ...]]:
    name, waiters = printable(info.name), str(len(info.waiters))
    if not info.holders:
        kept = f"free in {seconds(info.free_in)}" if info.free_in > 0 else "nobody"
        return [(name, "-", kept, "-", waiters, "")]
    return [
        (
            name,
            "-" if holder.token is None else str(holder.token),
            who(holder),
            seconds(holder.remaining),
            waiters,
            shortened(meta_text(holder.meta)),
        )
        for holder in info.holders
    ]
