"""What a fault that is made on the servers consists of, and what the acts of all kinds of servers share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold_lab.servers import Server


@dataclass(frozen=True, slots=True)
class Spell:
    """The time in which a fault is made.

    Attributes:
        lease: of the locks, in seconds: the unit of all lengths here.
        sleep: waits for so many seconds.
        random: chooses which of several servers it is done to.
        namespace: of the run, for faults that are done to its data.

    """

    lease: float
    sleep: Callable[[float], None]
    random: random.Random
    namespace: str


Act = Callable[[Any, Spell], None]
"""Makes a fault on the servers and takes it back: afterwards they serve again."""


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A kind of fault that is made on servers which the run started itself.

    Attributes:
        key: its name on the command line; with ``server-`` before it, unlike those made from the client's side.
        says: what it does, for people.
        ids: the rows of the fault catalogue in ``docs/correctness.md`` that it provokes.
        act: makes it.
        loses: whether, by what the backend's page assumes, the store may forget what it has granted: claims that were
            granted before may then overlap with later ones, until they end. Tokens increase all the same.
        settles: leases after it, beyond the way back of the clients, for which the dead may still be in the way.

    """

    key: str
    says: str
    ids: tuple[str, ...]
    act: Act
    loses: bool = False
    settles: float = 1.0


def frozen(server: Server, spell: Spell, leases: float) -> None:
    """Stop a server in its tracks for so many leases."""
    all_frozen([server], spell, leases)


def all_frozen(servers: Sequence[Server], spell: Spell, leases: float) -> None:
    """Stop several servers at the same time, as `frozen` does one."""
    try:
        for server in servers:
            server.pause()
        spell.sleep(leases * spell.lease)
    finally:
        for server in servers:
            server.resume()


def down(server: Server, spell: Spell, leases: float = 0.3, *, crash: bool = True) -> None:
    """End a server, leave it down for so many leases, and start it again with what it has on its disk."""
    all_down([server], spell, leases, crash=crash)


def all_down(servers: Sequence[Server], spell: Spell, leases: float, *, crash: bool = True) -> None:
    """End several servers at the same time, as `down` does one."""
    for server in servers:
        if crash:
            server.kill()
        else:
            server.terminate()
    try:
        spell.sleep(leases * spell.lease)
    finally:
        for server in servers:
            server.start()
