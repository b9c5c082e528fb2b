"""``leasehold init``: makes the tables of a store on a database server, or prints what would make them."""

from __future__ import annotations

import click

from leasehold import tables
from leasehold.cli.codes import Exit
from leasehold.cli.options import Command, Failed
from leasehold.cli.output import printable
from leasehold.cli.reading import hush
from leasehold.cli.store_url import shown, url_in_use


@click.command(cls=Command)
@click.argument("store", required=False, metavar="[URL]")
@click.option("--url", metavar="URL", help="The same as the argument. Default: the environment's LEASEHOLD_URL.")
@click.option("--print", "print_", is_flag=True, help="Print the SQL and send nothing: for your migrations.")
def init(store: str | None, url: str | None, print_: bool) -> None:
    """Make the tables in the database at URL. Doing it twice does no harm.

    The user of URL needs the right to create tables; those who use the locks afterwards need not have it.
    """
    if store is not None and url is not None:
        raise Failed("the URL is given twice; leave out --url or the argument", Exit.USAGE)
    hush()
    place = url_in_use(store if store is not None else url)
    where = printable(shown(place))
    try:
        if print_:
            click.echo(tables.script(place), nl=False)
            return
        made = tables.create(place)
    except ValueError as error:
        raise Failed(str(error), Exit.USAGE) from None
    click.echo(f"{where}: " + ("the tables are made" if made else "the tables are there already"), err=True)
