"""ShedLock's table on a database server, for jobs of which each run happens in one instance only.

ShedLock updates a row whose ``lock_until`` is over, and at the end of the job sets that to the end of ``at_least``. It
never deletes a row. Its ``locked_by`` is the host's name; so the late release of one process frees the lock of another
process on that host. Ours ends with a new UUID for each run, so no other release frees it.
"""

from __future__ import annotations

from leasehold._model import Capabilities
from leasehold.errors import Unsupported
from leasehold.layouts.sql.dialect import MYSQL, Dialect
from leasehold.layouts.sql.format import IDENTIFIER, Format

OPTIONS = ("table", "margin")

NAME_LENGTH = 64

SCHEMA = """\
CREATE TABLE {table}(
    name VARCHAR(64) NOT NULL,
    lock_until {time} NOT NULL,
    locked_at {time} NOT NULL,
    locked_by VARCHAR(255) NOT NULL,
    PRIMARY KEY (name)
);
"""
"""As in ShedLock's documentation."""


def capabilities(margin: float) -> Capabilities:
    """Return what its locks promise."""
    return Capabilities(
        fencing=False,
        fair=False,
        lock_delay=False,
        cells=False,
        notifies=False,
        hands_over=False,
        only_runs=True,
        crash_bound=f"within the lease + {margin:g} s, and not before at_least",
        why_not="layout=shedlock shares runs of jobs alone: use scheduled(name, at_least=..., at_most=...), or leave "
        "out layout=",
    )


def key_of(name: str) -> str:
    """Return the name, if the column can have it."""
    if len(name) > NAME_LENGTH:
        raise Unsupported(f"ShedLock's names have at most {NAME_LENGTH} characters, and {name!r} has {len(name)}")
    return name


def layout(dialect: Dialect, margin: float, table: str = "shedlock") -> Format:
    """Return the layout for one table.

    Raises:
        ValueError: it cannot be its name.
    """
    if not IDENTIFIER.fullmatch(table):
        raise ValueError("option 'table' of layout=shedlock is the name of a table, as shedlock or app.shedlock")
    return Format(
        name="shedlock",
        of="ShedLock",
        capabilities=capabilities(margin),
        dialect=dialect,
        table=table,
        key="name",
        holder="locked_by",
        since="locked_at",
        until="lock_until",
        key_of=key_of,
        named=True,
        with_host=True,
        keeps_rows=True,
        margin=margin,
        schema=SCHEMA.format(table=table, time="TIMESTAMP(3)" if dialect is MYSQL else "TIMESTAMP"),
    )
