"""The model of PostgreSQL beside a real server: the same requests on sessions side by side, rows, waits and messages.

Beside what all lease rows have in common go cells, which are locked, written and dropped, names that are locked by who
sweeps, and messages: one more session listens, and hears on both what was committed, in the same order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import pytest
from model_sequences import compare_many, differs
from sql_sequences import FAR, NAMES, PAST, WITHIN, Playing, at_random, play
from sql_sides import Pair, Servers

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores._sql.transport import Statement
from leasehold.stores.postgres.advisory import SESSION_LIMITS
from leasehold.stores.postgres.connection import settings
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.errors import Broken, ServerError
from leasehold.stores.postgres.connection.exchange import COMMIT, Alone
from leasehold.stores.postgres.connection.notifications import SUBSCRIBERS, channel_number
from leasehold.stores.postgres.connection.transaction import BEGIN, LIMITS, ROLLBACK
from leasehold.stores.postgres.statements import DIALECT
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.runtimes.virtual import Machine, Scheduler
from leasehold_lab.servers import PostgresServer
from models.net import Connection
from models.sql.postgres import PostgresModel
from models.sql.rows import Locks

BY_DAY, BY_NIGHT = 12, 1_000
LENGTH = 30
CELLS = (b"cell", b"other")
STALL = 60.0
"""Seconds after which the server ends a transaction that stands idle: longer than any sequence takes."""

UNREAD = {LIMITS: [("", "", "")], SESSION_LIMITS: [("",)]}
"""How limits are written when they are set; they are not read."""


class Real:
    """A connection to the real server."""

    def __init__(self, url: str) -> None:
        self._runtime = BlockingRuntime()
        self._transport = BlockingTransport(
            self._runtime, settings.from_url(parse(url)), lambda message: None, lambda: None
        )
        self.link = finish(self._transport.connect(self._runtime.now() + 5.0))
        self.backend = self.link.backend

    def ask(self, statements: Sequence[Statement]) -> Any:
        try:
            answers = finish(self._transport.run(self.link.exchange(statements), self._runtime.now() + 60.0))
        except (ServerError, Broken, TimeoutError) as error:
            return error
        return [UNREAD.get(text, rows) for (text, _), rows in zip(statements, answers, strict=True)]

    def heard(self, last: str) -> list[str]:
        """Return the messages up to one, without it."""
        messages, until = list[str](), time.monotonic() + 5.0
        while last not in messages:
            assert time.monotonic() < until
            self.ask([])
            while (note := self.link._pgconn.notifies()) is not None:
                messages.append(bytes(note.extra).decode())
        return messages[:-1]

    def abort(self) -> None:
        if self.link.open:
            self.link.shut()
            self._transport.drop(self.link)


class PostgresServers(Servers):
    dialect = DIALECT
    commit, rollback = (COMMIT,), (ROLLBACK,)

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.url

    def opening(self, within: float) -> Sequence[Statement]:
        return BEGIN, Statement(LIMITS, (f"{int(within * 1000)}ms", f"{int(STALL * 1000)}ms"))

    def alone(self, statement: Statement) -> Statement:
        return Alone(*statement)

    def real(self) -> Real:
        return Real(self._url)

    def model(self, scheduler: Scheduler) -> PostgresModel:
        return PostgresModel(scheduler)

    def sent(self, statements: Sequence[Statement]) -> Sequence[Statement]:
        return tuple(statements)

    def error(self, answer: Any) -> str | None:
        return f"error {answer.code}" if isinstance(answer, ServerError) else None


class PostgresPlaying(Playing):
    """With cells, sweeping, and messages."""

    servers: PostgresServers

    def __init__(self, harness: SimulatedHarness, servers: PostgresServers, seed: int) -> None:
        super().__init__(harness, servers, seed)
        self.channel, self.unheard = (f"leasehold_{secrets.randbits(31):08x}_{whose}" for whose in ("ours", "nobodys"))
        self.ear, self.said = servers.real(), 0
        self.messages: list[str] = []
        self.cell: dict[Pair, bytes] = {}

    async def begin(self) -> None:
        await super().begin()
        for cell in CELLS:
            await self.both(self.pairs[0], self.whole(Statement(self.dialect.add_cell, (self.space, cell))))
        shown = Statement(
            "SELECT pg_advisory_lock_shared($1::int, $2::int)", (SUBSCRIBERS, channel_number(self.channel))
        )
        listening = (Statement(f'LISTEN "{self.channel}"'), shown)
        assert not isinstance(self.ear.ask(listening), Exception)
        line = self.model.connect(Machine("ear"), self.hears, lambda: None)
        line.send(())
        line.send(listening)
        await self.harness.sleep(0.05)

    async def greet(self, pair: Pair) -> None:
        assert pair.modelled.line is not None
        pair.modelled.line.send(())
        await self.harness.sleep(0.05)
        pair.modelled.answers.clear()

    def hears(self, answer: Any, message: bool) -> None:
        if message:
            self.messages.append(answer)

    def close(self) -> None:
        super().close()
        self.ear.abort()

    async def noticed(self, line: Real) -> None:
        await self.harness.sleep(0.05)
        asked = Statement("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", (line.backend,))
        while self.ear.ask([asked]) != [[(0,)]]:
            await self.passes(0.005)

    # --- steps -------------------------------------------------------------------------------------------------

    def idle_steps(self) -> Sequence[Callable[[Pair], Awaitable[None]]]:
        return *super().idle_steps(), self.locks_a_cell, self.locks_a_cell, self.drops_cells, self.sweeps

    async def step(self) -> None:
        self.cell = {pair: cell for pair, cell in self.cell.items() if pair.waits or pair.locked is not None}
        await super().step()
        await self.listens()

    def most_at_once(self) -> int:
        return 1 if any(pair.waits for pair in self.pairs) else 2

    async def locks(self, pair: Pair) -> None:
        """Lock names; not while somebody waits who goes on after that: all who may go on are told at the same time."""
        if not self.crowded():
            await super().locks(pair)

    def sights(self) -> list[Statement]:
        assert self.dialect.listening is not None
        return [
            *super().sights(),
            self.dialect.listening([self.channel, self.unheard]),
            Statement(self.dialect.some_names, (FAR, 4, min(self.ids.values()) - 1, 2)),
            Statement(self.dialect.unexpired, (self.ids[self.chance.choice(NAMES)],)),
        ]

    def changes(self, name: bytes) -> list[Statement]:
        assert self.dialect.notify is not None
        sent = [
            Statement(
                self.dialect.notify, (self.chance.choice((self.channel, self.unheard)), self.chance.choice("xyz"))
            )
            for _ in range(self.chance.randrange(4))
        ]
        return [*super().changes(name), *sent]

    async def listens(self) -> None:
        """Compare what was heard by now."""
        self.said += 1
        last = f"last {self.said}"
        assert self.dialect.notify is not None
        self.ear.ask([Statement(self.dialect.notify, (self.channel, last))])
        real = self.ear.heard(last)
        assert real == self.messages, self.told(f"heard {real}, of the model {self.messages}")
        self.seen["messages"] += len(real)
        self.messages.clear()

    async def locks_a_cell(self, pair: Pair) -> None:
        """Lock a cell, to write it."""
        if self.crowded():
            return
        self.cell[pair] = cell = self.chance.choice(CELLS)
        pair.asks_for, pair.goes_on = [], False
        await self.both(pair, [*self.servers.opening(WITHIN), Statement(self.dialect.lock_cell, (self.space, cell))])

    def busy_steps(self, pair: Pair) -> Sequence[Callable[[Pair], Awaitable[None]]]:
        if pair in self.cell:
            return self.writes_a_cell, self.writes_a_cell, self.rolls_back, self.hangs_up
        return super().busy_steps(pair)

    def race(self, pair: Pair) -> bool:
        """Say whether several wait for one row of this pair: once it has changed, they race for its new version."""
        waiting = [other for other in self.pairs if other.waits]
        cells = sum(self.cell.get(other) == self.cell[pair] for other in waiting) if pair in self.cell else 0
        names = [sum(name in (other.asks_for or ()) for other in waiting) for name in pair.locked or ()]
        return max((cells, *names)) > 1

    async def writes(self, pair: Pair) -> None:
        await (self.rolls_back(pair) if self.race(pair) else super().writes(pair))

    async def writes_a_cell(self, pair: Pair) -> None:
        """Write the cell that is locked, and commit."""
        if self.race(pair):
            await self.rolls_back(pair)
            return
        value, expires = self.chance.choice((b"v", b"\x00\xff")), self.chance.choice((FAR, FAR, PAST))
        change = Statement(self.dialect.set_cell, (value, 3, 7, expires, 9, self.space, self.cell[pair]))
        pair.locked = None
        await self.both(pair, [change, *self.servers.commit])

    async def drops_cells(self, pair: Pair) -> None:
        """Drop those whose life is over, and add them anew."""
        await self.both(pair, self.whole(Statement(self.dialect.drop_cells, (100,))))
        for cell in CELLS:
            await self.both(pair, self.whole(Statement(self.dialect.read_cell, (self.space, cell))))
            await self.both(pair, self.whole(Statement(self.dialect.add_cell, (self.space, cell))))

    async def sweeps(self, pair: Pair) -> None:
        """Lock an unlocked name, if the session is idle."""
        name = self.chance.choice(NAMES)
        asked = Statement(self.dialect.lock_idle, (self.ids[name], self.chance.choice((FAR, 8)), 1))
        await self.both(pair, [*self.servers.opening(WITHIN), asked])
        pair.locked = [name] if pair.modelled.answers[0][2] else []


@pytest.fixture
def servers(postgres_server: PostgresServer) -> PostgresServers:
    return PostgresServers(postgres_server)


THERE = ("rows", "waits", "waited", "messages")
"""What a day's sequences have in them."""


@pytest.mark.timeout(300)
def test_the_model_answers_as_the_server_does(servers: PostgresServers) -> None:
    seen = compare_many(at_random(PostgresPlaying, servers), BY_DAY, LENGTH)
    assert all(seen[what] for what in THERE)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_model_answers_as_the_server_does_in_many_sequences(servers: PostgresServers) -> None:
    seen = compare_many(at_random(PostgresPlaying, servers), BY_NIGHT, LENGTH)
    assert all(seen[what] for what in THERE)


def test_a_wait_that_is_too_long_fails_the_transaction(servers: PostgresServers) -> None:
    """What it has locked is free at once; and it can only be rolled back."""

    async def steps(playing: PostgresPlaying) -> None:
        holder, first, second, _ = playing.pairs
        await playing.lock(holder, [b"b"])
        await playing.lock(first, [b"a", b"b"], within=0.5)
        assert first.waits
        await playing.passes(0.7)
        await playing.settle()
        assert not first.waits
        await playing.lock(second, [b"a"])
        assert not second.waits
        await playing.reads(first)
        await playing.rolls_back(first)
        await playing.rolls_back(second)
        await playing.rolls_back(holder)

    seen = play(PostgresPlaying, servers, steps)
    assert seen.keys() >= {"error 57014", "error 25P02"}


def locks_nothing(locks: Locks[Any], row: Hashable, who: object) -> bool:
    """Let every session lock every row."""
    return True


def wakes_nobody(locks: Locks[Any], who: object) -> list[Any]:
    """Let go of rows, and let those who wait for them wait on."""
    LET_GO(locks, who)
    return []


def tells_twice(model: PostgresModel, channel: str, message: str) -> None:
    """Send each message twice."""
    NOTIFY(model, channel, message)
    NOTIFY(model, channel, message)


def keeps_locks(model: PostgresModel, line: Connection) -> None:
    """Do not notice that a client is gone."""
    del model.lines[line.number]


LET_GO, NOTIFY = Locks.let_go, PostgresModel._notify
MISTAKES = [
    (Locks, "take", locks_nothing),
    (Locks, "let_go", wakes_nobody),
    (PostgresModel, "_notify", tells_twice),
    (PostgresModel, "over", keeps_locks),
]


@pytest.mark.parametrize(("where", "what", "mistake"), MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_a_model_that_is_wrong_differs(
    servers: PostgresServers, monkeypatch: pytest.MonkeyPatch, where: type, what: str, mistake: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, what, mistake)
    assert differs(at_random(PostgresPlaying, servers), BY_DAY, LENGTH)
