"""Renewals: the entries of many names in one transaction, under the locks of their names.

The locks are needed. Without them a step could read an entry as expired and drop it after a renewal had found it alive,
by a clock that was set back in between. Locked names are skipped, so that one of them does not delay the others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from leasehold._model import RenewalResult
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import Key
from leasehold.stores._sql.transport import Statement, Transaction

Renewing = Callable[[Transaction], Coroutine[Any, Any, dict[str, RenewalResult]]]


def unlocked(dialect: Dialect, space: bytes, names: Mapping[str, bytes]) -> Renewing:
    """Return what renews these tickets, each with its name, and skips locked names.

    Its result lacks the tickets of locked names and of names without a row.
    """

    async def work(tx: Transaction) -> dict[str, RenewalResult]:
        (locked,) = await tx.ask(dialect.lock_names(space, sorted(set(names.values()))))
        ids = {bytes(name): row for row, name in locked}
        return await _renew(tx, dialect, list(ids.values()), [one for one in names if names[one] in ids])

    return work


def one(dialect: Dialect, key: Key, tickets: Sequence[str]) -> Renewing:
    """Return what waits for the lock of one name and renews its tickets."""

    async def work(tx: Transaction) -> dict[str, RenewalResult]:
        (found,) = await tx.ask(Statement(dialect.lock_name, key))
        if not found:
            return dict.fromkeys(tickets, RenewalResult.GONE)
        return await _renew(tx, dialect, [found[0][0]], tickets)

    return work


async def _renew(
    tx: Transaction, dialect: Dialect, ids: Sequence[int], tickets: Sequence[str]
) -> dict[str, RenewalResult]:
    if not tickets:
        return {}
    _, found = await tx.commit(dialect.renew(ids, tickets), dialect.results(ids, tickets))
    there = {ticket: RenewalResult.QUEUED if token is None else RenewalResult.HELD for ticket, token in found}
    return {ticket: there.get(ticket, RenewalResult.GONE) for ticket in tickets}
