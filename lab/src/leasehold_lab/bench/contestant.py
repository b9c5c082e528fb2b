"""A contestant: leasehold, a floor, or another library."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from leasehold_lab.bench.places import StoreKind


class Mode(enum.StrEnum):
    """How a contestant is called."""

    BLOCKING = "blocking"
    ASYNCIO = "asyncio"


class Role(enum.StrEnum):
    """The role of a contestant in the result."""

    OURS = "ours"
    FLOOR = "floor"
    PEER = "peer"


class Disturbance(enum.StrEnum):
    """What happens to one of several servers at the beginning of a trial."""

    KILLED = "killed"  # it refuses connections
    STALLED = "stalled"  # by SIGSTOP: it accepts requests and does not answer


@dataclass(frozen=True, slots=True)
class Contestant:
    """One contestant.

    Attributes:
        key: for the command line and JSON; a floor takes part where a measure names it.
        title: for people.
        role: its role in the result.
        module: in `leasehold_lab.bench.subjects`, with the interface of `subjects.base`. Empty for a library of another
            language, which has a program in `leasehold_lab.bench.foreign`.
        modes: how it can be called.
        places: the kinds of store that it works with.
        requires: the module that must be importable; empty for none.
        package: of that module, for its version; empty if it is part of leasehold.
        settings: the settings that are not the default, for people.
        contenders: the most contenders with which it is measured in hand-over.
        idle: whether it is also measured in holding and waiting.
        disturbance: what happens to one of the servers meanwhile; then it takes part only where that is measured.

    """

    key: str
    title: str
    role: Role
    module: str
    modes: frozenset[Mode]
    requires: str = "redis"
    package: str = ""
    settings: str = ""
    places: frozenset[StoreKind] = frozenset({StoreKind.REDIS})
    contenders: int = 1000
    idle: bool = False
    disturbance: Disturbance | None = None


BOTH = frozenset({Mode.BLOCKING, Mode.ASYNCIO})
BLOCKING = frozenset({Mode.BLOCKING})
ASYNCIO = frozenset({Mode.ASYNCIO})
FILE = frozenset({StoreKind.FILE})
REDLOCK = frozenset({StoreKind.REDIS, StoreKind.REDLOCK})
