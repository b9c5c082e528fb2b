"""``leasehold show``: one lock with its holders and waiters."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict

import click

from leasehold._inspection import Contender, LockInfo
from leasehold.cli.completion import lock_names
from leasehold.cli.options import Exit, json_option, store_options
from leasehold.cli.output import as_json, meta_text, printable, seconds, token_text, who
from leasehold.cli.store import connected, of_others, with_leaders


@click.command()
@click.argument("name", shell_complete=lock_names)
@store_options
@json_option
def show(name: str, url: str | None, namespace: str, json_: bool) -> None:
    """Show who holds NAME and who waits for it, in order.

    Exit code: 0 if it is held, waited for, or blocked by a lock delay; 1 if it is free.
    """
    with connected(url, namespace) as client:
        found = client.inspect(name)
        info = None if found is None else with_leaders(client, [found])[0]
        others = [] if json_ else of_others(client, namespace, name, exact=True)
    if json_:
        as_json(None if info is None else asdict(info))
    elif info is None:
        click.echo(f"{printable(name)} is free: nobody holds it and nobody waits")
    else:
        click.echo("\n".join(describe(info)))
    for text in others:
        click.echo(printable(text), err=True)
    if info is None:
        sys.exit(Exit.NO)


def describe(info: LockInfo) -> list[str]:
    """Return the lines that describe a lock."""
    lines = [f"{printable(info.name)} ({info.kind}), last token {info.token}"]
    for holder in info.holders:
        lines.append(f"held by {who(holder)}, {token_text(holder.token)}, {_facts(holder)}")
    if info.free_in > 0:
        lines.append(f"blocked for another {seconds(info.free_in)}: a holder's lease expired, and its lock delay runs")
    elif not info.holders:
        lines.append("held by nobody")
    lines.append(f"waiting: {len(info.waiters) or 'nobody'}")
    lines += [f"  {place}. {who(waiter)}, {_facts(waiter)}" for place, waiter in enumerate(info.waiters, 1)]
    return lines


def _facts(contender: Contender) -> str:
    left = "no end" if contender.remaining == math.inf else f"{seconds(contender.remaining)} remaining"
    text = f"client {printable(contender.owner.rpartition(':')[2])}, {left}"
    return text + (f", meta {meta_text(contender.meta)}" if contender.meta is not None else "")
