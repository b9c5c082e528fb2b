"""``leasehold init``: creates the tables of a store on a database server, or prints the SQL."""

from __future__ import annotations

import click

from leasehold import tables
from leasehold.cli.codes import Exit
from leasehold.cli.options import Command, Failed
from leasehold.cli.output import printable
from leasehold.cli.reading import silence_logging
from leasehold.cli.store_url import shown, url_in_use


@click.command(cls=Command)
@click.argument("store", required=False, metavar="[URL]")
@click.option("--url", metavar="URL", help="The same as the argument. Default: the environment's LEASEHOLD_URL.")
@click.option("--print", "print_", is_flag=True, help="Print the SQL for your migrations, and send nothing.")
def init(store: str | None, url: str | None, print_: bool) -> None:
    """Create the tables in the database at URL, unless they exist.

    The user in URL needs the right to create tables. Users of the locks do not need it.
    """
    if store is not None and url is not None:
        raise Failed("the URL is given twice; leave out --url or the argument", Exit.USAGE)
    silence_logging()
    in_use = url_in_use(store if store is not None else url)
    where = printable(shown(in_use))
    try:
        if print_:
            click.echo(tables.script(in_use), nl=False)
            return
        made = tables.create(in_use)
    except ValueError as error:
        raise Failed(str(error), Exit.USAGE) from None
    click.echo(f"{where}: " + ("the tables were created" if made else "the tables exist already"), err=True)
