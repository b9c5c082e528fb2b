"""Renewals of lease rows: all of a client at once, then those whose names were locked, one name after the other.

A renewal needs the lock of its name. Without it a step could read an entry as expired and drop it after the renewal had
found it alive, by a clock that was set back in between. Names that somebody else has locked are passed over at first,
so that they delay no other holder.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.queue_snapshot import Key
from leasehold.stores._sql.transport import Statement, Transaction

PASSED_OVER_WITHIN = 0.25
"""Part of the time for a batch of renewals that one locked name may take."""

Results = dict[str, RenewalResult]
"""By ticket."""


class Transact(Protocol):
    """Runs a transaction before a deadline on the boot-time clock, on a connection that is reserved for renewals."""

    async def __call__(
        self, work: Callable[[Transaction], Coroutine[Any, Any, Results]], until: float, *, reserved: bool
    ) -> Results: ...


async def renew(
    transact: Transact, runtime: Runtime, dialect: Dialect, space: bytes, names: Mapping[str, bytes], within: float
) -> Results:
    """Renew tickets, each with its name. The result lacks those of which nothing is known.

    The first attempt waits for no name. So what it fails of concerns all, and none is tried by itself.

    Raises:
        StoreUnavailable: that would be all of them; the first reason.
    """
    until, failed = runtime.now() + within, list[StoreUnavailable]()
    if not names:
        return {}
    results = await transact(lambda tx: renew_unlocked(tx, dialect, space, names), until, reserved=True)
    slow = dict.fromkeys(name for ticket, name in names.items() if ticket not in results)
    for name in slow:  # its row was locked, or is gone: wait for it, but not for long
        if (now := runtime.now()) >= until:
            break
        mine = [ticket for ticket in names if names[ticket] == name]
        one = partial(renew_one, dialect=dialect, key=(space, name), tickets=mine)
        try:
            results.update(await transact(one, min(until, now + within * PASSED_OVER_WITHIN), reserved=True))
        except StoreUnavailable as error:
            failed.append(error)
    try:
        if failed and not results:
            raise failed[0]
        return results
    finally:
        failed.clear()  # else the error and this frame refer to each other, and keep the callers' frames, and so a hold


async def renew_unlocked(tx: Transaction, dialect: Dialect, space: bytes, names: Mapping[str, bytes]) -> Results:
    """Renew tickets, each with its name, and skip locked names.

    The result lacks the tickets of locked names and of names without a row.
    """
    (locked,) = await tx.ask(dialect.lock_names(space, sorted(set(names.values()))))
    ids = {bytes(name): row for row, name in locked}
    return await _renew(tx, dialect, list(ids.values()), [ticket for ticket in names if names[ticket] in ids])


async def renew_one(tx: Transaction, dialect: Dialect, key: Key, tickets: Sequence[str]) -> Results:
    """Wait for the lock of one name and renew its tickets."""
    (found,) = await tx.ask(Statement(dialect.lock_name, key))
    if not found:
        return dict.fromkeys(tickets, RenewalResult.GONE)
    return await _renew(tx, dialect, [found[0][0]], tickets)


async def _renew(tx: Transaction, dialect: Dialect, ids: Sequence[int], tickets: Sequence[str]) -> Results:
    if not tickets:
        return {}
    *_, found = await tx.commit(*dialect.renew(ids, tickets), dialect.results(ids, tickets))
    there = {ticket: RenewalResult.QUEUED if token is None else RenewalResult.HELD for ticket, token in found}
    return {ticket: there.get(ticket, RenewalResult.GONE) for ticket in tickets}
