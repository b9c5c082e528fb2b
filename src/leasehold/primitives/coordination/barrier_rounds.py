"""The rounds of a barrier as a value, and its changes: arrive, withdraw, depart, drop or break. Pure.

Theory of operation
-------------------
Members *arrive* in a round. When as many members as parties have arrived, the round has *met*: it ends in that same
step, its members are recorded in order of arrival, and the next round begins empty. So a member that reads late still
finds that its round met, and newcomers never mix with members that leave. A member that wants to leave together with
the others is *inside* from the meeting until it departs. `leave` ends when no member is inside any more.

A round that ends otherwise (broken, reset) is recorded with the reason, for its members and for those inside.

A member is identified by the first `SHORT` characters of its ticket, 66 random bits. Its ticket holds an entry in the
store as long as it is a member: a member without an entry is dead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

SHORT = 11
"""Characters of a ticket that identify a member."""

REMEMBERED = 16
"""Recorded rounds that ended without a meeting, with their reasons."""


class Ended(NamedTuple):
    """A round that ended without a meeting; with ``inside`` = 1, the stay inside after its meeting."""

    round: int
    inside: int
    why: str


class Rounds(NamedTuple):
    """The stored state of a barrier, in the order in which the fields are stored.

    Attributes:
        parties: how many members must arrive.
        drop_dead: 1 if a dead member is dropped, 0 if it breaks the barrier.
        round: the round in which members arrive now.
        arrived: its members so far, in order.
        staying: those of them that will be inside.
        met_round: the last round that met; 0 if none has.
        met: its members in order.
        inside_round: the last round that met with members who stay.
        inside: those of them that have not departed.
        broken: why no member may arrive; empty if the barrier is not broken.
        ended: the last rounds that ended without a meeting.
    """

    parties: int
    drop_dead: int = 0
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
        """Return all members that must be alive."""
        return self.arrived + self.inside


def read(plain: Any) -> Rounds:
    """Make the rounds of what JSON decoded."""
    rounds = Rounds(*plain)
    return rounds._replace(
        arrived=tuple(rounds.arrived),
        staying=tuple(rounds.staying),
        met=tuple(rounds.met),
        inside=tuple(rounds.inside),
        ended=tuple(Ended(*each) for each in rounds.ended),
    )


def arrive(rounds: Rounds, me: str, *, stays: bool) -> Rounds:
    """Add a member; if it is the last, the round has met."""
    arrived = (*rounds.arrived, me)
    staying = (*rounds.staying, me) if stays else rounds.staying
    if len(arrived) < rounds.parties:
        return rounds._replace(arrived=arrived, staying=staying)
    met = rounds._replace(round=rounds.round + 1, arrived=(), staying=(), met_round=rounds.round, met=arrived)
    return met._replace(inside_round=rounds.round, inside=staying) if staying else met


def withdraw(rounds: Rounds, me: str) -> Rounds | None:
    """Undo an arrival; None if the member has met meanwhile, or is not there."""
    return _without(rounds, {me}) if me in rounds.arrived else None


def depart(rounds: Rounds, me: str) -> Rounds | None:
    """Remove a member that is inside; None if it is not."""
    return _without(rounds, {me}) if me in rounds.inside else None


def drop_dead_members(rounds: Rounds, dead: Collection[str], why: str) -> Rounds | None:
    """Drop dead members, or break the barrier; None if none of them is a member now."""
    if not set(dead) & set(rounds.members()):
        return None
    return _without(rounds, dead) if rounds.drop_dead else break_(rounds, why)


def break_(rounds: Rounds, why: str) -> Rounds:
    """End the round and the stay inside; no member may arrive until a reset."""
    return reset(rounds, why)._replace(broken=rounds.broken or why)


def reset(rounds: Rounds, why: str) -> Rounds:
    """End the round and the stay inside for their members, and begin a new round."""
    ended = list(rounds.ended)
    if rounds.arrived:
        ended.append(Ended(rounds.round, 0, why))
    if rounds.inside:
        ended.append(Ended(rounds.inside_round, 1, why))
    begun = rounds._replace(broken="", arrived=(), staying=(), inside=(), ended=tuple(ended[-REMEMBERED:]))
    return begun._replace(round=rounds.round + 1) if rounds.arrived else begun


def _without(rounds: Rounds, gone: Collection[str]) -> Rounds:
    def stay(members: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(member for member in members if member not in gone)

    return rounds._replace(arrived=stay(rounds.arrived), staying=stay(rounds.staying), inside=stay(rounds.inside))


@dataclass(frozen=True, slots=True)
class Met:
    """The round met; ``index`` is the member's place in the order of arrival. After it departed: all have departed."""

    index: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Some members are missing, or still inside. ``place``: how many arrived before this one."""

    place: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """The round ended without a meeting; without ``why``, the barrier continued without a member that had died."""

    why: str = ""


def round_state(rounds: Rounds | None, round_: int, me: str) -> Met | Waiting | Over:
    """Return the state of a member that arrived in ``round_``."""
    if rounds is not None and me in rounds.met and rounds.met_round == round_:
        return Met(rounds.met.index(me))
    if rounds is not None and me in rounds.arrived and rounds.round == round_:
        return Waiting(rounds.arrived.index(me))
    return _ended(rounds, round_, inside=False) or Over()


def inside_state(rounds: Rounds | None, round_: int) -> Met | Waiting | Over:
    """Return the state of the stay inside after ``round_``, for a member that has departed."""
    if rounds is not None and rounds.inside_round == round_ and rounds.inside:
        return Waiting()
    return _ended(rounds, round_, inside=True) or Met()


def _ended(rounds: Rounds | None, round_: int, *, inside: bool) -> Over | None:
    if rounds is None:
        return Over("the store has forgotten it")
    whys = (ended.why for ended in rounds.ended if ended.round == round_ and ended.inside == inside)
    return next((Over(why) for why in whys), None)
