"""The contestants: leasehold, the floors, and other libraries, each configured as its documentation recommends."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from leasehold_lab.bench.places import Place


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
        contends: whether it is also measured in hand-over.
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
    places: frozenset[Place] = frozenset({Place.REDIS})
    contends: bool = True
    idle: bool = False
    disturbance: Disturbance | None = None


BOTH = frozenset({Mode.BLOCKING, Mode.ASYNCIO})
BLOCKING = frozenset({Mode.BLOCKING})
ASYNCIO = frozenset({Mode.ASYNCIO})
FILE = frozenset({Place.FILE})
REDLOCK = frozenset({Place.REDIS, Place.REDLOCK})

OURS = Contestant(
    "leasehold",
    "leasehold",
    Role.OURS,
    "ours",
    BOTH,
    "",
    settings="defaults: lease 30 s, renewed, with token and queue",
    places=frozenset(Place),
    idle=True,
)

CONTESTANTS: tuple[Contestant, ...] = (
    Contestant(
        "floor-scripts",
        "floor: bare socket",
        Role.FLOOR,
        "floors.scripts",
        BOTH,
        "hiredis",
        settings="the same bytes that leasehold sends, from a bare socket (or one asyncio protocol) with hiredis",
    ),
    Contestant(
        "floor-token",
        "floor: BLPOP token",
        Role.FLOOR,
        "floors.token",
        BOTH,
        "hiredis",
        settings="one token passed around by RPUSH and BLPOP; no lease, no notice of a loss",
    ),
    Contestant(
        "floor-renewals",
        "floor: pipelined PEXPIRE",
        Role.FLOOR,
        "floors.renewals",
        ASYNCIO,
        "hiredis",
        settings="one key for each lock, all renewed each 10 s by pipelined PEXPIRE",
        idle=True,
    ),
    Contestant(
        "floor-sqlite",
        "floor: two transactions",
        Role.FLOOR,
        "floors.transactions",
        BLOCKING,
        "sqlite3",
        settings="two times BEGIN IMMEDIATE, one row written, COMMIT; WAL, synchronous=FULL as in leasehold",
        places=FILE,
    ),
    Contestant(
        "floor-synced",
        "floor: two synced writes",
        Role.FLOOR,
        "floors.synced",
        BLOCKING,
        "",
        settings="128 bytes appended to a file and forced to the disk of this machine, twice; no lock at all",
        places=frozenset(Place) - REDLOCK,
    ),
    Contestant(
        "floor-postgresql",
        "floor: two statements",
        Role.FLOOR,
        "floors.postgres_rows",
        BLOCKING,
        "psycopg",
        settings="two prepared statements that change a row, each a transaction, over a bare connection of psycopg",
        places=frozenset({Place.POSTGRES}),
    ),
    Contestant(
        "floor-mysql",
        "floor: two statements",
        Role.FLOOR,
        "floors.mysql_rows",
        BLOCKING,
        "pymysql",
        settings="two statements that change a row, each a transaction, over a bare connection of PyMySQL",
        places=frozenset({Place.MYSQL}),
    ),
    Contestant(
        "floor-zookeeper",
        "floor: create, delete",
        Role.FLOOR,
        "floors.nodes",
        BLOCKING,
        "kazoo",
        settings="one ephemeral node created and deleted over a bare session of kazoo; no queue",
        places=frozenset({Place.ZOOKEEPER}),
    ),
    Contestant(
        "floor-etcd",
        "floor: put, delete",
        Role.FLOOR,
        "floors.keys",
        BLOCKING,
        "",
        settings="a key put unless it exists, and deleted, a transaction each, over bare HTTP; no lease, no queue",
        places=frozenset({Place.ETCD}),
    ),
    Contestant(
        "floor-majority",
        "floor: slowest of 3 fastest",
        Role.FLOOR,
        "floors.majority",
        BLOCKING,
        "hiredis",
        settings="leasehold's bytes for a single server to all of them at once, until the majority has answered",
        places=frozenset({Place.REDLOCK}),
    ),
    OURS,
    *[
        replace(
            OURS,
            key=f"leasehold-{disturbance}",
            title=f"leasehold, one of five {disturbance}",
            settings=f"as leasehold; one server is {disturbance} as the trial begins, after connecting to all",
            places=frozenset({Place.REDLOCK}),
            idle=False,
            disturbance=disturbance,
        )
        for disturbance in Disturbance
    ],
    Contestant(
        "redis-py",
        "redis-py Lock",
        Role.PEER,
        "peers.redis_py",
        BOTH,
        package="redis",
        settings="timeout=30, else defaults (polls each 0.1 s); more than 50 tasks: a blocking pool of 50",
        idle=True,
    ),
    Contestant(
        "python-redis-lock",
        "python-redis-lock",
        Role.PEER,
        "peers.python_redis_lock",
        BLOCKING,
        "redis_lock",
        "python-redis-lock",
        settings="expire=30, without auto_renewal (with it, it is slower)",
    ),
    Contestant(
        "coredis",
        "coredis lock",
        Role.PEER,
        "peers.coredis_lock",
        ASYNCIO,
        "coredis",
        "coredis",
        settings="timeout=30, else defaults (polls each 0.1 s); at most 50 connections",
        idle=True,
    ),
    Contestant(
        "aioredlock",
        "aioredlock",
        Role.PEER,
        "peers.aioredlock_lock",
        ASYNCIO,
        "aioredlock",
        "aioredlock",
        settings="one server, lock_timeout=30, else defaults (three tries, 0.1 to 0.3 s apart; then retried)",
    ),
    Contestant(
        "sherlock",
        "sherlock",
        Role.PEER,
        "peers.sherlock_lock",
        BLOCKING,
        "sherlock",
        "sherlock",
        settings="expire=30, timeout=3600, else defaults (polls each 0.1 s)",
    ),
    Contestant(
        "pottery",
        "pottery Redlock",
        Role.PEER,
        "peers.pottery_redlock",
        BOTH,
        "pottery",
        "pottery",
        settings="auto_release_time=30; asyncio with more than 50 tasks: a blocking pool of 50",
        places=REDLOCK,
    ),
    Contestant(
        "redlock-ng",
        "redlock-ng",
        Role.PEER,
        "peers.redlock_ng",
        BOTH,
        "redlock.lock",
        "redlock-ng",
        settings="ttl 30 s, blocking=True, else defaults (polls each 0.1 to 0.3 s)",
        places=REDLOCK,
    ),
    Contestant(
        "redisson",
        "Redisson (Java)",
        Role.PEER,
        "",
        BLOCKING,
        "",
        settings="RLock, defaults: lease 30 s, renewed, unfair; a Java virtual machine that has compiled its hot code",
        contends=False,
    ),
    Contestant(
        "redsync",
        "redsync (Go)",
        Role.PEER,
        "",
        BLOCKING,
        "",
        settings="expiry 30 s, else defaults: no renewal, polls; goroutines are its threads",
        places=REDLOCK,
        contends=False,
    ),
    Contestant(
        "filelock",
        "filelock",
        Role.PEER,
        "peers.file_lock",
        BLOCKING,
        "filelock",
        "filelock",
        settings="FileLock, defaults: a lock of the operating system; no lease, no token, no queue, nothing written",
        places=FILE,
    ),
    Contestant(
        "kazoo",
        "kazoo Lock",
        Role.PEER,
        "peers.kazoo_lock",
        BLOCKING,
        "kazoo",
        "kazoo",
        settings="defaults; one session for all threads; no lease but the session's, no token",
        places=frozenset({Place.ZOOKEEPER}),
    ),
)


def by_key(key: str) -> Contestant:
    """Return a contestant; KeyError if there is none."""
    return {one.key: one for one in CONTESTANTS}[key]
