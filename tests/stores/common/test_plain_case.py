"""The plain case on databases: one statement does what the store's own steps do, and no late one acquires.

Random histories are played twice on a real server, in two namespaces: in both ways, and by steps alone. Answers and
rows must be alike, but for times and the numbers of tokens.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold import NameInUse
from leasehold._model import Granted, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, RenewalResult, Ticket, ticket_id
from leasehold.stores._sql import plain
from leasehold.stores._sql.plain import PlainCase
from leasehold.stores._sql.transport import Statement
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both

LENGTH, HISTORIES = 60, 6
MODES = (LockMode(), LockMode(), LockMode(fair=True), LockMode(Kind.SEMAPHORE, limit=2))
COLUMNS = (
    "ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, meta, "
    "alongside"
)
HOLDER = "holder_fair, holder_lease, holder_delay, holder_owner, holder_meta"


class Database:
    """A real server, and what is looked at and changed there."""

    def __init__(self, server: Any, url: str) -> None:
        self.server = server
        self.url = url

    def run(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        connection = self.server.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(text, args)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.commit()
            connection.close()

    def rows(self, space: str) -> tuple[list[Any], list[Any]]:
        """Return names and entries, with what time is, and which token, in words that do not differ."""
        names, entries = list[Any](), list[Any]()
        found = self.run(
            f"SELECT id, name, fence, entries, blocked_until > 1, holder, holder_token, holder_expires > 1, {HOLDER} "
            "FROM leasehold_name WHERE space = %s ORDER BY name",
            space.encode(),
        )
        for number, name, fence, count, late, holder, token, lasts, *terms in found:
            in_row = (holder, token == fence, bool(lasts), *terms) if holder else ()
            names.append((bytes(name), fence > 0, bool(late), *in_row))
            some = self.run(f"SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = %s ORDER BY ticket", number)
            assert count == len(some), (bytes(name), count, some)
            entries += [(bytes(name), *row[:2], row[2] == fence, row[3] > 1, *row[4:]) for row in some]
        return names, entries

    def let_pass(self, space: str, what: str) -> None:
        """Let leases end, or lock delays, or ten minutes."""
        mine = "(SELECT id FROM leasehold_name WHERE space = %s)"
        if what == "leases":
            self.run(f"UPDATE leasehold_entry SET expires = 1 WHERE name_id IN {mine}", space.encode())
            self.run("UPDATE leasehold_name SET holder_expires = 1 WHERE space = %s", space.encode())
        else:
            self.run(f"UPDATE leasehold_name SET {what} = 1 WHERE space = %s", space.encode())


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(plain, "CROWDED_FOR", 0.0)  # it calls each time
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        return Database(server, server.url)
    return Database(request.getfixturevalue("mariadb_server"), request.getfixturevalue("mariadb_url"))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the statements did."""
    seen, original = Counter[str](), PlainCase._change

    async def counted(self: PlainCase, name: str, statement: Statement, now: float, within: float) -> int:
        number = await original(self, name, statement, now, within)
        what = "acquire" if statement.text == self._dialect.acquire_free else "release"
        seen[f"{what} {'done' if number else 'not plain'}"] += 1
        return number

    monkeypatch.setattr(PlainCase, "_change", counted)
    return seen


def by_steps(client: Any) -> Any:
    """Let a client take its own steps alone."""
    client.store._plain._pause_until = float("inf")
    return client.store


def ticket(mode: LockMode = MODES[0], delay: float = 0.0) -> Ticket:
    terms = LeaseTerms(mode, Owner("höst", 1, "c"), 30.0, lock_delay=delay, meta='{"a": "; \'\\\\ $$ ü"}')
    return Ticket(ticket_id(os.urandom(16)), terms)


async def step(store: Any, chance: random.Random, tickets: Sequence[Ticket], tokens: dict[str, int]) -> str:
    """Take a random step; say its answer."""
    name, one = chance.choice("ab"), chance.choice(tickets)
    match chance.choice(("acquire",) * 4 + ("release",) * 4 + ("break", "renew")):
        case "acquire":
            try:
                answer = await store.try_acquire(name, one, join=chance.random() < 0.3, within=5)
            except NameInUse:
                return "in use"
            if not isinstance(answer, Granted):
                return f"waits for {answer.held_by}"
            again = answer.token == tokens.get(name + one.id)
            assert again or answer.token > max((tokens[key] for key in tokens if key[0] == name), default=0)
            tokens[name + one.id] = answer.token
            return "granted again" if again else "granted"
        case "renew":
            return str(await store.renew([(name, one)], within=5))
        case what:
            tokens.update(dict.fromkeys([name + one.id], tokens.get(name + one.id, 0)))
            return str(await store.release(name, one, reason=ReleaseReason(what), within=5))


@pytest.mark.timeout(300)
@both
def test_random_histories_are_alike_in_both_ways(
    database: Database, namespace: str, harness: Harness, answers: Counter[str]
) -> None:
    async def body(harness: Harness) -> None:
        for seed in range(HISTORIES):
            spaces = [f"{namespace}-{seed}-{way}" for way in ("both", "steps")]
            clients = [harness.client(database.url, namespace=space) for space in spaces]
            stores = [clients[0].store, by_steps(clients[1])]
            chances = [random.Random(seed) for _ in stores]
            tickets = [ticket(MODES[number % 4], delay=30.0 * (number == 1)) for number in range(6)]
            tokens: list[dict[str, int]] = [{}, {}]
            log = list[str]()
            for number in range(LENGTH):
                if random.Random(f"{seed} {number}").random() < 0.15:
                    what = random.Random(f"{seed} {number} what").choice(("leases", "blocked_until", "used"))
                    for space in spaces:
                        database.let_pass(space, what)
                said = [
                    await step(*each, mine) for *each, mine in zip(stores, chances, [tickets] * 2, tokens, strict=True)
                ]
                log.append(said[1])
                assert said[0] == said[1], (seed, number, said, log)
                rows = [database.rows(space) for space in spaces]
                assert rows[0] == rows[1], (seed, number, log)

    harness.run(body)
    assert min(answers[what] for what in ("acquire done", "release done", "acquire not plain", "release not plain")) > 2


@both
def test_a_claim_that_its_own_release_has_overtaken_does_nothing(
    database: Database, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        for name, known in (("x", True), ("y", False), ("z", True)):
            if known:
                await store.release(name, ticket(), reason=ReleaseReason.RELEASE, within=5)
                assert isinstance(await store.try_acquire(name, one := ticket(), join=False, within=5), Granted)
                assert await store.release(name, one, reason=ReleaseReason.RELEASE, within=5)
            late, other = ticket(), ticket()
            store._plain.unanswered[late.id] = None  # its claim is still on its way
            if name == "z":
                assert isinstance(await store.try_acquire(name, late, join=True, within=5), Granted)
            found = await store.release(name, late, reason=ReleaseReason.RELEASE, within=5)
            assert found is (name == "z")
            assert not store._plain.unanswered
            assert await store._plain.acquire(name, late, 5.0) is None
            assert isinstance(await store.try_acquire(name, other, join=False, within=5), Granted)
            assert await store.release(name, other, reason=ReleaseReason.RELEASE, within=5)

    harness.run(body)


CHANGES = {
    "a holder": "holder = 'another', holder_expires = 4000000000000000000",
    "entries": "entries = 1",
    "a lock delay": "blocked_until = 4000000000000000000",
    "a refusal": "refused = %s",
    "nothing": "used = used + 1",
}


@both
def test_a_statement_decides_by_the_row_as_it_is_when_it_has_locked_it(
    database: Database, namespace: str, harness: Harness
) -> None:
    """Its own view is older: what was committed meanwhile counts all the same."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        if "postgres" in database.url:  # it does not wait for the lock, so it is slow to take it
            dialect = store._plain._dialect
            slow = dialect.acquire_free.replace("FOR UPDATE", "AND pg_sleep(0.7)::text IS NOT NULL FOR UPDATE")
            store._plain._dialect = dataclasses.replace(dialect, acquire_free=slow)
        for name, change in CHANGES.items():
            one, late = ticket(), ticket()
            await store.try_acquire(name, one, join=False, within=5)
            assert await store.release(name, one, reason=ReleaseReason.RELEASE, within=5)
            other = database.server.connect()
            cursor = other.cursor()
            args = *([f"x {late.id} y"] if "%s" in change else ()), namespace.encode(), name.encode()
            text = f"UPDATE leasehold_name SET {change} WHERE space = %s AND name = %s"

            def commit(text: str = text, args: Any = args, cursor: Any = cursor, other: Any = other) -> None:
                if "postgres" in database.url:
                    cursor.execute(text, args)
                other.commit()

            if "postgres" not in database.url:
                cursor.execute("BEGIN")
                cursor.execute(text, args)
            committer = threading.Timer(0.3, commit)
            committer.start()
            granted = await store._plain.acquire(name, late, 30.0)
            committer.join()
            other.close()
            assert (granted is not None) is (name == "nothing"), name

    harness.run(body)


@both
def test_a_locked_row_is_given_up_for_the_steps(database: Database, namespace: str, harness: Harness) -> None:
    """PostgreSQL passes over it at once, MySQL after a second."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one = ticket()
        assert isinstance(await store.try_acquire("x", one, join=False, within=5), Granted)
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM leasehold_name WHERE space = %s FOR UPDATE", (namespace.encode(),))
        assert not await store._plain.release("x", one, 30.0)
        assert await store._plain.acquire("x", ticket(), 30.0) is None
        holder.rollback()
        holder.close()
        assert await store._plain.release("x", one, 5.0)
        assert await store._plain.acquire("x", ticket(), 5.0) is not None

    harness.run(body)


@both
def test_a_statement_waits_for_no_row_but_its_own(database: Database, namespace: str, harness: Harness) -> None:
    """Neither for other names and entries, nor for the row of the layout, which it reads."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        mine, others = ticket(), ticket()
        for name, one in (("x", mine), ("y", others)):
            assert isinstance(await store.try_acquire(name, one, join=False, within=5), Granted)
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM leasehold_name WHERE space = %s AND name = %s FOR UPDATE", (namespace, "y"))
        cursor.execute("UPDATE leasehold_meta SET fence = fence + 1")
        cursor.execute("SELECT 1 FROM leasehold_entry FOR UPDATE")
        try:
            for _ in range(2):
                assert await store._plain.release("x", mine, 2.0)
                assert await store._plain.acquire("x", mine, 2.0) is not None
        finally:
            holder.rollback()
            holder.close()

    harness.run(body)


@both
def test_a_holder_in_the_row_of_its_name_is_renewed(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one = ticket()
        assert isinstance(await store.try_acquire("x", one, join=False, within=5), Granted)
        expiry = f"SELECT holder_expires FROM leasehold_name WHERE holder = '{one.id}'"
        ((before,),) = database.run(expiry)
        assert await store.renew([("x", one)], within=5) == [RenewalResult.HELD]
        assert database.run(expiry)[0][0] > before
        database.run("UPDATE leasehold_name SET holder_expires = 1 WHERE holder = %s", one.id)
        assert await store.renew([("x", one)], within=5) == [RenewalResult.GONE]
        assert database.run(expiry)[0][0] == 1

    harness.run(body)


@both
def test_a_wrong_number_of_entries_is_set_right_by_the_next_step(
    database: Database, namespace: str, harness: Harness
) -> None:
    """As an old client may leave it, which calls a function that an upgrade was not allowed to drop."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        first, second = ticket(), ticket()
        await store.try_acquire("x", first, join=False, within=5)
        assert await store.release("x", first, reason=ReleaseReason.RELEASE, within=5)
        database.run("UPDATE leasehold_name SET entries = 5 WHERE space = %s", namespace.encode())
        assert await store._plain.acquire("x", second, 5.0) is None
        assert isinstance(await store.try_acquire("x", second, join=False, within=5), Granted)
        assert database.rows(namespace)[1] == []
        assert await store._plain.release("x", second, 5.0)

    harness.run(body)


@both
def test_a_name_refuses_the_last_64_tickets(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        some = [ticket() for _ in range(65)]
        for one in some:
            store._plain.unanswered[one.id] = None
            assert not await store.release("x", one, reason=ReleaseReason.RELEASE, within=5)
        assert all([await store._plain.acquire("x", one, 5.0) is None for one in some[1:]])
        assert await store._plain.acquire("x", some[0], 5.0) is not None

    harness.run(body)


@both
def test_where_the_statement_is_refused_the_steps_do_it(
    database: Database, namespace: str, harness: Harness, answers: Counter[str]
) -> None:
    """For half a minute it is not even tried; a reason that lasts is not one that concerns the name."""

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=namespace)

        async def pair() -> None:
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            await hold.release()

        for _ in range(3):
            await pair()
        assert answers["acquire done"] == 2  # not the first, which finds no row
        dialect = client.store._plain._dialect
        broken = dataclasses.replace(
            dialect, acquire_free=dialect.acquire_free.replace("holder_meta", "no_such_column")
        )
        client.store._plain._dialect = broken
        await pair()
        tried = answers["acquire not plain"]
        await pair()
        assert answers["acquire not plain"] == tried == 2
        client.store._plain._dialect, client.store._plain._pause_until = dialect, 0.0
        await pair()
        assert answers["acquire done"] == 3

    harness.run(body)
