"""The sweep keeps a name that was not used for an hour while the lock delay after its last holder goes on.

Of many cells it reads and locks those that have expired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, Wait, ticket_id
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql.connection.base import bind
from leasehold.stores.mysql.statements import DIALECT as MYSQL
from leasehold.stores.postgres.statements import DIALECT as POSTGRESQL
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


DROP_CELLS = {
    "postgresql": POSTGRESQL.drop_cells.replace("$1", "64"),
    "mariadb": bind(Statement(MYSQL.drop_cells, (64,))).decode(),
}


def rows_read(database: OwnDatabase, connection: Any) -> int:
    """Return how many rows the transaction (PostgreSQL) or session (MariaDB) has read so far."""
    if database.system == "postgresql":
        counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'leasehold_cell'"
        return int(database.run(counted, on=connection)[0][0])
    return sum(int(count) for _, count in database.run("SHOW SESSION STATUS LIKE 'Handler_read%'", on=connection))


def test_a_sweep_reads_and_locks_no_live_cells(database: OwnDatabase) -> None:
    late = 9 * 10**18
    cells = ", ".join(f"('d', 'n{n}', 'v', 1, 0, {late * (n not in (7, 400, 4000))}, 1)" for n in range(5000))
    sweeper, other = database.connect(), database.connect()
    try:
        database.run(
            f"INSERT INTO leasehold_cell (space, name, value, version, fence, expires, ttl) VALUES {cells}", on=sweeper
        )
        for text in ("BEGIN", "SELECT 1 FROM leasehold_cell WHERE space = 'd' AND name = 'n9' FOR UPDATE"):
            database.run(text, on=other)
        limit = "lock_timeout = '1s'" if database.system == "postgresql" else "innodb_lock_wait_timeout = 1"
        if database.system == "mariadb":
            database.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", on=sweeper)
        for text in ("BEGIN", f"SET {limit}"):
            database.run(text, on=sweeper)
        first = rows_read(database, sweeper)
        cost_of_counting = rows_read(database, sweeper) - first
        database.run(DROP_CELLS[database.system], on=sweeper)
        assert rows_read(database, sweeper) - first - 2 * cost_of_counting < 100
        database.run("COMMIT", on=sweeper)
        assert database.run("SELECT count(*), min(expires) FROM leasehold_cell", on=sweeper) == [(4997, late)]
    finally:
        sweeper.close()
        other.close()
