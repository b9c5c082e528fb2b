"""``leasehold break``: take a name from the holder that was seen, and from nobody else."""

from __future__ import annotations

import sys

import click

from leasehold._inspection import LockInfo
from leasehold.cli.codes import Exit
from leasehold.cli.options import Command, Failed, json_option, store_options
from leasehold.cli.output import as_json, complain, printable
from leasehold.cli.reading import connected
from leasehold.cli.show import describe
from leasehold.client import Client

MEANING = (
    "The holder learns it at its next renewal (within a third of its lease) and stops then; until it does, its work "
    "may run beside the next holder's. What it writes late is refused where tokens are checked."
)


@click.command("break", cls=Command)
@click.argument("name")
@click.option("--token", type=int, metavar="N", help="Break this holder only; see `leasehold show`.")
@click.option("--yes", is_flag=True, help="Do not ask: break the holder that is there now.")
@store_options
@json_option
def break_(name: str, token: int | None, yes: bool, url: str | None, namespace: str, json_: bool) -> None:
    """Take NAME from its holder.

    With --token only the holder with that token is broken, whoever holds it by now. Without it the holder is shown, and
    you are asked.

    Exit code: 0 if that holder was there and is broken, 1 if it was not there.
    """
    with connected(url, namespace) as client:
        if token is None:
            token = _choose(client, name, yes=yes, json_=json_)
        broken = token is not None and client.force_release(name, token)
    if json_:
        as_json({"name": name, "token": token, "broken": broken})
    elif broken:
        click.echo(f"broken: {printable(name)} is taken from the holder with token {token}. {MEANING}")
    elif token is not None:
        click.echo(f"nothing done: nobody holds {printable(name)} with token {token} (released, lost or passed on)")
    if not broken:
        sys.exit(Exit.NO)


def _choose(client: Client, name: str, *, yes: bool, json_: bool) -> int | None:
    """Return the token of the one holder, seen by the user or accepted unseen; None if there is none."""
    info = client.inspect(name)
    if info is None or not info.holders:
        if not json_:
            click.echo(f"nothing done: nobody holds {printable(name)}")
        return None
    holder, *others = info.holders
    if others:
        tokens = ", ".join(str(holder.token) for holder in info.holders)
        raise Failed(f"{name!r} has several holders; choose one with --token, of {tokens}", Exit.USAGE)
    if not yes:
        _ask(info)
    return holder.token


def on_terminal() -> bool:
    """Say whether there is someone to ask."""
    return sys.stdin.isatty()


def _ask(info: LockInfo) -> None:
    for line in describe(info):
        click.echo(line, err=True)
    token = info.holders[0].token
    if not on_terminal():
        raise Failed(f"not broken: give --token {token} for this holder, or --yes for whoever is there", Exit.USAGE)
    if not click.confirm("Take it from this holder?", err=True):
        complain("not broken")
        sys.exit(Exit.NO)
