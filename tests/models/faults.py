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
    """The clients that it affects; see `models.clients.ClientGroup`."""

    harness: SimulatedHarness
    system: System
    machines: list[SimulatedMachine]
    deaths: dict[str, tuple[float, float]]
    closed: dict[str, float]

    def now(self) -> float: ...

    def note(self, kind: Kind, who: str, seconds: float) -> None: ...

    def next_waiter(self) -> None: ...


def strike(group: Struck, one: Strike) -> None:
    """Apply the fault, if there is still a process that it can hit."""
    if (hit := CLIENTS.get(one.kind)) is None:
        if (seconds := group.system.strike(one)) is not None:
            group.note(one.kind, "", seconds)
        return
    living = [machine for machine in group.machines if not machine.machine.killed]
    if one.kind is Kind.CLOSE:
        living = [machine for machine in living if machine.machine.name not in group.closed]
    if living:
        victim = living[one.victim % len(living)]
        group.note(one.kind, victim.machine.name, hit(group, victim, one))


def _hosts(group: Struck, one: Strike) -> Sequence[Host]:
    """Return whose links are concerned: of several servers often one, often all."""
    hosts = group.system.hosts
    return hosts if one.luck < 0.5 else [hosts[int(one.luck * 1e6) % len(hosts)]]


def _stall(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.stall(one.seconds)
    return one.seconds


def _suspend(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.stall(one.seconds)
    for host in group.system.hosts:
        host.hang_up(machine.machine, arrives=one.luck < 0.5)
    return one.seconds


def _kill(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    machine.kill()
    group.deaths[machine.machine.name] = group.now(), group.now()
    for host in group.system.hosts:
        host.hang_up(machine.machine, arrives=one.luck < 0.5)
    group.next_waiter()
    return 0.0


def _close(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    group.closed[machine.machine.name] = group.now()
    for client in machine.clients():
        machine.spawn(client.close)
    group.next_waiter()
    return 0.0


def _hold(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(group, one):
        link = host.link(machine.machine.name)
        link.requests_held = max(link.requests_held, group.now() + one.seconds)
    return one.seconds


def _late(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    """Hold back what is sent on the lines of now, until after the client has given them up and made others."""
    for host in _hosts(group, one):
        for line in host.lines.values():
            if line.client is machine.machine:
                line.held = max(line.held, group.now() + LATE_BY + one.seconds)
    return LATE_BY + one.seconds


def _one_way(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(group, one):
        link = host.link(machine.machine.name)
        link.replies_held = max(link.replies_held, group.now() + one.seconds)
    return one.seconds


def _reset(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(group, one):
        host.hang_up(machine.machine, arrives=one.luck * 10 % 1 < 0.5)
    return 0.0


def _refuse(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    for host in _hosts(group, one):
        link = host.link(machine.machine.name)
        link.refused = max(link.refused, group.now() + one.seconds)
        host.hang_up(machine.machine, arrives=one.luck * 10 % 1 < 0.5)
    return one.seconds


def _for_a_while(group: Struck, machine: SimulatedMachine, one: Strike, field: str, value: object) -> float:
    """Give links another quality; they have their old one back after that."""
    for host in _hosts(group, one):
        _change(group, host, machine.machine.name, field, value, one.seconds)
    return one.seconds


def _change(group: Struck, host: Host, name: str, field: str, value: object, seconds: float) -> None:
    link = host.link(name)
    before = getattr(link, field)
    if before == value:
        return
    setattr(link, field, value)
    group.harness.scheduler.at(group.now() + seconds, host.machine, lambda: setattr(link, field, before))


def _slow(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(group, machine, one, "latency", SLOW)


def _repeat(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(group, machine, one, "repeats", 0.5)


def _deaf(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    return _for_a_while(group, machine, one, "deaf", 0.5 if one.luck * 10 % 1 < 0.5 else 1.0)


def _wall(group: Struck, machine: SimulatedMachine, one: Strike) -> float:
    seconds = (2 * one.luck - 1) * WALL
    group.harness.scheduler.note(machine.machine.name, f"sets its wall clock by {seconds:.6f} s")
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
