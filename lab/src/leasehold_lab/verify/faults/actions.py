"""Server faults: their description, and the actions that all kinds of servers share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold_lab.servers import Server


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What a fault action needs to know about the run.

    Attributes:
        lease: of the locks, in seconds: the unit of all durations here.
        sleep: waits for that many seconds.
        random: chooses one of several servers.
        namespace: of the run, for faults that affect its data.

    """

    lease: float
    sleep: Callable[[float], None]
    random: random.Random
    namespace: str


FaultAction = Callable[[Any, FaultContext], None]
"""Injects a fault into the servers and repairs it: afterwards they serve again."""


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A fault of servers that the run itself started.

    Attributes:
        key: its name on the command line; it begins with ``server-``, unlike the names of client faults.
        description: what it does, for people.
        ids: the rows of the fault catalogue in ``docs/correctness.md`` that it provokes.
        action: injects it.
        loses: whether the assumptions on the backend's page allow the store to forget grants. Holds from before the
            fault may then overlap with later ones until they end. Tokens still increase.
        settles: for how many leases holds of dead clients may still block others, once the clients have reconnected.

    """

    key: str
    description: str
    ids: tuple[str, ...]
    action: FaultAction
    loses: bool = False
    settles: float = 1.0


def freeze(server: Server, context: FaultContext, leases: float) -> None:
    """Pause a server (SIGSTOP) for that many leases."""
    freeze_all([server], context, leases)


def freeze_all(servers: Sequence[Server], context: FaultContext, leases: float) -> None:
    """Pause several servers at the same time, as `freeze` does one."""
    try:
        for server in servers:
            server.pause()
        context.sleep(leases * context.lease)
    finally:
        for server in servers:
            server.resume()


def restart_after(server: Server, context: FaultContext, leases: float = 0.3, *, crash: bool = True) -> None:
    """End a server, and start it again with the data on its disk after that many leases."""
    restart_all_after([server], context, leases, crash=crash)


def restart_all_after(servers: Sequence[Server], context: FaultContext, leases: float, *, crash: bool = True) -> None:
    """End several servers at the same time, as `restart_after` does one."""
    for server in servers:
        if crash:
            server.kill()
        else:
            server.terminate()
    try:
        context.sleep(leases * context.lease)
    finally:
        for server in servers:
            server.start()
