"""The values of a history: holds, failed tries, guarded writes, and times in which a client was paused.

An operation has a *window*: it was sent at one moment, and answered at a later one. The store acted in between. An
operation that was never answered has no end. Its effect is unknown, so it is never counted as a violation.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FOREVER = math.inf


class Mode(enum.StrEnum):
    """With which other holds a hold may coexist."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"  # with other shared holds: a reader
    PERMITS = "permits"  # with others, while all permits together stay within the limit


@dataclass(frozen=True, slots=True)
class Hold:
    """One acquire and its outcome. Its *claim* is [granted, until].

    Attributes:
        who: the client, thread or task; one that acquires again what it holds does so within its claim.
        name: of the lock.
        asked: when the acquire was sent.
        granted: when it was answered; None if it never was, so that it may or may not have held.
        until: when the claim ended as its holder saw it: it sent the release, was notified of the loss, died, or its
            deadline passed, whatever came first.
        freed: when the store confirmed the release; None if it never did.
        token: the fencing token; None if unknown.
        lease: seconds for which the store may keep it beyond `until` if no release was confirmed.
        queued: when the store had answered that the acquire has a queue entry; None if it never did.
        notified: when the holder was notified of the loss; None if the hold was not lost.
        deadline: the last end of its validity that the holder knew.
        checked: the last moment at which a check reported the hold as valid; None if never.
        nested: whether it was acquired inside a hold of the same owner.
        since: from when its lease counts: the granted request was sent at this moment or later, so the store granted
            it then or later; None if unknown.
        renews: whether its lease is renewed as long as it is held.
        believed: of a renewed hold, the seconds from the last request of its client to its deadline, as known at the
            last check; None if unknown.
        dropped: when nothing could release it any more. A callback may still listen for its loss, so its claim
            goes on; None if it was never dropped.

    """

    who: str
    name: str
    asked: float
    granted: float | None = None
    until: float = FOREVER
    freed: float | None = None
    token: int | None = None
    mode: Mode = Mode.EXCLUSIVE
    permits: int = 1
    limit: int = 1
    lease: float = FOREVER
    queued: float | None = None
    notified: float | None = None
    deadline: float = FOREVER
    checked: float | None = None
    nested: bool = False
    fair: bool = False
    since: float | None = None
    renews: bool = True
    believed: float | None = None
    dropped: float | None = None

    @property
    def free_by(self) -> float:
        """When the store must have given it up: the release was confirmed, or the lease ran out."""
        return self.until + self.lease if self.freed is None else self.freed

    def __str__(self) -> str:
        got = "never answered" if self.granted is None else f"held {self.granted:.4f}..{self.until:.4f}"
        token = "" if self.token is None else f", token {self.token}"
        what = f"{self.name!r}" if self.mode is Mode.EXCLUSIVE else f"{self.name!r} ({self.mode.value} {self.permits})"
        return f"{self.who}: {what} asked {self.asked:.4f}, {got}{token}"


@dataclass(frozen=True, slots=True)
class Try:
    """An acquire that was refused, since the name was held.

    Attributes:
        queued: when the store had answered that the acquire has a queue entry. From then on the store may have granted
            it, and the client may have given the grant up unseen.
        lease: seconds for which the store may have kept such a grant, if the client could not give it up.

    """

    who: str
    name: str
    asked: float
    answered: float
    queued: float | None = None
    lease: float = 0.0

    def __str__(self) -> str:
        return f"{self.who}: {self.name!r} asked {self.asked:.4f}, refused {self.answered:.4f}"


@dataclass(frozen=True, slots=True)
class Write:
    """A write that a guarded resource received.

    Attributes:
        order: numbers the writes of one resource; the resource assigns it.
        accepted: whether the resource applied it.

    """

    who: str
    resource: str
    order: int
    token: int
    owner: str
    accepted: bool
    at: float = 0.0

    def __str__(self) -> str:
        did = "applied" if self.accepted else "refused"
        return f"{self.who}: write {self.order} to {self.resource!r} with token {self.token} {did}"


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which a client could not run (stopped, or its event loop blocked), or could not reach the store.

    ``who`` is the client, whose threads and tasks are called ``client.thread``; or one of these.
    """

    who: str
    begin: float
    end: float = FOREVER

    def within(self, who: str, begin: float, end: float) -> float:
        """Return for how many seconds of that time it paused ``who``."""
        if self.who not in (who, who.partition(".")[0]):
            return 0.0
        return max(0.0, min(self.end, end) - max(self.begin, begin))


def paused_for(pauses: Iterable[Stall], who: str, begin: float, end: float) -> float:
    """Return for how many seconds of that time ``who`` was paused; pauses that overlap count once."""
    total, until = 0.0, begin
    for pause in sorted((one for one in pauses if one.within(who, begin, end)), key=lambda one: one.begin):
        total += pause.within(who, until, end)
        until = max(until, pause.end)
    return total


def merged(pauses: Iterable[Stall], between: float) -> Iterator[Stall]:
    """Yield the pauses, merging those of one client that lie no more than ``between`` seconds apart."""
    last: Stall | None = None
    for pause in sorted(pauses, key=lambda one: (one.who, one.begin)):
        if last is not None and last.who == pause.who and pause.begin - last.end <= between:
            last = Stall(last.who, last.begin, max(last.end, pause.end))
        else:
            if last is not None:
                yield last
            last = pause
    if last is not None:
        yield last


@dataclass(frozen=True, slots=True)
class History:
    """What all clients of one run saw.

    Attributes:
        stalls: when clients could not run.
        outages: when clients could not reach the store.
        short_pauses: when clients could not run, each for too short a time to lose a queue entry.
        relay_pauses: when the process that carries bytes between the clients and the store did not run, as short.
        removals: when the store lost every hold that it had granted until then.

    """

    holds: tuple[Hold, ...] = ()
    tries: tuple[Try, ...] = ()
    writes: tuple[Write, ...] = ()
    stalls: tuple[Stall, ...] = ()
    outages: tuple[Stall, ...] = ()
    short_pauses: tuple[Stall, ...] = ()
    relay_pauses: tuple[Stall, ...] = ()
    removals: tuple[float, ...] = ()

    def __add__(self, other: History) -> History:
        return History(
            self.holds + other.holds,
            self.tries + other.tries,
            self.writes + other.writes,
            self.stalls + other.stalls,
            self.outages + other.outages,
            self.short_pauses + other.short_pauses,
            self.relay_pauses + other.relay_pauses,
            self.removals + other.removals,
        )
