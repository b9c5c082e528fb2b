"""Who is measured: leasehold, the floors, and other libraries, each set as its users are told to set it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Mode(enum.StrEnum):
    """How a contestant is called."""

    BLOCKING = "blocking"
    ASYNCIO = "asyncio"
    FILE = "file"  # blocking, on a file of this machine; no server


class Role(enum.StrEnum):
    """What a contestant stands for in the result."""

    OURS = "ours"
    FLOOR = "floor"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One contestant.

    Attributes:
        key: for the command line and JSON; a floor takes part where a measure names it.
        title: for people.
        role: what it stands for.
        module: in `leasehold.bench.subjects`; see `subjects.base` for what it offers.
        modes: how it can be called.
        requires: the module that must be importable.
        package: of that module, for its version; empty if it is part of leasehold.
        settings: what is not the default, for people.
        contends: it is measured in hand-over, too.

    """

    key: str
    title: str
    role: Role
    module: str
    modes: frozenset[Mode]
    requires: str = "redis"
    package: str = ""
    settings: str = ""
    contends: bool = True


BOTH = frozenset({Mode.BLOCKING, Mode.ASYNCIO})
BLOCKING = frozenset({Mode.BLOCKING})

OURS = Contestant(
    "leasehold", "leasehold", Role.OURS, "ours", BOTH, settings="defaults: lease 30 s, renewed, tokens, queue"
)

CONTESTANTS: tuple[Contestant, ...] = (
    Contestant(
        "floor-scripts",
        "floor: bare socket",
        Role.FLOOR,
        "scripts",
        BOTH,
        "hiredis",
        settings="the very bytes that leasehold sends, from a bare socket (or one asyncio protocol) with hiredis",
    ),
    Contestant(
        "floor-token",
        "floor: BLPOP token",
        Role.FLOOR,
        "token",
        BOTH,
        "hiredis",
        settings="one token passed around by RPUSH and BLPOP; no lease, nobody is told of a loss",
    ),
    OURS,
    Contestant(
        "redis-py",
        "redis-py Lock",
        Role.PEER,
        "redis_py",
        BOTH,
        package="redis",
        settings="timeout=30, else defaults (polls each 0.1 s); asyncio with more than 50 tasks: a blocking pool of 50",
    ),
)


def by_key(key: str) -> Contestant:
    """Return a contestant; KeyError if there is none."""
    return {one.key: one for one in CONTESTANTS}[key]
