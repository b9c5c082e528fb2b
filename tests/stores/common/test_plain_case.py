"""The plain case on databases: functions of the server do what the store's own steps do, and no late call acquires.

Random histories are played twice on a real server, in two namespaces: with functions, and by steps. Answers and rows
must be alike, but for times and the numbers of tokens.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold import NameInUse
from leasehold._model import Granted, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.stores._sql import plain
from leasehold.stores._sql.plain import PlainCase
from leasehold.stores._sql.transport import Call
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both

LENGTH, HISTORIES = 60, 6
WHAT = ("functions", "procedures")
MODES = (LockMode(), LockMode(), LockMode(fair=True), LockMode(Kind.SEMAPHORE, limit=2))
COLUMNS = (
    "ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, meta, "
    "alongside"
)


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
        names = self.run(
            "SELECT name, fence, blocked_until > 1, used > 1, id FROM leasehold_name WHERE space = %s ORDER BY name",
            space.encode(),
        )
        entries = [
            (bytes(name), row[0], row[1], row[2] is not None and row[2] == fence, row[3] > 1, *row[4:])
            for name, fence, _, _, number in names
            for row in self.run(f"SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = %s ORDER BY ticket", number)
        ]
        return [(bytes(name), fence > 0, bool(late), bool(used)) for name, fence, late, used, _ in names], entries

    def let_pass(self, space: str, what: str) -> None:
        """Let leases end, or lock delays, or ten minutes."""
        mine = "(SELECT id FROM leasehold_name WHERE space = %s)"
        if what == "leases":
            self.run(f"UPDATE leasehold_entry SET expires = 1 WHERE name_id IN {mine}", space.encode())
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
    """Count what the functions answered."""
    seen, original = Counter[str](), PlainCase._call

    async def counted(self: PlainCase, name: str, call: Call, now: float, within: float) -> int:
        answer = await original(self, name, call, now, within)
        seen[f"{call.function.split('_')[1]} {'done' if answer else 'not plain'}"] += 1
        return answer

    monkeypatch.setattr(PlainCase, "_call", counted)
    return seen


def by_steps(client: Any) -> Any:
    """Let a client call no function."""
    client.store._plain._missing_until = float("inf")
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
            spaces = [f"{namespace}-{seed}-{way}" for way in ("functions", "steps")]
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
def test_a_call_that_its_own_release_has_overtaken_does_nothing(
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
            store._plain.unanswered[late.id] = None  # its call is still on its way
            if name == "z":
                assert isinstance(await store.try_acquire(name, late, join=True, within=5), Granted)
            found = await store.release(name, late, reason=ReleaseReason.RELEASE, within=5)
            assert found is (name == "z")
            assert not store._plain.unanswered
            assert await store._plain.acquire(name, late, 5.0) is None
            assert isinstance(await store.try_acquire(name, other, join=False, within=5), Granted)
            assert await store.release(name, other, reason=ReleaseReason.RELEASE, within=5)

    harness.run(body)


@both
def test_a_locked_row_is_not_waited_for_by_a_call(database: Database, namespace: str, harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        one = ticket()
        assert isinstance(await store.try_acquire("x", one, join=False, within=5), Granted)
        assert await store.release("x", one, reason=ReleaseReason.RELEASE, within=5)
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM leasehold_name WHERE space = %s FOR UPDATE", (namespace.encode(),))
        assert await store._plain.acquire("x", ticket(), 5.0) is None
        holder.rollback()
        holder.close()
        assert await store._plain.acquire("x", ticket(), 5.0) is not None

    harness.run(body)


@both
def test_a_call_waits_for_no_row_of_another_name(database: Database, namespace: str, harness: Harness) -> None:
    """MySQL scans a small table unless it must not, and a condition in a procedure locks what it reads."""

    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        mine, others = ticket(), ticket()
        for name, one in (("x", mine), ("y", others)):
            assert isinstance(await store.try_acquire(name, one, join=False, within=5), Granted)
        ((number,),) = database.run("SELECT name_id FROM leasehold_entry WHERE ticket = %s", others.id)
        if "postgres" not in database.url:
            database.server.query(f"ANALYZE TABLE {database.url.rpartition('/')[2]}.leasehold_entry")  # it is small
        holder = database.server.connect()
        cursor = holder.cursor()
        cursor.execute("BEGIN")
        entry = "SELECT 1 FROM leasehold_entry WHERE ticket = %s AND name_id = %s FOR UPDATE"
        cursor.execute(entry, (others.id, number))
        try:
            assert await store._plain.release("x", mine, 2.0)
            assert await store._plain.acquire("x", mine, 2.0) is not None
            assert await store._plain.release("x", mine, 2.0)
        finally:
            holder.rollback()
            holder.close()
            database.run("DELETE FROM leasehold_entry WHERE ticket IN (%s, %s)", mine.id, others.id)

    harness.run(body)


@both
def test_without_the_functions_the_steps_do_it_and_doctor_says_so(
    database: Database, namespace: str, harness: Harness, answers: Counter[str]
) -> None:
    """They may be dropped, and made again, under a client."""
    drop = "DROP FUNCTION {}" if "postgres" in database.url else "DROP PROCEDURE {}"

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=namespace)

        async def pair() -> None:
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            await hold.release()

        async def status() -> str:
            other = harness.client(database.url, namespace=namespace)
            return next(one.severity.name for one in await other.diagnose() if one.subject.split()[-1] in WHAT)

        for _ in range(3):
            await pair()
        assert answers["acquire done"] == 2  # not the first, which finds no row
        assert await status() == "OK"
        try:
            for name in (plain.ACQUIRE, plain.RELEASE):
                database.run(drop.format(name))
            await pair()
            await pair()
            assert answers["acquire done"] == 2
            assert client.store._plain._missing_until > 0
            assert await status() == "NOTE"
        finally:
            assert await client.store.prepare(), "the functions were missing"
        assert await status() == "OK"
        client.store._plain._missing_until = 0.0
        fresh = harness.client(database.url, namespace=namespace)
        for locks in (fresh, client):
            hold = await locks.lock("x").acquire(timeout=5)
            await hold.release()
        assert answers["acquire done"] > 2

    harness.run(body)
