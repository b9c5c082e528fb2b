"""Names with many holders on databases: a step reads their entries once, however many there are."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold._model import Granted, Kind, LockMode, ReleaseReason, Ticket
from leasehold.stores._sql import rows
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.plain_case import Database, database, ticket

__all__ = ["database"]  # pytest finds the fixture here

MODES = {
    "permit": LockMode(Kind.SEMAPHORE, limit=1000),
    "reader": LockMode(Kind.READ_WRITE, exclusive=False),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The window of each read of a queue."""
    windows, original = list[int](), rows.read

    async def counted(tx: Any, dialect: Any, targets: Any, window: int) -> Any:
        windows.append(window)
        return await original(tx, dialect, targets, window)

    monkeypatch.setattr(rows, "read", counted)
    return windows


@both
@pytest.mark.parametrize("kind", MODES)
def test_a_step_reads_the_queue_once_however_many_hold(
    database: Database, namespace: str, harness: Harness, reads: list[int], kind: str
) -> None:
    """Neither an acquire nor a release reads it again with a larger window, which would lengthen the row's lock."""
    most = 4 * rows.WINDOW

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        holders = list[Ticket]()
        reads.clear()
        for _ in range(most):
            holders.append(ticket(MODES[kind]))
            assert isinstance(await store.try_acquire("x", holders[-1], join=True, within=5), Granted)
            if len(holders) > 1:  # the first one finds no row of the name
                assert reads == [rows.WINDOW], len(holders)
            reads.clear()
        assert len(database.rows(namespace)[1]) == most  # as many as the name's row says
        for holder in holders:
            assert await store.release("x", holder, reason=ReleaseReason.RELEASE, within=5)
            assert reads == [rows.WINDOW], len(database.rows(namespace)[1])
            reads.clear()
        assert database.rows(namespace)[1] == []

    harness.run(body)


@both
def test_waiters_behind_many_holders_are_read_as_far_as_needed(
    database: Database, namespace: str, harness: Harness, reads: list[int]
) -> None:
    """Fewer than a window are all; of a window or more the first are read, and the next one gets the last place."""
    limit = 3 * rows.WINDOW
    mode = LockMode(Kind.SEMAPHORE, limit=limit, fair=True)

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        tickets = [ticket(mode) for _ in range(limit + rows.WINDOW + 3)]
        granted = [isinstance(await store.try_acquire("x", one, join=True, within=5), Granted) for one in tickets]
        assert granted == [number < limit for number in range(len(tickets))]
        reads.clear()
        for holder in tickets[:limit]:
            assert await store.release("x", holder, reason=ReleaseReason.RELEASE, within=5)
        assert set(reads) == {rows.WINDOW}
        (view,) = await store.inspect("x", exact=True)
        assert [entry.ticket for entry in view.holders] == tickets[limit:]

    harness.run(body)
