"""The rounds of a barrier as a value, and what arriving, leaving, dying and breaking make of it. Pure.

Theory of operation
-------------------
Members *arrive* in a round. When as many have arrived as there are parties, they have *met*: the round is over in that
same step, its members are noted in order of arrival, and the next round begins empty. So who looks late still finds
that its round met, and newcomers never mix with those who are on their way out. A member that wants to leave together
with the others is *inside* from the meeting until it departs; its leaving is over when nobody is inside any more.

A round that ends otherwise (broken, reset) is noted with the reason, for its members and for those inside.

A member is told apart by the first `SHORT` characters of its ticket, 66 random bits. Its ticket holds an entry at the
store for as long as it is a member: whoever is listed here without having one is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from leasehold.primitives.coordination.journal import Spelling
from leasehold.primitives.locks.semaphore import permits_of

SHORT = 11
"""Characters of a ticket that stand for a member."""

REMEMBERED = 16
"""Rounds that ended without a meeting, of which the reason is kept."""


MOST = 1000
"""The largest number of parties: all that is stored of them stays within a cell."""


def parties_of(value: object) -> int:
    """Check a number of parties: a whole number from 1 to `MOST`."""
    return permits_of(value, "parties", MOST)


@dataclass(frozen=True, slots=True)
class Ended:
    """A round that ended without a meeting, or, where it says so, the stay inside that followed its meeting."""

    round: int
    inside: bool
    why: str


@dataclass(frozen=True, slots=True)
class Rounds:
    """All that is stored of a barrier.

    Attributes:
        parties: how many meet.
        drop_dead: whether a dead member is left out, and does not break the barrier.
        round: the round in which members arrive now.
        arrived: its members so far, in order.
        staying: those of them who will be inside.
        met_round: the last round that met; 0 if none has.
        met: its members in order.
        inside_round: the last round that met with members who stay.
        inside: those of them who have not departed.
        broken: why nobody may arrive; empty if all is well.
        ended: the last rounds that ended without a meeting.

    """

    parties: int
    drop_dead: bool = False
    round: int = 1
    arrived: tuple[str, ...] = ()
    staying: tuple[str, ...] = ()
    met_round: int = 0
    met: tuple[str, ...] = ()
    inside_round: int = 0
    inside: tuple[str, ...] = ()
    broken: str = ""
    ended: tuple[Ended, ...] = ()

    def members(self) -> tuple[str, ...]:
        """Return all who must be alive."""
        return self.arrived + self.inside


def arrive(rounds: Rounds, me: str, *, stays: bool) -> Rounds:
    """Add a member; if it is the last, the round has met."""
    arrived = (*rounds.arrived, me)
    staying = (*rounds.staying, me) if stays else rounds.staying
    if len(arrived) < rounds.parties:
        return replace(rounds, arrived=arrived, staying=staying)
    met = replace(rounds, round=rounds.round + 1, arrived=(), staying=(), met_round=rounds.round, met=arrived)
    return replace(met, inside_round=rounds.round, inside=staying) if staying else met


def withdraw(rounds: Rounds, me: str) -> Rounds | None:
    """Take back an arrival; None if the member has met meanwhile, or is not there."""
    return _without(rounds, {me}) if me in rounds.arrived else None


def depart(rounds: Rounds, me: str) -> Rounds | None:
    """Take out a member that is inside; None if it is not."""
    return _without(rounds, {me}) if me in rounds.inside else None


def bury(rounds: Rounds, dead: Collection[str], why: str) -> Rounds | None:
    """Leave out the dead, or break the barrier; None if none of them is a member now."""
    if not set(dead) & set(rounds.members()):
        return None
    return _without(rounds, dead) if rounds.drop_dead else break_(rounds, why)


def break_(rounds: Rounds, why: str) -> Rounds:
    """End the round and the stay inside, and let nobody arrive until it is reset."""
    return replace(reset(rounds, why), broken=rounds.broken or why)


def reset(rounds: Rounds, why: str, like: Rounds | None = None) -> Rounds:
    """End the round and the stay inside, for those who are in them, and begin a whole new one, of parties ``like``."""
    ended = list(rounds.ended)
    if rounds.arrived:
        ended.append(Ended(rounds.round, False, why))
    if rounds.inside:
        ended.append(Ended(rounds.inside_round, True, why))
    begun = replace(rounds, broken="", arrived=(), staying=(), inside=(), ended=tuple(ended[-REMEMBERED:]))
    if like is not None:
        begun = replace(begun, parties=like.parties, drop_dead=like.drop_dead)
    return replace(begun, round=rounds.round + 1) if rounds.arrived else begun


def _without(rounds: Rounds, gone: Collection[str]) -> Rounds:
    def stay(members: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(member for member in members if member not in gone)

    return replace(rounds, arrived=stay(rounds.arrived), staying=stay(rounds.staying), inside=stay(rounds.inside))


@dataclass(frozen=True, slots=True)
class Met:
    """The round met; ``index`` is the member's place in the order of arrival."""

    index: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The others are not all there. ``place``: how many came before it."""

    place: int


@dataclass(frozen=True, slots=True)
class Broken:
    """It ended without a meeting."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The barrier went on without this member, which had lost its entry."""


@dataclass(frozen=True, slots=True)
class Left:
    """All who were inside have departed."""


def fate(rounds: Rounds | None, round_: int, me: str) -> Met | Waiting | Broken | Over:
    """Say what became of a member that arrived in ``round_``."""
    if rounds is None:
        return Broken("the store has forgotten it")
    if me in rounds.met and rounds.met_round == round_:
        return Met(rounds.met.index(me))
    if me in rounds.arrived and rounds.round == round_:
        return Waiting(rounds.arrived.index(me))
    return _ended(rounds, round_, inside=False) or Over()


def fate_inside(rounds: Rounds | None, round_: int) -> Left | Waiting | Broken:
    """Say what became of the leaving of a member that has departed from the stay that followed ``round_``."""
    if rounds is None:
        return Broken("the store has forgotten it")
    if rounds.inside_round == round_ and rounds.inside:
        return Waiting(0)
    return _ended(rounds, round_, inside=True) or Left()


def _ended(rounds: Rounds, round_: int, *, inside: bool) -> Broken | None:
    whys = (ended.why for ended in rounds.ended if ended.round == round_ and ended.inside == inside)
    return next((Broken(why) for why in whys), None)


def _spell(rounds: Rounds) -> object:
    return [
        *(rounds.parties, int(rounds.drop_dead), rounds.round, rounds.arrived, rounds.staying),
        *(rounds.met_round, rounds.met, rounds.inside_round, rounds.inside, rounds.broken),
        [[ended.round, int(ended.inside), ended.why] for ended in rounds.ended],
    ]


def _read(plain: Any) -> Rounds:
    parties, drop_dead, round_, arrived, staying, met_round, met, inside_round, inside, broken, ended = plain
    return Rounds(
        *(parties, bool(drop_dead), round_, tuple(arrived), tuple(staying)),
        *(met_round, tuple(met), inside_round, tuple(inside), broken),
        tuple(Ended(number, bool(within), why) for number, within, why in ended),
    )


SPELLING: Spelling[Rounds] = Spelling(_spell, _read)

Step = Callable[[Rounds], Rounds | None]
"""A change of the rounds; None changes nothing."""
