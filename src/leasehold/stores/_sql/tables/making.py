"""Creates the tables of lease rows on request; safe when several processes create them at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.tables import schema
from leasehold.stores._sql.transport import SQLTransport, Statement, Transaction

VERSION = Statement("SELECT version FROM leasehold_meta")

CHECK_WITHIN = 5.0
"""Seconds that reading the layout of the tables may take."""

CREATE_WITHIN = 30.0
"""Seconds that creating the tables may take."""


async def prepare(transport: SQLTransport, script: str, first: Sequence[Statement] = ()) -> bool:
    """Create the tables of ``script``; return whether any was missing.

    ``first``: statements that the transaction runs before, such as a lock that keeps other processes from the same.
    """

    async def create(tx: Transaction) -> None:
        if first:
            await tx.ask(*first)
        await tx.commit(*(Statement(text) for text in schema.split(script)))

    try:
        await transport.transact(_check, within=CHECK_WITHIN)
    except StoreUnavailable as error:
        if not error.lasting:
            raise
    else:
        return False
    await transport.transact(create, within=CREATE_WITHIN)
    await transport.transact(_check, within=CHECK_WITHIN)
    return True


async def _check(tx: Transaction) -> None:
    (found,) = await tx.ask(VERSION)
    schema.check([(None, row[0]) for row in found])
