"""The plain case on databases: one statement does what the store's own steps do, and no late one acquires.

Random histories are played twice on a real server, in two namespaces: in both ways, and by steps alone. Answers and
rows must be alike, but for times and the numbers of tokens.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from leasehold import NameInUse
from leasehold._model import Granted, ReleaseReason, Ticket
from leasehold.stores._sql import queue_snapshot, rows
from leasehold.stores._sql.plain import PlainCase
from leasehold.stores._sql.transport import Statement
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.plain_case import MODES, Database, database, known, ticket

__all__ = ["database"]  # pytest finds the fixture here

LENGTH, HISTORIES = 60, 6


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
    database: Database, namespace: str, harness: Harness, answers: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second one reads queues through the smallest window, so that even few holders or waiters exceed it."""

    async def body(harness: Harness) -> None:
        for seed in range(HISTORIES):
            monkeypatch.setattr(rows, "WINDOW", 1 if seed % 2 else queue_snapshot.WINDOW)
            spaces = [f"{namespace}-{seed}-{way}" for way in ("both", "steps")]
            clients = [harness.client(database.url, namespace=space) for space in spaces]
            stores = [clients[0].store, by_steps(clients[1])]
            chances = [random.Random(seed) for _ in stores]
            tickets = [ticket(MODES[number % 4], delay=30.0 * (number in (1, 2, 4))) for number in range(6)]
            tokens: list[dict[str, int]] = [{}, {}]
            log = list[str]()
            for number in range(LENGTH):
                if random.Random(f"{seed} {number}").random() < 0.3:
                    what = random.Random(f"{seed} {number} what").choice(("leases", "delays", "back"))
                    for space in spaces:
                        database.let_pass(space, what)
                said = [
                    await step(*each, mine) for *each, mine in zip(stores, chances, [tickets] * 2, tokens, strict=True)
                ]
                log.append(said[1])
                assert said[0] == said[1], (seed, number, said, log)
                found = [database.rows(space) for space in spaces]
                assert found[0] == found[1], (seed, number, log)

    harness.run(body)
    assert min(answers[what] for what in ("acquire done", "release done", "acquire not plain", "release not plain")) > 2


@both
def test_a_claim_that_its_own_release_has_overtaken_does_nothing(
    database: Database, namespace: str, harness: Harness
) -> None:
    async def body(harness: Harness) -> None:
        store = harness.client(database.url, namespace=namespace).store
        for name, has_row in (("x", True), ("y", False), ("z", True)):
            if has_row:
                await known(store, name)
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
