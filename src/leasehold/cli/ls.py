"""``leasehold ls``: a table of the locks that are held, waited for, or blocked by a lock delay."""

from __future__ import annotations

from dataclasses import asdict

import click

from leasehold._inspection import LockInfo
from leasehold.cli.options import json_option, store_options
from leasehold.cli.output import as_json, meta_text, printable, seconds, shortened, table, who
from leasehold.cli.store import connected, with_leaders

HEADS = ("NAME", "TOKEN", "HOLDER", "REMAINING", "WAITERS", "META")


@click.command()
@click.argument("prefix", default="")
@store_options
@json_option
def ls(prefix: str, url: str | None, namespace: str, json_: bool) -> None:
    """List the locks that are held and whose names begin with PREFIX.

    REMAINING is the time until the lease ends without a renewal. A living holder renews.
    """
    with connected(url, namespace) as client:
        infos = with_leaders(client, client.holds(prefix))
    if json_:
        as_json([asdict(info) for info in infos])
    elif infos:
        click.echo(table(HEADS, [row for info in infos for row in _rows(info)]))
    else:
        click.echo("no lock is held" + (f" whose name begins with '{printable(prefix)}'" if prefix else ""), err=True)


def _rows(info: LockInfo) -> list[tuple[str, ...]]:
    name, waiters = printable(info.name), str(len(info.waiters))
    if not info.holders:
        kept = f"free in {seconds(info.free_in)}" if info.free_in > 0 else "nobody"
        return [(name, "-", kept, "-", waiters, "")]
    return [
        (name, str(holder.token), who(holder), seconds(holder.remaining), waiters, shortened(meta_text(holder.meta)))
        for holder in info.holders
    ]
