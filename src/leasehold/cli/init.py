"""``leasehold init``: creates the tables of a store on a database server, or prints the SQL."""

from __future__ import annotations

import click

from leasehold import tables
from leasehold.cli.options import Exit, Failed, one_url
from leasehold.cli.output import printable
from leasehold.cli.store import silence_logging
from leasehold.stores.registry import shown


@click.command()
@click.argument("store", required=False, metavar="[URL]")
@click.option("--url", metavar="URL", help="The same as the argument. Default: the environment's LEASEHOLD_URL.")
@click.option("--print", "print_", is_flag=True, help="Print the SQL that creates them, and send nothing.")
def init(store: str | None, url: str | None, print_: bool) -> None:
    """Create the tables in the database at URL, or upgrade those of an earlier version.

    Clients of that version acquire nothing more after the upgrade; --print has no upgrade.

    The user in URL needs the right to create tables. Users of the locks do not need it. For a store without tables the
    command says so, and does nothing.
    """
    url = one_url(store, url)
    silence_logging()
    try:
        where = printable(shown(url))
        if print_:
            click.echo(tables.script(url), nl=False)
            return
        made = tables.create(url)
    except tables.NoTables as error:
        click.echo(f"leasehold: {error}", err=True)
        return
    except ValueError as error:
        raise Failed(str(error), Exit.USAGE) from None
    click.echo(f"{where}: " + ("created or upgraded the tables" if made else "nothing was missing"), err=True)
