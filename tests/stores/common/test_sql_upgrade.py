"""Tables of layout 1: clients refuse them with the remedy, and `leasehold init` upgrades them while old clients run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from leasehold import Client, LeaseholdError, StoreUnavailable, tables
from leasehold._model import Granted, ReleaseReason, RenewalResult, Severity, Ticket, Wait, ticket_id
from leasehold.stores._sql import tables as layout
from leasehold.stores._sql.dialect import LAYOUT
from leasehold.stores._sql.transport import Outcome, Refused, Transaction
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.patience import until
from support.stores.old_tables import BEFORE, SPACE, TERMS, THERE, WAITING, OldTables

PLAIN = "without_rights"
"""A user who may use the locks, and nothing else."""


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[OldTables]:
    server = request.getfixturevalue("postgres_server" if request.param == "postgresql" else "mariadb_server")
    yield (made := OldTables(request.param, server))
    made.drop()


@pytest.fixture
def old_client(database: OldTables) -> Iterator[Any]:
    """A transaction of a client of layout 1, that has locked a name and read the layout."""
    connection = database.connect()
    database.run("BEGIN", on=connection)
    database.run("SELECT id FROM leasehold_name WHERE name = %s FOR UPDATE", b"free", on=connection)
    assert database.run("SELECT version FROM leasehold_meta", on=connection) == [(1,)]
    yield connection
    connection.close()


def refusal(locks: Client) -> str:
    with pytest.raises(LeaseholdError) as caught:
        locks.lock("free").acquire(timeout=1)
    return str(caught.value)


@pytest.mark.parametrize("columns", [False, True], ids=["at first", "with the columns"])
@pytest.mark.parametrize("version", [1, 0])
def test_a_client_names_the_command(database: OldTables, version: int, columns: bool) -> None:
    database.run("UPDATE leasehold_meta SET version = %s", version)
    if columns:
        database.add_columns()
    with Client.from_url(database.url) as locks:
        assert "leasehold init" in refusal(locks)
        assert "leasehold init" in refusal(locks)  # not by the statement of the plain case
        with pytest.raises(LeaseholdError, match="leasehold init"):
            locks.inspect("held")
        found = [one for one in locks.diagnose() if one.severity is Severity.ERROR]
        assert [one.subject.split()[-1] for one in found] == ["tables"]
        assert found[0].found == f"layout {version}"
        assert found[0].remedy == "run: leasehold init URL"
    assert database.entries() == {"free": 0, "held": 0} if columns else True


@both
def test_the_holder_of_before_keeps_its_lock(database: OldTables, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=SPACE.decode())
        store: Any = client.store
        assert await store.prepare() is True
        assert await store.prepare() is False
        assert (database.version(), database.entries()) == (LAYOUT, {"free": 0, "held": 2})
        assert database.run(THERE[database.system]) == [(0,)]
        shown = await client.inspect("held")
        assert shown is not None
        assert [(one.token, str(one.owner), one.meta) for one in shown.holders] == [(7, str(TERMS.owner), {"job": "x"})]
        assert len(shown.waiters) == 1
        mine = Ticket(ticket_id(os.urandom(16)), TERMS)
        assert isinstance(await store.try_acquire("held", mine, join=False, within=5), Wait)
        (before,) = [one.remaining or 0.0 for one in shown.holders]
        assert await store.renew([("held", BEFORE)], within=5) == [RenewalResult.HELD]
        shown = await client.inspect("held")
        assert shown is not None
        assert 0 < (shown.holders[0].remaining or 0.0) < before  # the lease is 30 s, and was set to a minute
        assert await store.release("held", BEFORE, reason=ReleaseReason.RELEASE, within=5)
        shown = await client.inspect("held")
        assert shown is not None
        assert [(one.token or 0) > 7 for one in shown.holders] == [True]  # the waiter of before
        assert database.entries() == {"free": 0, "held": 1}
        granted = await store.try_acquire("free", mine, join=False, within=5)
        assert isinstance(granted, Granted)
        assert granted.token > 7
        assert database.run("SELECT holder FROM leasehold_name WHERE name = %s", b"free") == [(mine.id,)]

    harness.run(body)


def test_the_command_upgrades(database: OldTables) -> None:
    command = [sys.executable, "-m", "leasehold", "init", database.url]
    for words in ("upgraded", "nothing was missing"):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert words in done.stderr
    assert database.version() == LAYOUT
    with Client.from_url(database.url) as locks, locks.lock("free", timeout=5):
        assert all(one.severity < Severity.ERROR for one in locks.diagnose())


@pytest.mark.parametrize("version", [1, 0])
def test_an_interrupted_upgrade_is_repeated(database: OldTables, version: int) -> None:
    database.add_columns()
    database.run("UPDATE leasehold_meta SET version = %s", version)
    assert tables.create(database.url) is True
    assert (database.version(), database.entries()) == (LAYOUT, {"free": 0, "held": 2})
    assert database.run(THERE[database.system]) == [(0,)]
    assert tables.create(database.url) is False


def test_several_upgrade_at_once(database: OldTables) -> None:
    errors: list[BaseException] = []

    def upgrade() -> None:
        try:
            tables.create(database.url)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (database.version(), database.entries()) == (LAYOUT, {"free": 0, "held": 2})
    assert tables.create(database.url) is False


@pytest.mark.parametrize("columns", [False, True], ids=["at first", "with the columns"])
def test_a_step_of_an_old_client_is_waited_for(
    database: OldTables, request: pytest.FixtureRequest, columns: bool
) -> None:
    """It has read layout 1 under the lock of its name; its entry is counted."""
    if columns:
        database.add_columns()
    old = request.getfixturevalue("old_client")
    thread = threading.Thread(target=lambda: tables.create(database.url))
    thread.start()
    try:
        until(lambda: database.run(WAITING[database.system])[0][0] > 0, within=20)
        assert database.version() != LAYOUT
        database.add_entry("free", "late", token=8, on=old)
    finally:
        database.run("COMMIT", on=old)
        thread.join(30)
    assert (database.version(), database.entries()) == (LAYOUT, {"free": 1, "held": 2})
    with Client.from_url(database.url) as locks:
        assert locks.lock("free").acquire(timeout=0) is None


class Turns:
    """Runs something just before a statement of the upgrade."""

    def __init__(self, transport: Any, text: str, act: Any) -> None:
        self._transport = transport
        self._text = text
        self._act = act

    async def transact(self, work: Any, *, within: float) -> Any:
        async def watched(tx: Any) -> Any:
            return await work(Watched(tx, self._text, self._act))

        return await self._transport.transact(watched, within=within)


class Watched:
    def __init__(self, tx: Any, text: str, act: Any) -> None:
        self._tx, self._text, self._act = tx, text, act

    def _look(self, statements: Sequence[Any]) -> None:
        if any(one.text == self._text for one in statements):
            self._act()

    async def ask(self, *statements: Any) -> Any:
        self._look(statements)
        return await self._tx.ask(*statements)

    async def commit(self, *statements: Any) -> Any:
        self._look(statements)
        return await self._tx.commit(*statements)


async def upgrade_with(client: Any, text: str, act: Any) -> bool:
    """Upgrade, and act just before a statement."""
    store: Any = client.store
    return await layout.prepare(Turns(store._transport, text, act), store._dialect)  # type: ignore[arg-type]


@both
def test_a_step_that_began_after_the_columns_were_added_is_waited_for(database: OldTables, harness: Harness) -> None:
    """It has locked a name and read layout 1 just before that was set to 0."""

    def began() -> None:
        old.append(database.connect())
        database.run("BEGIN", on=old[0])
        database.run("SELECT id FROM leasehold_name WHERE name = %s FOR UPDATE", b"free", on=old[0])
        assert database.run("SELECT version FROM leasehold_meta", on=old[0]) == [(1,)]
        threads.append(threading.Thread(target=ends))
        threads[0].start()

    def ends() -> None:
        until(lambda: database.run(WAITING[database.system])[0][0] > 0, within=20)
        seen.append(database.version())
        database.add_entry("free", "late", token=8, on=old[0])
        database.run("COMMIT", on=old[0])

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=SPACE.decode())
        assert await upgrade_with(client, layout.STOP_CLIENTS, began)

    old, threads, seen = list[Any](), list[threading.Thread](), list[int]()
    harness.run(body)
    threads[0].join(30)
    old[0].close()
    assert seen == [layout.UPGRADING]
    assert (database.version(), database.entries()) == (LAYOUT, {"free": 1, "held": 2})


@both
def test_a_later_upgrade_counts_nothing_again(database: OldTables, harness: Harness) -> None:
    """A count beside clients of the new layout may be older than what they write."""

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=SPACE.decode())
        assert await upgrade_with(client, layout.LOCK_NAMES, other)
        assert database.entries() == {"free": 5, "held": 5}
        assert tables.create(database.url) is False

    def other() -> None:
        assert tables.create(database.url)
        database.run("UPDATE leasehold_name SET entries = 5")  # as if clients had written it meanwhile

    harness.run(body)


@both
def test_the_sweep_of_an_old_client_makes_no_deadlock(database: OldTables, harness: Harness) -> None:
    """It locks a name and then the row of the layout, as it drops the name."""

    def began() -> None:
        old.append(database.connect())
        database.run("BEGIN", on=old[0])
        database.run("SELECT id FROM leasehold_name WHERE name = %s FOR UPDATE", b"free", on=old[0])
        threads.append(threading.Thread(target=ends))
        threads[0].start()

    def ends() -> None:
        until(lambda: database.run(WAITING[database.system])[0][0] > 0, within=20)
        database.run("DELETE FROM leasehold_name WHERE name = %s", b"free", on=old[0])
        database.run("UPDATE leasehold_meta SET fence = 9", on=old[0])
        database.run("COMMIT", on=old[0])
        ended.append(True)

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=SPACE.decode())
        assert await upgrade_with(client, layout.LOCK_NAMES, began)

    old, threads, ended = list[Any](), list[threading.Thread](), list[bool]()
    harness.run(body)
    threads[0].join(30)
    old[0].close()
    assert ended
    assert (database.version(), database.entries()) == (LAYOUT, {"held": 2})


def test_a_user_without_the_right_changes_nothing(database: OldTables) -> None:
    """Clients of layout 1 go on."""
    if database.system == "postgresql":
        database.run(f"DROP ROLE IF EXISTS {PLAIN}")
        database.run(f"CREATE ROLE {PLAIN} LOGIN")
        database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {PLAIN}")
        url = database.url.replace("postgres@", f"{PLAIN}@")
    else:
        database.run(f"CREATE OR REPLACE USER '{PLAIN}'@'127.0.0.1'")
        database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.* TO '{PLAIN}'@'127.0.0.1'")
        url = database.url.replace("//app@", f"//{PLAIN}@")
    try:
        with pytest.raises(StoreUnavailable) as caught:
            tables.create(url)
        assert caught.value.lasting
        assert database.version() == 1
        assert database.run(THERE[database.system]) == [(2,)]
    finally:
        if database.system == "postgresql":
            database.run(f"DROP OWNED BY {PLAIN}")
            database.run(f"DROP ROLE {PLAIN}")


def test_functions_of_another_user_are_no_obstacle(database: OldTables) -> None:
    if database.system == "postgresql":
        database.run("DROP ROLE IF EXISTS of_tables")
        database.run("CREATE ROLE of_tables LOGIN")
        for name in ("meta", "name", "entry", "cell"):
            database.run(f"ALTER TABLE leasehold_{name} OWNER TO of_tables")
        url = database.url.replace("postgres@", "of_tables@")
    else:
        database.run("CREATE OR REPLACE USER 'of_tables'@'127.0.0.1'")
        rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER"
        database.run(f"GRANT {rights} ON {database.name}.* TO 'of_tables'@'127.0.0.1'")
        url = database.url.replace("//app@", "//of_tables@")
    try:
        assert tables.create(url) is True
        assert (database.version(), database.entries()) == (LAYOUT, {"free": 0, "held": 2})
        assert database.run(THERE[database.system]) == [(2,)]
    finally:
        if database.system == "postgresql":
            database.run("DROP OWNED BY of_tables")
            database.run("DROP ROLE of_tables")


@both
@pytest.mark.parametrize(("outcome", "failures"), [(Outcome.AGAIN, 2), (Outcome.NOT_APPLIED, 1), (Outcome.AGAIN, 99)])
def test_after_a_failed_last_step_old_clients_go_on(
    database: OldTables, harness: Harness, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, failures: int
) -> None:
    """A conflict with another transaction is tried again, but not for ever."""
    original, left = layout._count_entries, [failures]

    async def failing(tx: Transaction) -> None:
        if left[0]:
            left[0] -= 1
            raise Refused("as told", outcome=outcome)
        await original(tx)

    monkeypatch.setattr(layout, "_count_entries", failing)

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=SPACE.decode()).store
        if failures == 2:
            assert await store.prepare()
            return
        with pytest.raises(Refused, match="as told"):
            await store.prepare()

    harness.run(body)
    assert database.version() == (LAYOUT if failures == 2 else layout.OLD)
    assert left[0] == (99 - layout.CONFLICTS if failures == 99 else 0)
