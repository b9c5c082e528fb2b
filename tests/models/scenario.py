"""What one history is made of, drawn from its seed before it begins: clients, what they do, and what goes wrong when.

Nothing of it is drawn later, so parts can be left out and the rest stays as it was: that is how a history that fails is
made small (`shrinking`). What remains to chance while it runs, delays and the order of what happens at one time, comes
from the same seed.

Many small histories find more than few large ones, down to a size: most of what can go wrong with a lock needs two or
three clients and one or two faults at the wrong moment, and then one more client (`power` measures it).
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

RATE = 0.0049
"""How far a clock's rate may be from true: two clocks differ by less than the library allows for."""

OFFSET = 1e5
"""Seconds that a client's clock may be ahead."""

LATENCIES = ((0.0001, 0.001), (0.0001, 0.001), (0.001, 0.05), (0.001, 0.4))
"""Seconds that a message takes, at least and at most: in one data centre, and far away."""

LONGEST = 3.0
"""Seconds that a stop or a cut may last: longer than a lease."""

MOST_FAULTS = 4


class Kind(enum.Enum):
    """What goes wrong."""

    STALL = "a client is stopped"
    SUSPEND = "a client's machine sleeps, and its connections end"
    KILL = "a client is killed, and another comes"
    HOLD = "requests of a client are held back"
    LATE = "requests of a client are held back on the connection that it has, and overtaken on the next"
    ONE_WAY = "replies to a client are held back"
    RESET = "a client's connection ends; what was under way may arrive"
    REFUSE = "a client is cut off, and cannot connect"
    SLOW = "a client's link is slow"
    CLOSE = "a client is closed while its locks are in use, and another comes"
    REPEAT = "requests of a client are carried out twice"
    DEAF = "messages to a client are lost"
    WALL = "a client's wall clock is set"
    RESTART = "a server restarts, with all that it had"
    SCRIPTS = "a server forgets its scripts"
    LEADER = "the servers choose another leader"
    REPLACED = "the leader is stopped and replaced, and goes on without knowing it"
    COMPACT = "the servers tidy up: old revisions, empty folders"
    REVOKE = "an operator ends a client's session"
    ROLLBACK = "transactions are rolled back: deadlock, serialization"
    MOVE = "another primary is chosen, which has all"
    SLOT = "a slot goes to another node, and its keys"
    FLUSH = "a server loses its keys"
    FORGET = "a server restarts without its keys"
    FORWARD = "a server's clock is set forward"
    BACK = "a server's clock is set back"
    FAILOVER = "another primary is chosen, which lacks the last writes"

    __hash__ = object.__hash__

    @property
    def cuts(self) -> bool:
        """Whether a client cannot reach the store meanwhile, or not in the usual time."""
        return self in CUTTING


CUTTING = frozenset(
    {
        Kind.SUSPEND, Kind.HOLD, Kind.LATE, Kind.ONE_WAY, Kind.RESET, Kind.REFUSE, Kind.SLOW, Kind.RESTART, Kind.FORGET,
        Kind.LEADER, Kind.REPLACED, Kind.REVOKE, Kind.MOVE, Kind.SLOT, Kind.FAILOVER, Kind.ROLLBACK,
    }
)  # fmt: skip

OF_CLIENTS = (
    Kind.STALL, Kind.SUSPEND, Kind.KILL, Kind.HOLD, Kind.ONE_WAY, Kind.RESET, Kind.REFUSE, Kind.SLOW, Kind.WALL,
)  # fmt: skip
"""What may happen to a client of any store."""


OUTAGE_KINDS = frozenset({Kind.ONE_WAY, Kind.RESET})
"""An outage in which clients retry: their connections end, and no reply comes on the next ones."""

PASSED = 0.25
"""The part of the histories in which holds are passed on, and clients are closed under use."""

PASSED_ON = 0.6
"""The part of the holds of such a history that one task acquires for another."""

PATIENT = 0.2
"""The part of the histories in which those who wait have no timeout, and replies to a client are held back for long."""

OUTAGE = (2.0, 3.0)
"""Seconds of such an outage: about a lease, so tickets expire while their clients retry."""

CLOSES = 0.4
"""The part of such histories in which a client is closed."""


class Assumptions(enum.Enum):
    """Whether the servers keep their word."""

    KEPT = "kept"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Size:
    """How long a history is.

    Attributes:
        least: operations that a thread or task does, at least.
        most: and at most.
        span: seconds in which faults begin.

    """

    least: int
    most: int
    span: float


SIZE = Size(2, 5, 3.0)
"""That of which histories find the most in a second of a processor; see `power`."""


@dataclass(frozen=True, slots=True)
class Actor:
    """One client: its clock, its link, and for each thread or task the seeds of what it does, one after the other."""

    rate: float
    offset: float
    latency: tuple[float, float]
    tasks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that goes wrong.

    Attributes:
        at: when, in seconds of true time.
        victim: the number of the client, if it happens to one; which of those that live then.
        seconds: for how long, if it lasts.
        luck: from 0 to 1: decides what the kind leaves open.

    """

    at: float
    kind: Kind
    victim: int
    seconds: float
    luck: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """All of one history but its delays.

    Attributes:
        passed: the part of the holds that are passed on.
        patient: whether an acquire that waits has no timeout.

    """

    seed: int
    system: str
    assumptions: Assumptions
    server_rate: float
    what: frozenset[str]
    actors: tuple[Actor, ...]
    next_waiters: tuple[Actor, ...]
    strikes: tuple[Strike, ...]
    passed: float = 0.0
    patient: bool = False

    @property
    def operations(self) -> int:
        """How many times something is acquired, if no client is killed."""
        return sum(len(task) for actor in self.actors for task in actor.tasks)

    def hits(self, kind: Kind) -> bool:
        """Return whether something of this kind goes wrong."""
        return any(strike.kind is kind for strike in self.strikes)


@dataclass(frozen=True, slots=True)
class Menu:
    """What a system offers: what can be locked, and what may go wrong, its word kept or not."""

    what: Sequence[str]
    kept: Sequence[Kind]
    broken: Sequence[Kind]


def draw(seed: int, system: str, menu: Menu, size: Size = SIZE, *, passed: bool | None = None) -> Scenario:
    """Draw the scenario of a seed; ``passed`` says whether holds are passed on in it, None leaves it to chance."""
    plain = _draw(seed, system, menu, size)
    chance = random.Random(f"passed/{system}/{seed}")  # of its own: what it decides leaves all else as it is
    drawn = chance.random() < PASSED
    scenario = _passing(plain, chance, menu, size) if (drawn if passed is None else passed) else plain
    chance = random.Random(f"patient/{system}/{seed}")
    return _patient(scenario, chance, size) if chance.random() < PATIENT and {*menu.kept} >= OUTAGE_KINDS else scenario


def _patient(plain: Scenario, chance: random.Random, size: Size) -> Scenario:
    """Let nobody who waits give up, and let clients retry during an outage that lasts for about a lease."""
    strikes = list[Strike]()
    for _ in range(chance.choice((1, 2))):
        at, victim, luck = chance.uniform(0.0, size.span), chance.getrandbits(8), chance.random() / 2  # of all servers
        seconds = chance.uniform(*OUTAGE)
        strikes += [Strike(at, kind, victim, seconds, luck) for kind in (Kind.ONE_WAY, Kind.RESET)]
    together = sorted((*plain.strikes, *strikes), key=lambda strike: strike.at)
    return replace(plain, patient=True, strikes=tuple(together))


def _passing(plain: Scenario, chance: random.Random, menu: Menu, size: Size) -> Scenario:
    """Let holds be passed on, of re-entrant locks too, and perhaps a client be closed under use."""
    others = [kind for kind in ("read", "permits") if kind in menu.what]
    what = {chance.choice(("reentrant", *menu.what)), chance.choice(("reentrant", *others))}
    closes = [_strike(chance, (Kind.CLOSE,), size) for _ in range(chance.choice((1, 1, 2)))]
    closes = closes if chance.random() < CLOSES else []
    return replace(
        plain,
        what=frozenset(what | ({"entries"} if "read" in what else set())),
        next_waiters=(*plain.next_waiters, *(_actor(chance, size) for _ in closes)),
        strikes=tuple(sorted((*plain.strikes, *closes), key=lambda strike: strike.at)),
        passed=PASSED_ON,
    )


def _draw(seed: int, system: str, menu: Menu, size: Size) -> Scenario:
    chance = random.Random(f"{system}/{seed}")
    broken = bool(menu.broken) and chance.random() < 0.2
    actors = tuple(_actor(chance, size) for _ in range(chance.choice((2, 2, 3, 3, 4))))
    what = frozenset(chance.sample(menu.what, chance.choice((1, 1, 2))))
    kinds = chance.sample(menu.kept, min(len(menu.kept), chance.randint(1, 3)))
    strikes = [_strike(chance, kinds, size) for _ in range(chance.randint(0, MOST_FAULTS))]
    if broken:  # in one way: tokens survive the loss of data, or of the time, and nothing survives both
        kind = chance.choice(menu.broken)
        strikes += [_strike(chance, (kind,), size) for _ in range(chance.choice((1, 1, 2)))]
    strikes.sort(key=lambda strike: strike.at)
    return Scenario(
        seed,
        system,
        Assumptions.BROKEN if broken else Assumptions.KEPT,
        chance.uniform(1 - RATE, 1 + RATE),
        what,
        actors,
        tuple(_actor(chance, size) for strike in strikes if strike.kind is Kind.KILL),
        tuple(strikes),
    )


def _actor(chance: random.Random, size: Size) -> Actor:
    tasks = 2 if chance.random() < 0.2 else 1
    return Actor(
        chance.uniform(1 - RATE, 1 + RATE),
        chance.uniform(0.0, OFFSET),
        chance.choice(LATENCIES),
        tuple(_seeds(chance, size) for _ in range(tasks)),
    )


def _seeds(chance: random.Random, size: Size) -> tuple[int, ...]:
    """Draw the operations of one thread or task."""
    return tuple(chance.getrandbits(32) for _ in range(chance.randint(size.least, size.most)))


def _strike(chance: random.Random, kinds: Sequence[Kind], size: Size) -> Strike:
    """Draw a fault: often shorter than a client waits for an answer, and often longer than a lease."""
    seconds = chance.uniform(0.0, chance.choice((LONGEST / 4, LONGEST)))
    return Strike(chance.uniform(0.0, size.span), chance.choice(kinds), chance.getrandbits(8), seconds, chance.random())
