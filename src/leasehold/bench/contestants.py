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
        rests: it is measured in holding and waiting, too.

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
    rests: bool = False


BOTH = frozenset({Mode.BLOCKING, Mode.ASYNCIO})
BLOCKING = frozenset({Mode.BLOCKING})
ASYNCIO = frozenset({Mode.ASYNCIO})
FILE = frozenset({Mode.FILE})

OURS = Contestant(
    "leasehold",
    "leasehold",
    Role.OURS,
    "ours",
    BOTH | FILE,
    settings="defaults: lease 30 s, renewed, with token and queue",
    rests=True,
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
    Contestant(
        "floor-renewals",
        "floor: pipelined PEXPIRE",
        Role.FLOOR,
        "renewals",
        ASYNCIO,
        "hiredis",
        settings="one key for each lock, all renewed each 10 s by pipelined PEXPIRE",
        rests=True,
    ),
    Contestant(
        "floor-sqlite",
        "floor: two transactions",
        Role.FLOOR,
        "transactions",
        FILE,
        "sqlite3",
        settings="two times BEGIN IMMEDIATE, one row written, COMMIT; WAL, synchronous=FULL as leasehold has it",
    ),
    OURS,
    Contestant(
        "redis-py",
        "redis-py Lock",
        Role.PEER,
        "redis_py",
        BOTH,
        package="redis",
        settings="timeout=30, else defaults (polls each 0.1 s); more than 50 tasks: a blocking pool of 50",
        rests=True,
    ),
    Contestant(
        "python-redis-lock",
        "python-redis-lock",
        Role.PEER,
        "python_redis_lock",
        BLOCKING,
        "redis_lock",
        "python-redis-lock",
        settings="expire=30, without auto_renewal (with it, it is slower)",
    ),
    Contestant(
        "coredis",
        "coredis lock",
        Role.PEER,
        "coredis_lock",
        ASYNCIO,
        "coredis",
        "coredis",
        settings="timeout=30, else defaults (polls each 0.1 s); at most 50 connections",
        rests=True,
    ),
    Contestant(
        "sherlock",
        "sherlock",
        Role.PEER,
        "sherlock_lock",
        BLOCKING,
        "sherlock",
        "sherlock",
        settings="expire=30, timeout=3600, else defaults (polls each 0.1 s)",
    ),
    Contestant(
        "pottery",
        "pottery Redlock",
        Role.PEER,
        "pottery_redlock",
        BOTH,
        "pottery",
        "pottery",
        settings="one server, auto_release_time=30; asyncio with more than 50 tasks: a blocking pool of 50",
    ),
    Contestant(
        "redlock-ng",
        "redlock-ng",
        Role.PEER,
        "redlock_ng",
        BOTH,
        "redlock.lock",
        "redlock-ng",
        settings="one server, ttl 30 s, blocking=True, else defaults (polls each 0.1 to 0.3 s)",
    ),
    Contestant(
        "filelock",
        "filelock",
        Role.PEER,
        "file_lock",
        FILE,
        "filelock",
        "filelock",
        settings="FileLock, defaults: a lock of the operating system; no lease, no token, no queue, nothing written",
    ),
)


def by_key(key: str) -> Contestant:
    """Return a contestant; KeyError if there is none."""
    return {one.key: one for one in CONTESTANTS}[key]
