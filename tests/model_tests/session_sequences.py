"""Random sequences of the locks of sessions on a model of an SQL server and on a real one, side by side.

Several sessions try locks, wait for them, free them, ask who has them, and write down who holds and who waits; they
hang up, end each other, and say nothing for so long that the server ends them. Who waits must wait on both; and what a
session that ended had must go to the same one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from model_sequences import Play, Steps, chance
from sql_sequences import Playing, play
from sql_sides import Modelled, Pair, Real, RealLine, Servers

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold.stores._sql.transport import Statement
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.sql.session_locks import LOOKS_EACH

FIRST = 10**6
"""The number of the model's first session: no other value in rows is like it."""

SILENT = 1.0
"""Seconds of silence that a session may be limited to; MySQL counts whole ones."""

SHORT = 1e-6
"""Seconds of a lease that is over when the next looks."""

SETTLES = 0.2
"""Seconds that the real server may take to notice."""


class SessionServers(Servers):
    """A kind of server: its statements for the locks of sessions, on keys that each sequence has for itself.

    Attributes:
        ends_any: whether it also ends a session that neither has the lock that was named nor waits for it.

    """

    ends_any: ClassVar[bool]

    @abstractmethod
    def number(self, line: Any) -> int:
        """Return the number of a real session."""

    async def greet(self, pair: Pair) -> None:
        """Say hello to the model, if it wants that."""

    @abstractmethod
    def keys(self, space: bytes) -> Sequence[Any]:
        """Return the keys of two locks."""

    @abstractmethod
    def tries(self, key: Any) -> Statement: ...

    @abstractmethod
    def waits(self, key: Any) -> Statement: ...

    @abstractmethod
    def frees(self, key: Any) -> Statement: ...

    @abstractmethod
    def asks(self, keys: Sequence[Any], number: int) -> Sequence[Statement]:
        """Return what asks who has which."""

    @abstractmethod
    def ends(self, number: int, key: Any) -> Sequence[Statement]:
        """Return what ends a session that has a lock, or waits for it."""

    @abstractmethod
    def lives(self, seconds: float) -> Statement:
        """Return what tells the server for how long it keeps the session without news."""

    @abstractmethod
    def takes(self, key: tuple[bytes, bytes], ticket: Ticket, number: int) -> Sequence[Statement]:
        """Return what writes down who holds."""

    @abstractmethod
    def shows(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        """Return what writes down who waits."""

    @abstractmethod
    def others(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        """Return what else is asked of a ticket, of which one is chosen."""

    @abstractmethod
    def known(self, number: int) -> Statement:
        """Return what counts the real sessions of a number."""


class SessionPlaying(Playing):
    """One random sequence on both."""

    servers: SessionServers

    def __init__(self, harness: SimulatedHarness, servers: SessionServers, seed: int) -> None:
        super().__init__(harness, servers, seed)
        self.control: RealLine = servers.real()
        self.keys = servers.keys(self.space)
        self.shown = [ticket(name, lease) for name, lease in zip(self.tickets, (30.0, 30.0, 30.0, SHORT), strict=True)]
        self.model.counts.lines = FIRST
        self.labels: dict[str, str] = {}  # of all sessions that there were, by their numbers on either side
        self.has = {pair: Counter[Any]() for pair in self.pairs}  # how many times over each has which lock
        self.asked: dict[Pair, Any] = {}  # for which lock each waits

    def close(self) -> None:
        super().close()
        self.control.abort()

    # --- numbers of sessions -----------------------------------------------------------------------------------

    def theirs(self, pair: Pair) -> int:
        """Return the number of a real session."""
        return self.servers.number(pair.real.line)

    def ours(self, pair: Pair) -> int:
        """Return the number of a session of the model."""
        assert pair.modelled.line is not None
        return pair.modelled.line.number

    async def greet(self, pair: Pair) -> None:
        """Give the session a name that is the same on both sides."""
        await self.servers.greet(pair)
        await self.harness.sleep(0.05)
        pair.modelled.answers.clear()
        name = f"session {self.pairs.index(pair)}.{len(self.labels) // 2}"
        self.labels |= {str(self.theirs(pair)): name, str(self.ours(pair)): name}

    def word(self, value: Any) -> Any:
        return self.labels.get(str(value).removeprefix("pid:")) or super().word(value)

    # --- steps -------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Let a session do something; what it waits for has come to it, or has not, when the next does."""
        ready = [pair for pair in self.pairs if not pair.waits]
        waiting = [pair for pair in self.pairs if pair.waits]
        steps: list[tuple[Callable[[Pair], Awaitable[None]], Sequence[Pair]]] = [
            *[(step, ready) for step in (self.tries, self.waits, self.waits, self.frees, self.frees, self.asks)],
            *[(step, ready) for step in (self.takes, self.shows, self.others, self.ends, self.hangs_up)],
            (self.hangs_up, waiting),
            (self.is_silent, ready),
        ]
        step, whom = self.chance.choice([(step, whom) for step, whom in steps if whom])
        self.seen[f"step {step.__name__}"] += 1
        await step(self.chance.choice(whom))
        self.inherits()

    def inherits(self) -> None:
        """Take note of those that had to wait and have the lock now."""
        for pair, key in list(self.asked.items()):
            if not pair.waits:
                self.has[pair][key] += 1
                del self.asked[pair]

    def key_of(self) -> Any:
        return self.chance.choice(self.keys)

    async def tries(self, pair: Pair) -> None:
        key = self.key_of()
        await self.both(pair, [self.servers.tries(key)])
        self.has[pair][key] += pair.modelled.answers[0][0][0][0]

    async def waits(self, pair: Pair) -> None:
        """Wait for a lock, but not while holding one for which the holder of this one may wait."""
        key = self.key_of()
        if not +self.has[pair] or self.has[pair][key]:
            self.asked[pair] = key
            await self.both(pair, [self.servers.waits(key)])

    async def frees(self, pair: Pair) -> None:
        key = self.key_of()
        await self.both(pair, [self.servers.frees(key)])
        self.has[pair][key] -= bool(self.has[pair][key])

    async def asks(self, pair: Pair) -> None:
        keys, of = list(self.keys), self.chance.choice(self.pairs)
        theirs, ours = self.servers.asks(keys, self.theirs(of)), self.servers.asks(keys, self.ours(of))
        await self.both(pair, theirs, ours)

    def row(self) -> tuple[bytes, bytes]:
        return self.space, self.chance.choice((b"a", b"b"))

    async def takes(self, pair: Pair) -> None:
        key, ticket = self.row(), self.chance.choice(self.shown)
        theirs, ours = (self.servers.takes(key, ticket, number) for number in (self.theirs(pair), self.ours(pair)))
        await self.both(pair, theirs, ours)

    async def shows(self, pair: Pair) -> None:
        await self.both(pair, self.servers.shows(self.row(), self.chance.choice(self.shown)))

    async def others(self, pair: Pair) -> None:
        some = self.servers.others(self.row(), self.chance.choice(self.shown))
        await self.both(pair, [self.chance.choice(some)])

    # --- the ends of sessions ----------------------------------------------------------------------------------

    async def hangs_up(self, pair: Pair) -> None:
        """End a connection; the server of one that waits looks for that once a second."""
        waited, real, number = pair.waits, pair.real, self.theirs(pair)
        real.line.abort()
        assert pair.modelled.line is not None
        pair.modelled.line.end()
        await self.gone(pair, number, LOOKS_EACH if waited else 0.0)

    async def ends(self, pair: Pair) -> None:
        """End a session that has a lock, or waits for one; or none that has it."""
        key, whose = self.key_of(), self.chance.choice([other for other in self.pairs if other is not pair])
        hit = self.servers.ends_any or self.has[whose][key] > 0 or self.asked.get(whose) == key
        number = self.theirs(whose)
        if hit and whose.waits:
            whose.real.thread = None  # its answer is that it has ended
        await self.both(pair, self.servers.ends(number, key), self.servers.ends(self.ours(whose), key))
        if hit:
            await self.gone(whose, number, 0.0)

    async def is_silent(self, pair: Pair) -> None:
        """Say nothing for longer than the server was told to wait."""
        await self.both(pair, [self.servers.lives(SILENT)])
        number = self.theirs(pair)
        await self.passes(SILENT)
        await self.gone(pair, number, SETTLES)

    async def gone(self, pair: Pair, number: int, within: float) -> None:
        """Wait until both servers have ended a session, and begin another in its place."""
        self.log.append(f"{self.pairs.index(pair)} ends")
        await self.passes(within + 0.05)
        while self.control.ask([self.servers.known(number)])[0][0][0]:
            await self.passes(0.005)
        line = pair.modelled.line
        assert line is not None
        assert not line.open, self.told("the model has not ended the session")
        pair.real.line.abort()
        pair.waits, pair.asks_for = False, None
        self.has[pair] = Counter()
        self.asked.pop(pair, None)
        pair.real, pair.modelled = Real(self.servers.real()), Modelled()
        pair.modelled.connect(self.model, self.pairs.index(pair))
        await self.greet(pair)
        await self.settle()

    async def random_steps(self, steps: Steps) -> None:
        for number in steps:
            self.chance = chance(self.seed, number)
            self.log.append(f"-- {number}")
            await self.step()
        while any(pair.waits for pair in self.pairs):
            for pair in self.pairs:
                if not pair.waits:
                    await self.hangs_up(pair)
            self.inherits()


def ticket(name: str, lease: float) -> Ticket:
    """Return a ticket."""
    return Ticket(name, LeaseTerms(LockMode(), Owner("host", 1, "client"), lease))


def at_random(servers: SessionServers) -> Play:
    """Return what plays random sequences."""
    return lambda seed, steps: play(SessionPlaying, servers, lambda playing: playing.random_steps(steps), seed)
