"""``leasehold break``: release a lock by force, but only from the holder that the user saw."""

from __future__ import annotations

import sys

import click

from leasehold._inspection import LockInfo
from leasehold.cli.completion import lock_names
from leasehold.cli.options import Exit, Failed, json_option, store_options
from leasehold.cli.output import as_json, complain, printable
from leasehold.cli.show import describe
from leasehold.cli.store import connected
from leasehold.client import Client

MEANING = (
    "The holder is notified at its next renewal, within a third of its lease. Until then its work may run alongside "
    "the next holder's. A resource that checks tokens refuses its late writes."
)

OF_ANOTHER_PROGRAM = "held by another program, whose lock has no token: free it with that program's own tool"


@click.command("break")
@click.argument("name", shell_complete=lock_names)
@click.option("--token", type=int, metavar="N", help="Break this holder only; see `leasehold show`.")
@click.option("--yes", is_flag=True, help="Break the present holder without asking.")
@store_options
@json_option
def break_(name: str, token: int | None, yes: bool, url: str | None, namespace: str, json_: bool) -> None:
    """Take NAME from its holder.

    With --token only the holder with that token loses the lock, never a later one. Without --token the command shows
    the holder and asks.

    Exit code: 0 if the holder was broken, 1 if that holder was gone.
    """
    with connected(url, namespace) as client:
        if token is None:
            token = _choose(client, name, yes=yes, json_=json_)
        broken = token is not None and client.force_release(name, token)
    if json_:
        as_json({"name": name, "token": token, "broken": broken})
    elif broken:
        click.echo(f"broken: the holder of '{printable(name)}' with token {token} has lost the lock. {MEANING}")
    elif token is not None:
        click.echo(
            f"not broken: nobody holds '{printable(name)}' with token {token}; it was released, lost or passed on"
        )
    if not broken:
        sys.exit(Exit.NO)


def _choose(client: Client, name: str, *, yes: bool, json_: bool) -> int | None:
    """Return the token of the only holder, confirmed by the user or by --yes; None if there is no holder."""
    info = client.inspect(name)
    if info is None or not info.holders:
        if not json_:
            click.echo(f"not broken: nobody holds '{printable(name)}'")
        return None
    tokens = [holder.token for holder in info.holders if holder.token is not None]
    if not tokens:
        raise Failed(f"{name!r} is {OF_ANOTHER_PROGRAM}", Exit.WRONG_KIND)
    if len(info.holders) > 1:
        choice = ", ".join(map(str, tokens))
        raise Failed(f"{name!r} has several holders; choose one with --token, of {choice}", Exit.USAGE)
    if not yes:
        _ask(info, tokens[0])
    return tokens[0]


def on_terminal() -> bool:
    """Return whether there is a terminal to ask at."""
    return sys.stdin.isatty()


def _ask(info: LockInfo, token: int) -> None:
    for line in describe(info):
        click.echo(line, err=True)
    if not on_terminal():
        raise Failed(
            f"not broken: no terminal to ask at; give --token {token} for this holder, or --yes for any", Exit.USAGE
        )
    if not click.confirm("Break this holder?", err=True):
        complain("not broken")
        sys.exit(Exit.NO)
