"""The model of MySQL beside a real server: the same requests on sessions side by side, the same rows, waits and errors.

The requests are those of lease rows, spelled as the wire spells them: random ones, in transactions that lock names,
read and write their seats, and commit. A request waits on both or on none, until the same session lets go of what it
waits for. Rows must be equal in some order, but for times: what is a time on one must be one on the other.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from model_sequences import first_seed

from leasehold.runtimes.base import drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.runtimes.virtual import Machine
from leasehold.stores.mysql.statements import DIALECT
from leasehold.stores.url import parse
from leasehold.testing.models.mysql import MySQLModel
from leasehold.testing.models.net import Line
from leasehold.testing.worlds import SimulatedWorld, World
from leasehold.wires.mysql import blocking, settings
from leasehold.wires.mysql.base import Refusal, Silence, joined
from leasehold.wires.mysql.wire import BEGIN, COMMIT, REST, ROLLBACK, limits
from leasehold.wires.sql import Statement, Value

SEQUENCES = 30
LENGTH = 30
SESSIONS = 4
NAMES = (b"a", b"b", b"c")
WITHIN = 20.0
"""Seconds that a session waits for a lock: longer than any sequence takes."""

STILL_WAITS = 0.04
"""Seconds after which a real request that has no answer counts as waiting."""

FAR, PAST = 4 * 10**18, 1
TIMES = range(10**14, FAR)
"""What is read as a time: nothing else in rows is so large, and not yet so far away."""


@dataclass(eq=False)
class Real:
    """One real session: each request in a thread of its own."""

    line: blocking.BlockingLine
    answers: list[Any] = field(default_factory=list[Any])
    thread: threading.Thread | None = None

    def send(self, request: bytes) -> None:
        def ask() -> None:
            try:
                self.answers.append(drive(self.line.run(request, BlockingRuntime().now() + 60.0)))
            except (Refusal, Silence) as error:
                self.answers.append(error)

        self.thread = threading.Thread(target=ask, daemon=True)
        self.thread.start()

    def answer(self, within: float) -> Any:
        """Return the answer, or None."""
        assert self.thread is not None
        self.thread.join(within)
        return self.answers[-1] if not self.thread.is_alive() else None


@dataclass(eq=False)
class Modelled:
    """One session of the model."""

    line: Line | None = None
    answers: list[Any] = field(default_factory=list[Any])

    def connect(self, model: MySQLModel, number: int) -> None:
        self.line = model.connect(Machine(f"m{number}"), lambda answer, _: self.answers.append(answer), lambda: None)


@dataclass(eq=False)
class Pair:
    """One session of each, and what our side of it has done.

    Attributes:
        locked: the names that its transaction has locked; None if it is in none.
        waits: whether its last request has no answer yet.
        asks_for: the names that it will have locked then.
        goes_on: whether its request may have to wait for something else after that.

    """

    real: Real
    modelled: Modelled
    locked: list[bytes] | None = None
    waits: bool = False
    goes_on: bool = False
    asks_for: list[bytes] | None = None


class Playing:
    """One random sequence on both."""

    def __init__(self, world: SimulatedWorld, url: str, seed: int, space: bytes) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.space = space
        self.model = MySQLModel(world.scheduler)
        self.settings = settings.from_url(parse(url))
        self.pairs = [Pair(Real(self._real()), Modelled()) for _ in range(SESSIONS)]
        for number, pair in enumerate(self.pairs):
            pair.modelled.connect(self.model, number)
        self.ids: dict[bytes, int] = {}
        self.tickets = [f"{secrets.token_hex(8)}-{number}" for number in range(4)]
        self.log: list[str] = []
        self.seen = set[str]()

    def _real(self) -> blocking.BlockingLine:
        return drive(blocking.connect(self.settings, BlockingRuntime(), 5.0))

    # --- one request on both -----------------------------------------------------------------------------------

    async def both(self, pair: Pair, statements: Sequence[Statement]) -> None:
        """Send a request, and compare what comes of it."""
        request = joined(statements)
        self.log.append(f"{self.pairs.index(pair)}: {request.decode()}")
        pair.real.send(request)
        assert pair.modelled.line is not None
        pair.modelled.answers.clear()
        pair.modelled.line.send(request)
        await self.settle()

    async def settle(self) -> None:
        """Compare all sessions: who is answered, and with what."""
        await self.world.sleep(0.05)
        for pair in self.pairs:
            if pair.real.thread is None:
                continue
            answered = bool(pair.modelled.answers)
            real = pair.real.answer(5.0 if answered else STILL_WAITS)
            number = self.pairs.index(pair)
            assert (real is not None) == answered, self.told(f"{number}: {real!r} and {pair.modelled.answers!r}")
            if not answered:
                self.seen.add("waits")
                pair.waits = True
                continue
            if pair.waits:
                self.seen.add("waited")
            modelled = pair.modelled.answers[0]
            theirs, ours = self.plain(real), self.plain(modelled)
            self.log.append(f"{number}: -> {ours}")
            assert theirs == ours, self.told(f"{number}: {theirs}\n{ours}")
            pair.waits, pair.real.thread = False, None
            if pair.asks_for is not None:
                pair.locked = [*(pair.locked or []), *pair.asks_for]
                pair.asks_for = None

    def told(self, what: str) -> str:
        return "\n".join([*self.log, what])

    def plain(self, answer: Any) -> Any:
        """Say an answer in words that mean the same on both sides."""
        if isinstance(answer, Refusal):
            self.seen.add(str(answer.code))
            return f"error {answer.code} after {len(answer.answers)}"
        self.seen.update("rows" for rows in answer if rows)
        return [sorted((tuple(map(self.word, row)) for row in rows), key=repr) for rows in answer]

    def word(self, value: Any) -> Any:
        if isinstance(value, int) and value in TIMES:
            return "time"
        return bytes(value) if isinstance(value, bytearray | memoryview) else value

    # --- steps -------------------------------------------------------------------------------------------------

    def key(self, name: bytes) -> tuple[Value, ...]:
        return self.space, name

    async def add(self, pair: Pair, name: bytes) -> None:
        """Add a name, and learn its id."""
        await self.both(pair, [limits(WITHIN), BEGIN, Statement(DIALECT.add_name, self.key(name)), COMMIT, REST])

    async def begin(self) -> None:
        """Add all names, and let them have the same ids on both."""
        for number, name in enumerate(NAMES):
            await self.add(self.pairs[number % 2], name)
        real, model = self._real(), self.model._tables.db
        asked = joined([Statement("SELECT id, name FROM leasehold_name WHERE space = $1", (self.space,))])
        for number, name in drive(real.run(asked, BlockingRuntime().now() + 5.0))[0]:
            self.ids[bytes(name)] = number
            model.execute("UPDATE leasehold_name SET id = ? WHERE space = ? AND name = ?", (number, self.space, name))
        real.abort()

    async def step(self) -> None:
        ready = [pair for pair in self.pairs if not pair.waits]
        if not ready:
            return
        pair = self.chance.choice(ready)
        if pair.locked is None:
            await self.chance.choice((self.locks, self.locks, self.locks, self.passes_over, self.looks, self.adds))(
                pair
            )
        else:
            await self.chance.choice(
                (self.reads, self.writes, self.writes, self.renews, self.rolls_back, self.locks, self.hangs_up)
            )(pair)

    def crowded(self) -> bool:
        """Say whether somebody waits who may have to wait once more: with two such, who comes first is chance."""
        return any(pair.waits and pair.goes_on for pair in self.pairs)

    async def locks(self, pair: Pair) -> None:
        """Lock names in order, all of which come after those that are locked, as all our transactions do."""
        left = [name for name in NAMES if not pair.locked or name > max(pair.locked)]
        if left:
            count = 1 if self.crowded() else self.chance.randint(1, min(2, len(left)))
            await self.lock(pair, sorted(self.chance.sample(left, count)))

    async def lock(self, pair: Pair, names: list[bytes], within: float = WITHIN) -> None:
        begin = [] if pair.locked is not None else [limits(within), BEGIN]
        asked = [Statement(DIALECT.lock_name, self.key(name)) for name in names]
        fronts = [Statement(DIALECT.front, (*self.key(name), 4)) for name in names]
        pair.asks_for, pair.goes_on = names, len(names) > 1
        await self.both(pair, [*begin, *asked, *fronts])

    async def passes_over(self, pair: Pair) -> None:
        """Lock those that nobody has."""
        names = self.chance.sample(NAMES, 2)
        await self.both(pair, [limits(WITHIN), BEGIN, DIALECT.lock_names(self.space, sorted(names))])
        rows = pair.modelled.answers[0][2]
        pair.locked = [bytes(name) for _, name in rows]

    async def looks(self, pair: Pair) -> None:
        """Look at what is committed, without a lock."""
        some = [
            DIALECT.sights(self.tickets),
            Statement(DIALECT.names, (self.space, b"a", b"z", 0)),
            Statement(DIALECT.clock),
            Statement(DIALECT.read_cell, self.key(b"cell")),
        ]
        asked = self.chance.choice(some)
        await self.both(pair, [limits(WITHIN), BEGIN, asked, COMMIT, REST])

    async def adds(self, pair: Pair) -> None:
        """Add a name that is there: it waits for whoever has locked it."""
        if not self.crowded():
            pair.goes_on = True
            await self.add(pair, self.chance.choice(NAMES))

    async def reads(self, pair: Pair) -> None:
        if not pair.locked:
            return
        name, ticket = self.chance.choice(pair.locked), self.chance.choice(self.tickets)
        asked = [
            Statement(DIALECT.seats, (*self.key(name), 3)),
            Statement(DIALECT.edges, (*self.key(name), ticket)),
            Statement(DIALECT.front, (*self.key(name), 5)),
        ]
        await self.both(pair, asked)

    async def writes(self, pair: Pair) -> None:
        """Change seats of a name that is locked, and commit."""
        if not pair.locked:
            return
        name, ticket, other = self.chance.choice(pair.locked), *self.chance.sample(self.tickets, 2)
        place, token = self.chance.choice(((0, 7), (1 + self.tickets.index(ticket), None)))
        expires = self.chance.choice((FAR, FAR, PAST))
        seat = (ticket, place, token, expires, "mutex", 1, 0, 1, 1, 1, 10**13, 0, "höst:1:x", '{"a": "; \'"}', "", "")

        number = self.ids[name]
        changes = [
            Statement(DIALECT.drop_seat, (ticket, number)),
            Statement(DIALECT.add_seat, (number, *seat)),
            Statement(DIALECT.set_seat, (1 + self.tickets.index(other), None, expires, "7", other, number)),
            Statement(DIALECT.set_name, (9, 0, 8, number)),
        ]
        pair.locked = None
        await self.both(pair, [*changes, COMMIT, REST])

    async def renews(self, pair: Pair) -> None:
        if not pair.locked:
            return
        names, tickets = pair.locked, self.chance.sample(self.tickets, 2)

        numbers = [self.ids[name] for name in names]
        pair.locked = None
        await self.both(pair, [DIALECT.renew(numbers, tickets), DIALECT.standings(numbers, tickets), COMMIT, REST])

    async def rolls_back(self, pair: Pair) -> None:
        pair.locked = None
        await self.both(pair, [ROLLBACK, REST])

    async def hangs_up(self, pair: Pair) -> None:
        """End the connection in a transaction: what it has locked is free."""
        pair.real.line.abort()
        assert pair.modelled.line is not None
        pair.modelled.line.end()
        pair.locked = None
        await self.passes(STILL_WAITS)
        pair.real, pair.modelled = Real(self._real()), Modelled()
        pair.modelled.connect(self.model, self.pairs.index(pair))
        self.log.append(f"{self.pairs.index(pair)} hangs up")
        await self.settle()

    async def passes(self, seconds: float) -> None:
        """Let time pass on both."""
        threading.Event().wait(seconds)
        await self.world.sleep(seconds)

    async def random_steps(self) -> None:
        for _ in range(LENGTH):
            await self.step()
        while any(pair.waits or pair.locked is not None for pair in self.pairs):
            for pair in self.pairs:
                if pair.locked is not None and not pair.waits:
                    await self.rolls_back(pair)

    def close(self) -> None:
        for pair in self.pairs:
            pair.real.line.abort()


def play(url: str, steps: Callable[[Playing], Awaitable[None]], seed: int = 1) -> set[str]:
    """Let steps happen on both; return what was seen."""
    world, seen = SimulatedWorld(seed), set[str]()

    async def body(_: World) -> None:
        playing = Playing(world, url, seed, f"model-{secrets.token_hex(8)}".encode())
        try:
            await playing.begin()
            await steps(playing)
        finally:
            playing.close()
        seen.update(playing.seen)

    world.run(body)
    return seen


@pytest.mark.timeout(300)
def test_the_model_answers_as_the_server_does(mariadb_url: str) -> None:
    first, seen = first_seed(), set[str]()
    for number in range(SEQUENCES):
        seen |= play(mariadb_url, Playing.random_steps, first + number)
    assert seen >= {"rows", "waits", "waited"}


@pytest.mark.timeout(120)
def test_the_counter_of_ids_is_waited_for(mariadb_url: str) -> None:
    """Who adds a name that another has locked keeps all from adding names meanwhile."""

    async def steps(playing: Playing) -> None:
        holder, first, second, third = playing.pairs
        await playing.lock(holder, [b"a"])
        await playing.add(first, b"a")
        await playing.add(second, b"b")
        assert first.waits
        assert second.waits
        await playing.lock(third, [b"c"])  # no row of which is added
        assert not third.waits
        await playing.rolls_back(holder)
        assert not first.waits
        assert not second.waits
        await playing.rolls_back(third)

    play(mariadb_url, steps)


@pytest.mark.timeout(120)
def test_a_wait_that_is_too_long_ends_the_statement_only(mariadb_url: str) -> None:
    """The transaction keeps what it has locked until it is rolled back."""

    async def steps(playing: Playing) -> None:
        holder, first, second, _ = playing.pairs
        await playing.lock(holder, [b"b"])
        await playing.lock(first, [b"a", b"b"], within=1.0)
        assert first.waits
        await playing.passes(1.5)
        await playing.settle()
        assert "1205" in playing.seen
        await playing.lock(second, [b"a"])
        assert second.waits
        await playing.rolls_back(first)
        assert not second.waits
        await playing.rolls_back(second)
        await playing.rolls_back(holder)

    play(mariadb_url, steps)
