"""What goes wrong in a simulated history: each fault is drawn, and made, by the history's own random numbers."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.testing.models.party import Party
    from leasehold.testing.worlds import SimulatedMachine

LONGEST = 3.0
"""Seconds that a stop or a cut may last: longer than a lease."""

SLOW = (0.01, 0.4)
"""Seconds that a message takes on a slow link."""


class Kind(enum.Enum):
    """What goes wrong."""

    STALL = "a client is stopped"
    KILL = "a client is killed, and another comes"
    HOLD = "requests of a client are held back"
    ONE_WAY = "replies to a client are held back"
    RESET = "a client's connection ends; what was under way may arrive"
    REFUSE = "a client is cut off, and cannot connect"
    SLOW = "a client's link is slow"
    REPEAT = "requests of a client are carried out twice"
    DEAF = "messages to a client are lost"
    RESTART = "the server restarts, with all that it had"
    SCRIPTS = "the server forgets its scripts"
    FLUSH = "the server loses its keys"
    FORGET = "the server restarts without its keys"
    FORWARD = "the server's clock is set forward"
    BACK = "the server's clock is set back"

    @property
    def cuts(self) -> bool:
        """Whether a client cannot reach the store meanwhile, or not in the usual time."""
        return self in CUTTING


CUTTING = frozenset({Kind.HOLD, Kind.ONE_WAY, Kind.RESET, Kind.REFUSE, Kind.SLOW, Kind.RESTART, Kind.FORGET})


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, with whom, and when, in true time."""

    kind: Kind
    who: str
    begin: float
    end: float

    def __str__(self) -> str:
        return f"{self.begin:.4f}..{self.end:.4f} {self.who}: {self.kind.value}"


def _victim(party: Party) -> SimulatedMachine:
    return party.chance.choice([machine for machine in party.machines if not machine.machine.killed])


def _note(party: Party, kind: Kind, who: str, seconds: float) -> None:
    party.faults.append(Fault(kind, who, party.now(), party.now() + seconds))


def _seconds(party: Party) -> float:
    """Draw how long: often shorter than a client waits for an answer, and often longer than a lease."""
    return party.chance.uniform(0.0, party.chance.choice((LONGEST / 4, LONGEST)))


def _stall(party: Party) -> None:
    machine, seconds = _victim(party), _seconds(party)
    machine.stall(seconds)
    _note(party, Kind.STALL, machine.machine.name, seconds)


def _kill(party: Party) -> None:
    machine = _victim(party)
    machine.kill()
    party.deaths[machine.machine.name] = party.now()
    party.server.hang_up(machine.machine, arrives=party.chance.random() < 0.5)
    _note(party, Kind.KILL, machine.machine.name, 0.0)
    party.join()


def _hold(party: Party) -> None:
    name, seconds = _victim(party).machine.name, _seconds(party)
    party.redis.link(name).requests_held = party.now() + seconds
    _note(party, Kind.HOLD, name, seconds)


def _one_way(party: Party) -> None:
    name, seconds = _victim(party).machine.name, _seconds(party)
    party.redis.link(name).replies_held = party.now() + seconds
    _note(party, Kind.ONE_WAY, name, seconds)


def _reset(party: Party) -> None:
    machine = _victim(party).machine
    party.server.hang_up(machine, arrives=party.chance.random() < 0.5)
    _note(party, Kind.RESET, machine.name, 0.0)


def _refuse(party: Party) -> None:
    machine, seconds = _victim(party).machine, _seconds(party)
    party.redis.link(machine.name).refused = party.now() + seconds
    party.server.hang_up(machine, arrives=party.chance.random() < 0.5)
    _note(party, Kind.REFUSE, machine.name, seconds)


def _for_a_while(party: Party, kind: Kind, field: str, value: object) -> None:
    """Give a link another quality; it has its old one back after that."""
    name, seconds = _victim(party).machine.name, _seconds(party)
    link = party.redis.link(name)
    before = getattr(link, field)
    if before == value:
        return
    setattr(link, field, value)
    party.world.scheduler.at(party.now() + seconds, party.server.machine, lambda: setattr(link, field, before))
    _note(party, kind, name, seconds)


def _slow(party: Party) -> None:
    _for_a_while(party, Kind.SLOW, "latency", SLOW)


def _repeat(party: Party) -> None:
    _for_a_while(party, Kind.REPEAT, "repeats", 0.5)


def _deaf(party: Party) -> None:
    _for_a_while(party, Kind.DEAF, "deaf", party.chance.choice((0.5, 1.0)))


def _restart(party: Party) -> None:
    seconds = party.chance.uniform(0.05, 1.0)
    party.server.restart(seconds, lose=False)
    _note(party, Kind.RESTART, party.server.machine.name, seconds)


def _scripts(party: Party) -> None:
    party.server.forget_scripts()
    _note(party, Kind.SCRIPTS, party.server.machine.name, 0.0)


def _met(party: Party, *kinds: Kind) -> bool:
    """Say whether one of these has struck: tokens rest on the stored one or on the clock, so one of them must last."""
    return any(fault.kind in kinds for fault in party.faults)


def _flush(party: Party) -> None:
    if not _met(party, Kind.BACK):
        party.server.flush()
        _note(party, Kind.FLUSH, party.server.machine.name, 0.0)


def _forget(party: Party) -> None:
    if _met(party, Kind.BACK):
        return
    seconds = party.chance.uniform(0.05, 1.0)
    party.server.restart(seconds, lose=True)
    _note(party, Kind.FORGET, party.server.machine.name, seconds)


def _forward(party: Party) -> None:
    party.server.step(party.chance.uniform(0.0, 5.0))
    _note(party, Kind.FORWARD, party.server.machine.name, 0.0)


def _back(party: Party) -> None:
    if not _met(party, Kind.FLUSH, Kind.FORGET):
        party.server.step(-party.chance.uniform(0.0, 2.0))
        _note(party, Kind.BACK, party.server.machine.name, 0.0)


FORGETTING = (Kind.FLUSH, Kind.FORGET, Kind.FORWARD, Kind.BACK)
"""Those that no lock on one server can bear without a fence."""

KINDS: dict[Kind, Callable[[Party], None]] = {
    Kind.STALL: _stall,
    Kind.KILL: _kill,
    Kind.HOLD: _hold,
    Kind.ONE_WAY: _one_way,
    Kind.RESET: _reset,
    Kind.REFUSE: _refuse,
    Kind.SLOW: _slow,
    Kind.REPEAT: _repeat,
    Kind.DEAF: _deaf,
    Kind.RESTART: _restart,
    Kind.SCRIPTS: _scripts,
    Kind.FLUSH: _flush,
    Kind.FORGET: _forget,
    Kind.FORWARD: _forward,
    Kind.BACK: _back,
}
