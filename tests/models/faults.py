"""What goes wrong with clients and their links, whatever the store; what happens to servers is their system's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from leasehold_lab.runtimes.harnesses import SimulatedHarness, SimulatedMachine
from models.net import Host
from models.scenario import Kind, Strike
from models.system import System

SLOW = (0.01, 0.4)
"""Seconds that a message takes on a slow link."""

LATE_BY = 1.0
"""Seconds that a request is late at least: for so long a client waits for an answer."""

WALL = 3600.0
"""Seconds by which a client's wall clock is set, at most."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, with whom (empty: with all clients), and when, in true time."""

    kind: Kind
    who: str
    begin: float
    end: float

    def __str__(self) -> str:
        return f"{self.begin:.4f}..{self.end:.4f} {self.who or 'servers'}: {self.kind.value}"


class Struck(Protocol):
    """Whom it befalls; see `models.history.Party`."""

    harness: SimulatedHarness
    system: System
    machines: list[SimulatedMachine]
    deaths: dict[str, tuple[float, float]]
    closed: dict[str, float]

    def now(self) -> float: ...

    def note(self, kind: Kind, who: str, seconds: float) -> None: ...

    def next_waiter(self) -> None: ...


def strike(party: Struck, one: Strike) -> None:
    """Let it happen; nothing does if there is nobody left whom it could hit."""
    if (hit := CLIENTS.get(one.kind)) is None:
        if (seconds := party.system.strike(one)) is not None:
            party.note(one.kind, "", seconds)
        return
    living = [machine for machine in party.machines if not machine.machine.killed]
    if one.kind is Kind.CLOSE:
        living = [machine for machine in living if machine.machine.name not in party.closed]
    if living:
        victim = living[one.victim % len(living)]
        party.note(one.kind, victim.machine.name, hit(party, victim, one))


def _hosts(party: Struck, one: Strike) -> Sequence[Host]:
    """Return whose links are concerned: of several servers often one, often all."""
    hosts = party.system.hosts
    return hosts if one.luck < 0.5 else [hosts[int(one.luck * 1e6) % len(hosts)]]


def _stall(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.stall(one.seconds)
    return one.seconds


def _suspend(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.stall(one.seconds)
    for host in party.system.hosts:
        host.hang_up(machine.machine, arrives=one.luck < 0.5)
    return one.seconds


def _kill(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.kill()
    party.deaths[machine.machine.name] = party.now(), party.now()
    for host in party.system.hosts:
        host.hang_up(machine.machine, arrives=one.luck < 0.5)
    party.next_waiter()
    return 0.0


def _close(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    party.closed[machine.machine.name] = party.now()
    for client in machine.clients():
        machine.spawn(client.close)
    party.next_waiter()
    return 0.0


def _hold(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(party, one):
        link = host.link(machine.machine.name)
        link.requests_held = max(link.requests_held, party.now() + one.seconds)
    return one.seconds


def _late(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    """Hold back what is sent on the lines of now, until after the client has given them up and made others."""
    for host in _hosts(party, one):
        for line in host.lines.values():
            if line.client is machine.machine:
                line.held = max(line.held, party.now() + LATE_BY + one.seconds)
    return LATE_BY + one.seconds


def _one_way(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(party, one):
        link = host.link(machine.machine.name)
        link.replies_held = max(link.replies_held, party.now() + one.seconds)
    return one.seconds


def _reset(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(party, one):
        host.hang_up(machine.machine, arrives=one.luck * 10 % 1 < 0.5)
    return 0.0


def _refuse(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(party, one):
        link = host.link(machine.machine.name)
        link.refused = max(link.refused, party.now() + one.seconds)
        host.hang_up(machine.machine, arrives=one.luck * 10 % 1 < 0.5)
    return one.seconds


def _for_a_while(party: Struck, machine: SimulatedMachine, one: Strike, field: str, value: object) -> float:
    """Give links another quality; they have their old one back after that."""
    for host in _hosts(party, one):
        _change(party, host, machine.machine.name, field, value, one.seconds)
    return one.seconds


def _change(party: Struck, host: Host, name: str, field: str, value: object, seconds: float) -> None:
    link = host.link(name)
    before = getattr(link, field)
    if before == value:
        return
    setattr(link, field, value)
    party.harness.scheduler.at(party.now() + seconds, host.machine, lambda: setattr(link, field, before))


def _slow(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(party, machine, one, "latency", SLOW)


def _repeat(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(party, machine, one, "repeats", 0.5)


def _deaf(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(party, machine, one, "deaf", 0.5 if one.luck * 10 % 1 < 0.5 else 1.0)


def _wall(party: Struck, machine: SimulatedMachine, one: Strike) -> float:
    seconds = (2 * one.luck - 1) * WALL
    party.harness.scheduler.note(machine.machine.name, f"sets its wall clock by {seconds:.6f} s")
    machine.machine.wall += seconds
    return 0.0


CLIENTS: dict[Kind, Callable[[Struck, SimulatedMachine, Strike], float]] = {
    Kind.STALL: _stall,
    Kind.SUSPEND: _suspend,
    Kind.KILL: _kill,
    Kind.CLOSE: _close,
    Kind.HOLD: _hold,
    Kind.LATE: _late,
    Kind.ONE_WAY: _one_way,
    Kind.RESET: _reset,
    Kind.REFUSE: _refuse,
    Kind.SLOW: _slow,
    Kind.REPEAT: _repeat,
    Kind.DEAF: _deaf,
    Kind.WALL: _wall,
}
"""Each returns for how many seconds it lasts."""
