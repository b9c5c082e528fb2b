"""The command itself: its options, and what it refuses before anything is drawn."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from leasehold.cli.options import DURATIONS, Duration, Exit, Failed, store_options
from leasehold.cli.store import connected
from leasehold.cli.top.looks import SORTS
from leasehold.stores.registry import shown

EVERY = 2.0  # seconds between two looks


@click.command(epilog=DURATIONS)
@click.argument("prefix", default="")
@click.option(
    "--interval",
    type=Duration(least=0.1, most=3600),
    default=str(EVERY),
    show_default="2 s",
    help="Look at the store every TIME.",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="waiters",
    show_default=True,
    help="Sort by this first; keys change it.",
)
@store_options
def top(prefix: str, interval: float, sort: str, url: str | None, namespace: str) -> None:
    """Watch the locks whose names begin with PREFIX, live: who holds them, who waits, and how fast they pass on.

    Keys: / filters, n w a l o sort, Enter inspects, b breaks, p pauses, ? lists all of them, q ends.

    It needs a terminal. For text, and once, use `leasehold ls`; with --json for programs.
    """
    if not _has_terminal():
        raise Failed(
            "top needs a terminal; for text use `leasehold ls`, with --watch to repeat, with --json for programs",
            Exit.USAGE,
        )
    if find_spec("textual") is None:
        raise Failed("textual is not installed; install it with: pip install 'leasehold[top]'", Exit.MISSING)
    from leasehold.cli.top.app import Top

    with connected(url, namespace) as client:
        app = Top(client, prefix=prefix, interval=interval, sort=sort, where=shown(url))
        app.run()
    if app.return_code:
        sys.exit(Exit.INTERNAL)


def _has_terminal() -> bool:
    """Return whether keys can be read and a screen can be drawn."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"
