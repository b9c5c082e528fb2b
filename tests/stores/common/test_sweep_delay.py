"""The sweep keeps a name that was not used for an hour while the lock delay after its last holder goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, Wait, ticket_id
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.own_database import OwnDatabase, with_tables

SECOND = 10**9
DELAY = 600.0

HOLDER = {"in the name's row": ("leasehold_name", "holder_expires"), "an entry": ("leasehold_entry", "expires")}


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    yield from with_tables(request)


def ticket() -> Ticket:
    return Ticket(ticket_id(os.urandom(16)), LeaseTerms(LockMode(), Owner("h", 1, "c"), 30.0, lock_delay=DELAY))


@both
@pytest.mark.parametrize("holder", HOLDER)
def test_a_name_is_kept_to_the_end_of_a_lock_delay(database: OwnDatabase, harness: Harness, holder: str) -> None:
    table, expires = HOLDER[holder]

    def names() -> list[str]:
        return [bytes(name).decode() for (name,) in database.run("SELECT name FROM leasehold_name ORDER BY name")]

    async def sweep(harness: Harness) -> list[str]:
        """The first release of a client takes a step of the sweep."""
        async_client = harness.client(database.url)
        hold = await async_client.lock("busy").acquire(timeout=5)
        assert hold is not None
        await hold.release()
        return names()

    async def body(harness: Harness) -> None:
        store: Any = harness.client(database.url).store
        first, mine, other = ticket(), ticket(), ticket()
        assert isinstance(await store.try_acquire("old", first, join=False, within=5), Granted)
        if holder == "an entry":  # of one that has waited
            assert isinstance(await store.try_acquire("old", mine, join=True, within=5), Wait)
            assert await store.release("old", first, reason=ReleaseReason.RELEASE, within=5)
        database.run("UPDATE leasehold_name SET used = used - %s", 7200 * SECOND)
        database.run(f"UPDATE {table} SET {expires} = {expires} - %s", 60 * SECOND)
        assert database.run(f"SELECT count(*) FROM {table} WHERE {expires} > 0") == [(1,)]
        assert await sweep(harness) == ["busy", "old"]
        blocked = await store.try_acquire("old", other, join=False, within=5)
        assert isinstance(blocked, Wait), "the lock delay goes on"
        database.run(
            "UPDATE leasehold_name SET used = used - %s, blocked_until = 0 WHERE name = %s", 7200 * SECOND, b"old"
        )
        database.run(f"UPDATE {table} SET {expires} = {expires} - %s", int(DELAY) * SECOND)
        assert await sweep(harness) == ["busy"]

    harness.run(body)
