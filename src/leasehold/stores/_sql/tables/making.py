"""The tables of lease rows: made on request, once, whoever else makes them at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.tables import schema
from leasehold.stores._sql.transport import SQLTransport, Statement, Transaction

FOUND = Statement("SELECT version FROM leasehold_meta")

LOOKED_WITHIN = 5.0
"""Seconds that it may take to read which layout is there."""

MADE_WITHIN = 30.0
"""Seconds that it may take to make the tables."""


async def prepare(transport: SQLTransport, script: str, first: Sequence[Statement] = ()) -> bool:
    """Make the tables of ``script``; return whether any was missing.

    ``first``: what the transaction asks before, such as a lock that keeps others from the same.
    """

    async def make(tx: Transaction) -> None:
        if first:
            await tx.ask(*first)
        await tx.commit(*(Statement(text) for text in schema.split(script)))

    try:
        await transport.transact(_check, within=LOOKED_WITHIN)
    except StoreUnavailable as error:
        if not error.lasting:
            raise
    else:
        return False
    await transport.transact(make, within=MADE_WITHIN)
    await transport.transact(_check, within=LOOKED_WITHIN)
    return True


async def _check(tx: Transaction) -> None:
    (found,) = await tx.ask(FOUND)
    schema.check([(None, row[0]) for row in found])
