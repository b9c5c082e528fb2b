"""Random sequences of lease rows on a model of an SQL server and on a real one: rows, waits and errors side by side.

Several sessions send the statements of a dialect, in transactions that lock names, read and write their entries, and
commit. A request waits on both or on none, until the same session lets go of what it waits for. Rows must be equal in
some order, but for times: what is a time on one must be one on the other.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from model_sequences import Play, Steps, chance
from sql_sides import Modelled, Pair, Real, RealLine, Servers

from leasehold.stores._sql.row_holder import NOBODY
from leasehold.stores._sql.transport import Row, Statement, Value
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

SESSIONS = 4
NAMES = (b"a", b"b", b"c")
WITHIN = 20.0
"""Seconds that a session waits for a lock: longer than any sequence takes."""

STILL_WAITS = 0.04
"""Seconds after which a real request that has no answer counts as waiting."""

FAR, PAST = 4 * 10**18, 1
TIMES = range(10**14, FAR)
"""What is read as a time: nothing else in rows is so large, and not yet so far away."""


class Playing:
    """One random sequence on both."""

    def __init__(self, harness: SimulatedHarness, servers: Servers, seed: int) -> None:
        self.harness = harness
        self.servers = servers
        self.dialect = servers.dialect
        self.seed = seed
        self.chance = chance(seed, -1)
        self.space = f"model-{secrets.token_hex(8)}".encode()
        self.model = servers.model(harness.scheduler)
        self.pairs = [Pair(Real(servers.real()), Modelled()) for _ in range(SESSIONS)]
        self.ids: dict[bytes, int] = {}
        self.tickets = [f"{secrets.token_hex(8)}-{number}" for number in range(4)]
        self.log: list[str] = []
        self.seen = Counter[str]()

    # --- one request on both -----------------------------------------------------------------------------------

    async def both(
        self, pair: Pair, statements: Sequence[Statement], modelled: Sequence[Statement] | None = None
    ) -> None:
        """Send a request, another one to the model if it is spelled otherwise there, and compare what comes of it."""
        shown = "; ".join(f"{' '.join(text.split())} {args or ''}" for text, args in statements)
        self.log.append(f"{self.pairs.index(pair)}: {shown}")
        pair.real.send(statements)
        assert pair.modelled.line is not None
        pair.modelled.answers.clear()
        pair.modelled.line.send(self.servers.sent(modelled or statements))
        await self.settle()

    async def settle(self) -> None:
        """Compare all sessions: who is answered, and with what."""
        await self.harness.sleep(0.05)
        for pair in self.pairs:
            if pair.real.thread is None:
                continue
            answered = bool(pair.modelled.answers)
            real = pair.real.answer(5.0 if answered else STILL_WAITS)
            number = self.pairs.index(pair)
            assert (real is not None) == answered, self.told(f"{number}: {real!r} and {pair.modelled.answers!r}")
            if not answered:
                self.seen["waits"] += 1
                pair.waits = True
                continue
            if pair.waits:
                self.seen["waited"] += 1
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
        if (error := self.servers.error(answer)) is not None:
            self.seen[error] += 1
            return error
        self.seen.update("rows" for rows in answer if rows)
        return [sorted((tuple(map(self.word, row)) for row in rows), key=repr) for rows in answer]

    def word(self, value: Any) -> Any:
        if isinstance(value, int) and value in TIMES:
            return "time"
        return bytes(value) if isinstance(value, bytearray | memoryview) else value

    # --- steps -------------------------------------------------------------------------------------------------

    def key(self, name: bytes) -> tuple[Value, ...]:
        return self.space, name

    def whole(self, *statements: Statement) -> list[Statement]:
        """Return a transaction of one request."""
        return [*self.servers.opening(WITHIN), *statements, *self.servers.commit]

    async def add(self, pair: Pair, name: bytes) -> None:
        """Add a name, and learn its id."""
        await self.both(pair, self.whole(Statement(self.dialect.add_name, self.key(name))))

    async def begin(self) -> None:
        """Add all names, and let them have the same ids on both."""
        for number, pair in enumerate(self.pairs):
            pair.modelled.connect(self.model, number)
            await self.greet(pair)
        for number, name in enumerate(NAMES):
            await self.add(self.pairs[number % 2], name)
        line, db = self.servers.real(), self.model.tables.db
        db.execute("UPDATE leasehold_name SET id = -id")  # so that no id of the real server is taken
        for number, name in self.rows_of(line, self.dialect.names, (self.space, b"a", b"z", -1)):
            self.ids[bytes(name)] = number
            db.execute("UPDATE leasehold_name SET id = ? WHERE space = ? AND name = ?", (number, self.space, name))
        line.abort()

    async def greet(self, pair: Pair) -> None:
        """Say hello to the model, if it wants that."""

    def rows_of(self, line: RealLine, text: str, args: tuple[Value, ...]) -> list[Row]:
        """Return the first two columns of the rows of the real server."""
        return [row[:2] for row in line.ask([Statement(text, args)])[0]]

    async def step(self) -> None:
        ready = [pair for pair in self.pairs if not pair.waits]
        if not ready:
            return
        pair = self.chance.choice(ready)
        await self.chance.choice(self.idle_steps() if pair.locked is None else self.busy_steps(pair))(pair)

    def idle_steps(self) -> Sequence[Callable[[Pair], Awaitable[None]]]:
        """Return what a session does that is in no transaction."""
        return self.locks, self.locks, self.locks, self.passes_over, self.looks, self.adds, self.takes, self.takes

    def busy_steps(self, pair: Pair) -> Sequence[Callable[[Pair], Awaitable[None]]]:
        """Return what a session does in a transaction."""
        return self.reads, self.writes, self.writes, self.renews, self.rolls_back, self.locks, self.hangs_up

    def crowded(self) -> bool:
        """Return whether a waiter may have to wait once more: with two of them, their order is chance."""
        return any(pair.waits and pair.goes_on for pair in self.pairs)

    def most_at_once(self) -> int:
        """Return how many names one may lock in one request."""
        return 1 if self.crowded() else 2

    async def locks(self, pair: Pair) -> None:
        """Lock names in order, all of which come after those that are locked, as all our transactions do."""
        left = [name for name in NAMES if not pair.locked or name > max(pair.locked)]
        if left:
            count = self.chance.randint(1, min(self.most_at_once(), len(left)))
            await self.lock(pair, sorted(self.chance.sample(left, count)))

    async def lock(self, pair: Pair, names: list[bytes], within: float = WITHIN) -> None:
        begin = [] if pair.locked is not None else self.servers.opening(within)
        asked = [Statement(self.dialect.lock_name, self.key(name)) for name in names]
        fronts = [Statement(self.dialect.front, (*self.key(name), 4)) for name in names]
        pair.asks_for, pair.goes_on = names, len(names) > 1
        await self.both(pair, [*begin, *asked, *fronts])

    async def passes_over(self, pair: Pair) -> None:
        """Lock those that are not locked."""
        names = self.chance.sample(NAMES, 2)
        await self.both(pair, [*self.servers.opening(WITHIN), self.dialect.lock_names(self.space, sorted(names))])
        rows = pair.modelled.answers[0][2]
        pair.locked = [bytes(name) for _, name in rows]

    def sights(self) -> list[Statement]:
        """Return what one may look at without a lock."""
        return [
            self.dialect.entry_states(self.tickets),
            Statement(self.dialect.names, (self.space, b"a", b"z", 0)),
            Statement(self.dialect.clock),
            Statement(self.dialect.read_cell, self.key(b"cell")),
        ]

    async def looks(self, pair: Pair) -> None:
        """Look at what is committed, without a lock."""
        await self.both(pair, self.whole(self.chance.choice(self.sights())))

    async def adds(self, pair: Pair) -> None:
        """Add a name that is there: MySQL waits for the session that locked it."""
        if not self.crowded():
            pair.goes_on = True
            await self.add(pair, self.chance.choice(NAMES))

    async def takes(self, pair: Pair) -> None:
        """Take the plain case, which may wait for the name's row; at times for a ticket that is refused."""
        if self.crowded():
            return
        name, ticket = self.chance.choice(NAMES), self.chance.choice(self.tickets)
        key = self.key(name)
        if self.chance.random() < 0.5:
            rest = (self.chance.randrange(2), 10**13, 0, "höst:1:x", '{"a": "; \'"}')
            statement = Statement(self.dialect.acquire_free, (*key, ticket, *rest))
        else:
            statement = Statement(self.dialect.release_held, (*key, ticket))
        await self.both(pair, [self.servers.alone(statement)])
        answer = pair.modelled.answers[-1] if pair.modelled.answers else []
        self.seen["changed alone"] += bool(answer and answer[0] and answer[0][0][0])

    async def reads(self, pair: Pair) -> None:
        if not pair.locked:
            return
        name, ticket = self.chance.choice(pair.locked), self.chance.choice(self.tickets)
        asked = [
            Statement(self.dialect.entries, (*self.key(name), 3)),
            Statement(self.dialect.edges, (*self.key(name), ticket)),
            Statement(self.dialect.front, (*self.key(name), 5)),
        ]
        await self.both(pair, asked)

    async def writes(self, pair: Pair) -> None:
        """Change entries of a name that is locked, and commit."""
        if pair.locked:
            changes = self.changes(self.chance.choice(pair.locked))
            pair.locked = None
            await self.both(pair, [*changes, *self.servers.commit])

    def changes(self, name: bytes) -> list[Statement]:
        """Return what changes entries of a name, and the name."""
        ticket, other = self.chance.sample(self.tickets, 2)
        place, token = self.chance.choice(((0, 7), (1 + self.tickets.index(ticket), None)))
        expires = self.chance.choice((FAR, FAR, PAST))
        entry = (ticket, place, token, expires, "mutex", 1, 0, 1, 1, 1, 10**13, 0, "höst:1:x", '{"a": "; \'"}', "", "")
        number = self.ids[name]
        holder = self.chance.choice((NOBODY, (other, 9, expires, 1, 10**13, 0, "höst:1:x", '{"a": "; \'"}')))
        return [
            Statement(self.dialect.drop_entry, (ticket, number)),
            Statement(self.dialect.add_entry, (number, *entry)),
            Statement(self.dialect.set_entry, (1 + self.tickets.index(other), None, expires, "7", other, number)),
            Statement(self.dialect.set_name, (9, 0, 8, self.chance.randrange(2), *holder, number)),
            *([Statement(self.dialect.refuse, (ticket, *self.key(name)))] if self.chance.random() < 0.2 else ()),
        ]

    async def renews(self, pair: Pair) -> None:
        if not pair.locked:
            return
        numbers, tickets = [self.ids[name] for name in pair.locked], self.chance.sample(self.tickets, 2)
        pair.locked = None
        asked = [*self.dialect.renew(numbers, tickets), self.dialect.results(numbers, tickets)]
        await self.both(pair, [*asked, *self.servers.commit])

    async def rolls_back(self, pair: Pair) -> None:
        pair.locked = None
        await self.both(pair, self.servers.rollback)

    async def hangs_up(self, pair: Pair) -> None:
        """End the connection in a transaction: what it has locked is free."""
        pair.real.line.abort()
        assert pair.modelled.line is not None
        pair.modelled.line.end()
        pair.locked = None
        await self.noticed(pair.real.line)
        pair.real, pair.modelled = Real(self.servers.real()), Modelled()
        pair.modelled.connect(self.model, self.pairs.index(pair))
        self.log.append(f"{self.pairs.index(pair)} hangs up")
        await self.greet(pair)
        await self.settle()

    async def noticed(self, line: Any) -> None:
        """Wait until the servers have noticed that a connection has ended."""
        await self.passes(STILL_WAITS)

    async def passes(self, seconds: float) -> None:
        """Let time pass on both."""
        threading.Event().wait(seconds)
        await self.harness.sleep(seconds)

    async def random_steps(self, steps: Steps) -> None:
        for number in steps:
            self.chance = chance(self.seed, number)
            self.log.append(f"-- {number}")
            await self.step()
        while any(pair.waits or pair.locked is not None for pair in self.pairs):
            for pair in self.pairs:
                if pair.locked is not None and not pair.waits:
                    await self.rolls_back(pair)

    def close(self) -> None:
        for pair in self.pairs:
            pair.real.line.abort()


def play(kind: type[Playing], servers: Servers, steps: Callable[[Any], Awaitable[None]], seed: int = 1) -> Counter[str]:
    """Let steps happen on both; return what was seen."""
    harness, seen = SimulatedHarness(seed), Counter[str]()

    async def body(_: Harness) -> None:
        playing = kind(harness, servers, seed)
        try:
            await playing.begin()
            await steps(playing)
        finally:
            playing.close()
        seen.update(playing.seen)

    harness.run(body)
    return seen


def at_random(kind: type[Playing], servers: Servers) -> Play:
    """Return what plays random sequences."""
    return lambda seed, steps: play(kind, servers, lambda playing: playing.random_steps(steps), seed)
