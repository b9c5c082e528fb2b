"""Tables without the row of `leasehold_meta`: a dump of the schema alone leaves them, or a fixture that empties all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold import AsyncClient, LeaseLost, StoreRefused, tables
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.own_database import OwnDatabase, with_tables

TABLES = ("leasehold_entry", "leasehold_name", "leasehold_cell", "leasehold_meta")


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    yield from with_tables(request)


async def check_refused(locks: AsyncClient, *, wait: float) -> None:
    with pytest.raises(StoreRefused, match=r"leasehold_meta has no row; .* leasehold init") as caught:
        await locks.lock("x").acquire(timeout=wait)
    assert caught.value.lasting


@both
@pytest.mark.parametrize("mode", ["rows", "session"])
def test_an_acquire_names_the_missing_row_and_how_to_restore_it(
    database: OwnDatabase, harness: Harness, mode: str
) -> None:
    """It does not add the name of the lock again and again: that needs the highest token of all dropped names."""

    async def body(harness: Harness) -> None:
        locks = harness.client(f"{database.url}?mode={mode}")
        for table in TABLES:
            database.run(f"DELETE FROM {table}")
        await check_refused(locks, wait=0.0)
        await check_refused(locks, wait=20.0)
        assert tables.create(database.url)
        hold = await locks.lock("x").acquire(timeout=5)
        assert hold is not None
        await hold.release()

    harness.run(body)


@both
def test_a_release_reports_the_loss_of_a_hold_whose_rows_are_gone(database: OwnDatabase, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        hold = await harness.client(database.url).lock("x").acquire(timeout=5)
        assert hold is not None
        for table in TABLES:
            database.run(f"DELETE FROM {table}")
        with pytest.raises(LeaseLost):
            await hold.release()

    harness.run(body)
