"""The contestants: leasehold, the floors, and other libraries."""

from __future__ import annotations

from dataclasses import replace

from leasehold_lab.bench.contestant import ASYNCIO, BLOCKING, BOTH, FILE, REDLOCK, Contestant, Disturbance, Role
from leasehold_lab.bench.peers import PEERS
from leasehold_lab.bench.places import StoreKind

OURS = Contestant(
    "leasehold",
    "leasehold",
    Role.OURS,
    "ours",
    BOTH,
    "",
    settings="defaults: lease 30 s, renewed, with token and queue",
    places=frozenset(StoreKind),
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
        places=frozenset(StoreKind) - REDLOCK,
    ),
    Contestant(
        "floor-postgresql",
        "floor: two statements",
        Role.FLOOR,
        "floors.postgres_rows",
        BLOCKING,
        "psycopg",
        settings="two prepared statements that change a row, each a transaction, over a bare connection of psycopg",
        places=frozenset({StoreKind.POSTGRES}),
    ),
    Contestant(
        "floor-mysql",
        "floor: two statements",
        Role.FLOOR,
        "floors.mysql_rows",
        BLOCKING,
        "pymysql",
        settings="two statements that change a row, each a transaction, over a bare connection of PyMySQL",
        places=frozenset({StoreKind.MYSQL}),
    ),
    Contestant(
        "floor-zookeeper",
        "floor: create, delete",
        Role.FLOOR,
        "floors.nodes",
        BLOCKING,
        "kazoo",
        settings="one ephemeral node created and deleted over a bare session of kazoo; no queue",
        places=frozenset({StoreKind.ZOOKEEPER}),
    ),
    Contestant(
        "floor-etcd",
        "floor: put, delete",
        Role.FLOOR,
        "floors.keys",
        BLOCKING,
        "",
        settings="a key put unless it exists, and deleted, a transaction each, over bare HTTP; no lease, no queue",
        places=frozenset({StoreKind.ETCD}),
    ),
    Contestant(
        "floor-majority",
        "floor: slowest of 3 fastest",
        Role.FLOOR,
        "floors.majority",
        BLOCKING,
        "hiredis",
        settings="leasehold's bytes for a single server to all of them at once, until the majority has answered",
        places=frozenset({StoreKind.REDLOCK}),
    ),
    OURS,
    *[
        replace(
            OURS,
            key=f"leasehold-{disturbance}",
            title=f"leasehold, one of five {disturbance}",
            settings=f"as leasehold; one server is {disturbance} as the trial begins, after connecting to all",
            places=frozenset({StoreKind.REDLOCK}),
            idle=False,
            disturbance=disturbance,
        )
        for disturbance in Disturbance
    ],
    *PEERS,
)


def by_key(key: str) -> Contestant:
    """Return a contestant; KeyError if there is none."""
    return {one.key: one for one in CONTESTANTS}[key]
