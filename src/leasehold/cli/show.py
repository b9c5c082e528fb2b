"""``leasehold show``: all that the store knows of one name."""

from __future__ import annotations

import sys

import click

from leasehold._inspection import Contender, LockInfo
from leasehold.cli.codes import Exit
from leasehold.cli.options import Command, json_option, store_options
from leasehold.cli.output import as_json, lock_record, meta_text, printable, seconds, who
from leasehold.cli.reading import connected, with_leaders


@click.command(cls=Command)
@click.argument("name")
@store_options
@json_option
def show(name: str, url: str | None, namespace: str, json_: bool) -> None:
    """Show who holds NAME and who waits for it, first in line first.

    Exit code: 0 if someone holds it or waits, or it is kept free after an expiry; 1 if it is free.
    """
    with connected(url, namespace) as client:
        found = client.inspect(name)
        info = None if found is None else with_leaders(client, [found])[0]
    if json_:
        as_json(None if info is None else lock_record(info))
    elif info is None:
        click.echo(f"{printable(name)} is free: nobody holds it and nobody waits")
    else:
        click.echo("\n".join(describe(info)))
    if info is None:
        sys.exit(Exit.NO)


def describe(info: LockInfo) -> list[str]:
    """Return the lines that show a name."""
    lines = [f"{printable(info.name)} ({info.kind}), last token {info.token}"]
    for holder in info.holders:
        lines.append(f"held by {who(holder)}, token {holder.token}, {_facts(holder)}")
    if info.free_in > 0:
        lines.append(f"kept free for {seconds(info.free_in)} more: a holder's lease expired, and it asked for a delay")
    elif not info.holders:
        lines.append("held by nobody")
    lines.append(f"waiting: {len(info.waiters) or 'nobody'}")
    lines += [f"  {place}. {who(waiter)}, {_facts(waiter)}" for place, waiter in enumerate(info.waiters, 1)]
    return lines


def _facts(contender: Contender) -> str:
    text = f"client {printable(contender.owner.rpartition(':')[2])}, {seconds(contender.remaining)} remaining"
    return text + (f", meta {meta_text(contender.meta)}" if contender.meta is not None else "")
