"""The SQLite store compared with the reference in memory, and how many rows it reads and keeps."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlite_peers import boottime, raw

from leasehold import Client, NameInUse
from leasehold._model import Change, Granted, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold._runtimes.base import Flavor, finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.memory import Memory
from leasehold.stores.sqlite import SQLite, plain, rows, steps

TABLES = ("name", "entry")


class Frozen(BlockingRuntime):
    """A clock that only moves when the test moves it; without threads."""

    flavor = Flavor.SIMULATED

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:  # type: ignore[override]
        return self.at

    def wall_us(self) -> int:  # type: ignore[override]
        return int(self.at * 1e6)


RULES = [
    LockMode(),
    LockMode(fair=True),
    LockMode(Kind.READ_WRITE),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE, exclusive=False, fair=True),
    LockMode(Kind.READ_WRITE, fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True),
    LockMode(Kind.SEMAPHORE, permits=1, limit=4),
    LockMode(Kind.SEMAPHORE, permits=3, limit=4, fair=True),
]


@pytest.mark.parametrize("seed", [0, 1, 2, 106, 107, 112, 140])
def test_agrees_with_the_memory_store(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random operations with queues far longer than the window have the same outcome as on whole queues."""
    monkeypatch.setattr("leasehold.stores.sqlite.database.boottime", lambda: 0.0)
    chance, runtime = random.Random(seed), Frozen()
    stores = [SQLite(path).open(runtime, "n"), Memory(f"same-{seed}").open(runtime, "n")]
    owner = Owner("h", 1, "c")
    tickets: list[tuple[str, Ticket]] = []
    views: list[list[object]] = [[], []]
    crowd = seed % 2 == 0
    for _ in range(350):
        kind = chance.choice(list(Kind))
        name = kind.value if chance.random() < 0.97 else "mutex"
        mode = chance.choice([mode for mode in RULES if mode.kind is kind])
        what = chance.random()
        if what < 0.45 or not tickets:
            lease = chance.choice([3.0, 30.0, 300.0])
            terms = LeaseTerms(mode, owner, lease, lock_delay=chance.choice([0.0, 0.0, 2.0]))
            mates = [ticket.id for where, ticket in tickets if where == name]
            alongside = chance.choice(mates) if mates and kind is Kind.READ_WRITE and chance.random() < 0.4 else ""
            one = (name, Ticket(ticket_id(chance.randbytes(16)), terms, alongside))
            tickets.append(one)
            join = chance.random() < 0.9
            outcomes = [outcome(store.try_acquire(*one, join=join, within=1)) for store in stores]
        elif what < 0.6:
            one = chance.choice(tickets)
            outcomes = [outcome(store.try_acquire(*one, join=True, within=1)) for store in stores]
            for store in stores:  # the SQLite store may leave a waiter's expiry as it was
                finish(store.renew([one], within=1))
        elif what < (0.75 if crowd else 0.9):
            one = tickets.pop(chance.randrange(len(tickets)))
            how = chance.choice(list(ReleaseReason))
            there = any(one[1].id in str(view) for view in views[0])
            outcomes = [outcome(store.release(*one, reason=how, within=1)) for store in stores]
            if not there:  # a void entry far back in the queue may still have its row
                outcomes = [None, None]
        elif what < 0.95:
            some = chance.sample(tickets, min(5, len(tickets)))
            outcomes = [finish(store.renew(some, within=1)) for store in stores]
        else:
            runtime.at += chance.choice([0.5, 2.5, 20.0])
            outcomes = [None, None]
        assert outcomes[0] == outcomes[1]
        views = [sorted((shown(view) for view in finish(store.inspect(""))), key=str) for store in stores]
        assert views[0] == views[1]
    for store in stores:
        finish(store.close())


@pytest.mark.parametrize("seed", range(4))
def test_the_plain_case_answers_and_writes_as_the_steps_do(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random histories of short queues, in two files; in one of them nothing is plain."""
    monkeypatch.setattr("leasehold.stores.sqlite.database.boottime", lambda: 0.0)
    plainly, taken = [True], Counter[str]()

    def switchable(what: str, otherwise: object) -> None:
        original = getattr(plain, what)

        def call(*args: Any) -> object:
            found = original(*args) if plainly[0] else otherwise
            taken[what if found else f"no {what}"] += plainly[0]
            return found

        monkeypatch.setattr(plain, what, call)

    switchable("acquire", None)
    switchable("release", False)
    chance, runtime = random.Random(seed), Frozen()
    stores = [SQLite(tmp_path / f"{way}.db").open(runtime, "n") for way in ("plain", "steps")]
    tickets: list[tuple[str, Ticket]] = []
    for _ in range(400):
        what, old = chance.random(), chance.choice(tickets[-6:]) if tickets else None
        if old is None or what < 0.4:
            mode = chance.choice(RULES[:2] if chance.random() < 0.6 else RULES)
            terms = LeaseTerms(mode, Owner("h", 1, "c"), 30.0, lock_delay=chance.choice([0.0, 2.0]), meta='{"ü": 1}')
            tickets.append((f"{mode.kind} {chance.choice('ab')}", Ticket(ticket_id(chance.randbytes(16)), terms)))
        elif what > 0.9:
            runtime.at += chance.choice([0.5, 1.0, 2.5, 40.0, 700.0])
        join, reason = chance.random() < 0.3, chance.choice((ReleaseReason.RELEASE,) * 5 + (ReleaseReason.BREAK,))
        outcomes, found = [], []
        for plainly[0], store in zip((True, False), stores, strict=True):
            if old is None or what < 0.4:
                outcomes.append(outcome(store.try_acquire(*tickets[-1], join=join, within=1)))
            elif what < 0.5:
                outcomes.append(outcome(store.try_acquire(*old, join=join, within=1)))
            elif what <= 0.9:
                outcomes.append(outcome(store.release(*old, reason=reason, within=1)))
            db = store._database._connection
            found.append([db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in TABLES])
        if 0.5 <= what <= 0.9 and old is not None and len(tickets) > 4:
            tickets.remove(old)
        assert outcomes[:1] == outcomes[1:]
        assert found[0] == found[1]
    assert min(taken[what] for what in ("acquire", "no acquire", "release", "no release")) > 10, taken
    for store in stores:
        finish(store.close())


def outcome(work: Coroutine[Any, Any, Any]) -> object:
    try:
        answer = finish(work)
    except NameInUse:
        return "wrong kind"
    if isinstance(answer, Granted):
        return answer.token
    return answer if isinstance(answer, bool) else "wait"


def shown(view: Any) -> object:
    def entry(one: Any) -> object:
        return one.ticket.id, one.token, round(one.expires, 3)

    return view.name, view.token, {entry(one) for one in view.holders}, [entry(one) for one in view.waiters]


def test_an_upgrade_far_behind_in_the_queue_passes_all(path: Path) -> None:
    """It waits behind more writers than a step reads, and enters first; the row has all that decides."""
    runtime = Frozen()
    store, owner = SQLite(path).open(runtime, "n"), Owner("h", 1, "c")

    def ticket(mode: LockMode, alongside: str = "") -> Ticket:
        return Ticket(ticket_id(os.urandom(16)), LeaseTerms(mode, owner, 60.0), alongside)

    def claim(mine: Ticket) -> bool:
        return isinstance(finish(store.try_acquire("rw", mine, join=True, within=5)), Granted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leasehold.stores.sqlite.database.boottime", lambda: 0.0)
        reader = ticket(LockMode(Kind.READ_WRITE, exclusive=False, fair=True))
        upgradeable = ticket(LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True))
        assert claim(reader)
        assert claim(upgradeable)
        writers = [ticket(LockMode(Kind.READ_WRITE, fair=True)) for _ in range(3 * rows.WINDOW)]
        assert [claim(writer) for writer in writers] == [False] * len(writers)
        upgrade = ticket(LockMode(Kind.READ_WRITE, fair=True), upgradeable.id)
        assert not claim(upgrade)
        writers.append(ticket(LockMode(Kind.READ_WRITE, fair=True)))
        assert not claim(writers[-1])
        assert finish(store.release("rw", reader, reason=ReleaseReason.RELEASE, within=5))
        (view,) = finish(store.inspect("rw", exact=True))
        assert [entry.ticket for entry in view.holders] == [upgradeable, upgrade]
        assert [entry.ticket for entry in view.waiters] == writers
        finish(store.close())


def test_a_step_costs_the_same_with_a_thousand_waiters(path: Path, locks: Client) -> None:
    def read_rows(waiting: int) -> int:
        name = f"q{waiting}"
        with locks.lock(name):
            terms = LeaseTerms(LockMode(fair=True), Owner("h", 1, "c"), 60.0)
            for _ in range(waiting):
                finish(locks.store.try_acquire(name, Ticket(ticket_id(os.urandom(16)), terms), join=True, within=5))
            seen: list[int] = []
            original = rows.queue_snapshot.entry_of

            def counted(row: Any) -> Any:
                seen.append(1)
                return original(row)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rows.queue_snapshot, "entry_of", counted)
                finish(locks.store.try_acquire(name, Ticket(ticket_id(os.urandom(16)), terms), join=True, within=5))
            return len(seen)

    assert read_rows(1000) == read_rows(20) <= 12


def test_unused_rows_are_swept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client.from_url(f"sqlite:{path}") as locks:
        for number in range(150):
            with locks.lock(f"n{number}") as hold:
                last = hold.token
        finish(locks.store.compare_and_set("short", Change(b"1", ttl=0.01)))
        finish(locks.store.compare_and_set("long", Change(b"1")))
        kept = locks.lock("kept", lease=86_000).acquire()
        assert kept is not None
    with Client.from_url(f"sqlite:{path}") as locks:
        kept = locks.lock("kept", lease=86_000).acquire()
        assert kept is not None
        dead = Ticket(ticket_id(os.urandom(16)), LeaseTerms(LockMode(), Owner("h", 1, "c"), 0.05))
        finish(locks.store.try_acquire("abandoned", dead, join=True, within=1))
        time.sleep(0.06)
        monkeypatch.setattr(steps, "IDLE_LIFE", 30.0)  # not longer than the machine has been up, by whose clock it is
        raw(path, "UPDATE name SET used = used - ?", int((steps.IDLE_LIFE + 1) * 1e9))
        monkeypatch.setattr(steps, "SWEEP_EVERY", 1)
        monkeypatch.setattr(BlockingRuntime, "wall_us", staticmethod(lambda: 1))
        for _ in range(4):
            with locks.lock("used"):
                pass
        left = raw(path, "SELECT CAST(name AS TEXT) FROM name ORDER BY name")
        assert left == [["kept"], ["used"]]
        assert raw(path, "SELECT CAST(name AS TEXT) FROM cell") == [["long"]]
        assert raw(path, "SELECT CAST(name AS TEXT) FROM name WHERE holder <> ''") == [["kept"]]
        assert raw(path, "SELECT count(*) FROM entry") == [[0]]
        kept.raise_if_lost()
        with locks.lock("n149") as hold:  # forgotten, and the wall clock was set back to 1970
            assert hold.token > last
        kept.release()


def test_a_name_in_use_for_hours_is_kept_after_its_release(path: Path, locks: Client) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    raw(path, "UPDATE name SET used = used - ?", int((steps.IDLE_LIFE + 1) * 1e9))
    hold.release()
    ((behind,),) = raw(path, "SELECT used FROM name")
    assert boottime() - behind / 1e9 < 600
