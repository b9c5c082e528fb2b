"""The conformance kit on the stores of this library, in the harnesses in which each can live."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold.layouts.redis import plain, redisson, spring
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.memory import MemoryStore
from leasehold.stores.mysql.session import MySQLSessionStore
from leasehold.stores.mysql.store import MySQLStore
from leasehold.stores.postgres.session import SessionStore
from leasehold.stores.postgres.store import PostgresStore
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.redlock.store import RedlockStore
from leasehold.stores.redis.sentinel.store import SentinelStore
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.sqlite.store import SQLiteStore
from leasehold.stores.zookeeper.store import ZooKeeperStore
from leasehold_lab.conformance import Case, cases
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness, SimulatedHarness
from leasehold_lab.servers import (
    EtcdCluster,
    EtcdServer,
    Group,
    PostgresServer,
    RedisReplicas,
    RedisServer,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)

REAL: dict[str, Callable[[], Harness]] = {"blocking": BlockingHarness, "asyncio": AsyncioHarness}
SIMULATED: dict[str, Callable[[], Harness]] = {
    f"simulated-{seed}": partial(SimulatedHarness, seed) for seed in range(3)
}

IN_MEMORY = Path("/dev/shm")
"""Where SQLite's files are, if it is there: on a disk that others write to, one commit may take longer than a lease."""

LONGEST = 120.0
"""Seconds of the longest lease in strict mode: the kit has one of 60 s, lock delay included."""

STRICT = replace(RedisStore.capabilities, batches=False, longest=LONGEST)

STORES = {
    "memory": (MemoryStore.capabilities, REAL | SIMULATED),  # simulated time needs a store that lives in it
    "sqlite": (SQLiteStore.capabilities, REAL),
    "redis": (RedisStore.capabilities, REAL),
    "redis-plain": (plain.CAPABILITIES, REAL),
    "redis-redisson": (redisson.CAPABILITIES, REAL),
    "redis-spring": (spring.CAPABILITIES, REAL),
    "replicas": (RedisStore.capabilities, REAL),
    "strict": (STRICT, REAL),
    "sentinel": (SentinelStore.capabilities, REAL),
    "cluster": (ClusterStore.capabilities, REAL),
    "redlock": (RedlockStore.capabilities, REAL),
    "etcd": (EtcdStore.capabilities, REAL),
    "etcd-cluster": (EtcdStore.capabilities, REAL),
    "mariadb": (MySQLStore.capabilities, REAL),
    "mariadb-session": (MySQLSessionStore.capabilities, REAL),
    "postgresql": (PostgresStore.capabilities, REAL),
    "postgresql-session": (SessionStore.capabilities, REAL),
    "zookeeper": (ZooKeeperStore.capabilities, REAL),
    "zookeeper-ensemble": (ZooKeeperStore.capabilities, REAL),
}
"""What each promises, and in which harnesses it can live."""

BY_DAY: dict[str, tuple[int, ...]] = {
    "memory": (0, 3),
    "sqlite": (1, 2),
    "redis-plain": (0, 3),
    "redis-redisson": (1, 2),
    "redlock": (1, 2),
    "replicas": (),
    "sentinel": (0,),
    "cluster": (1,),
    "redis-spring": (1, 2),
    "mariadb-session": (0, 3),
    "postgresql-session": (1, 2),
    "mariadb": (0, 3),
    "postgresql": (1, 2),
    "etcd": (0, 3),
    "zookeeper": (1, 2),
}
"""Stores of which by day a part runs: each case has four quarters, two neighbours by two flavors.

By night all of it runs. Where a store has half by day, each case runs in one flavor, in turn. Those that share an
algorithm with `redis`, which runs all, have less. In virtual time all cases run on memory.
"""

SPARSE = {"strict": 15, "etcd-cluster": 15, "zookeeper-ensemble": 15}
"""Stores of which by day only every so-manieth case runs, in one flavor each: an algorithm that others run in full."""


def marks(store: str, harness: str, number: int) -> list[pytest.MarkDecorator]:
    if (every := SPARSE.get(store)) is not None:
        chosen = number % every == 0 and number // every % 2 == list(REAL).index(harness)
        return [] if chosen else [pytest.mark.nightly]
    quarter = number % 2 + 2 * list(REAL).index(harness) if harness in REAL else 0
    return [] if quarter in BY_DAY.get(store, range(4)) else [pytest.mark.nightly]


NOT_HERE = {
    "redis-redisson": [
        *(f"{lock}/waiters_enter_in_order_of_arrival" for lock in ("lock", "rlock", "one-name")),
        "lock/a_name_has_one_kind_at_a_time",
    ]
}
"""Cases that do not hold: with Redisson, as in Java, only fair locks are served in order of arrival, and the key of a
semaphore stays after its last permit is back."""

WAITING = {
    "renewals_keep_a_short_lease_alive",
    "max_hold_ends_the_renewals",
    "renew_sets_the_lease_to_its_full_length",
    "a_lock_delay_follows_an_expiry",
    "on_lost_is_not_called_after_a_release",
    "a_lock_outlives_the_task_or_thread_that_acquired_it",
    "a_waiter_that_timed_out_is_skipped",
    "a_waiter_keeps_its_queue_entry_beyond_its_lease",
    "a_block_that_lost_its_lock_raises",
}
"""Cases that do little but wait, for seconds. In real time all kinds of locks run them side by side, as one test."""


def runs() -> list[Any]:
    """Return the parameters of each test: its store, its harness and its cases."""
    found = list[Any]()
    for store, (promised, harnesses) in STORES.items():
        for harness_name, harness in harnesses.items():
            alongside: dict[str, list[tuple[str, Case]]] = {}
            for number, (name, case) in enumerate(cases(promised)):
                if name in NOT_HERE.get(store, ()):
                    continue
                body, marked = name.partition("/")[2], marks(store, harness_name, number)
                named = [(name, case)]
                if body in WAITING and harness_name in REAL and not marked:
                    if body in alongside:
                        alongside[body] += named
                        continue
                    name, named = body, alongside.setdefault(body, named)
                found.append(pytest.param(store, harness, named, id=f"{store}-{harness_name}-{name}", marks=marked))
    return found


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    request.node.user_properties.append((f"store:{store}", True))
    if store == "sqlite":
        with tempfile.TemporaryDirectory(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None) as folder:
            yield f"sqlite:{folder}/locks.db"
    elif store.startswith("postgresql"):
        database: PostgresServer = request.getfixturevalue("postgres_server")
        yield database.url + ("?mode=session" if store == "postgresql-session" else "")
    elif store == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        yield etcd.url
    elif store == "etcd-cluster":
        cluster: EtcdCluster = request.getfixturevalue("etcd_cluster")
        yield cluster.url
    elif store == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        yield server.url
    elif store.startswith("redis-"):
        shared: RedisServer = request.getfixturevalue("redis_server")
        yield f"{shared.url}?layout={store.removeprefix('redis-')}{'&registry=locks' if 'spring' in store else ''}"
    elif store in ("replicas", "sentinel", "cluster"):
        group: Group = request.getfixturevalue(f"redis_{store}")
        yield group.url
    elif store == "strict":
        replicas: RedisReplicas = request.getfixturevalue("redis_replicas")
        used_for_long(replicas.primary, request.getfixturevalue("monkeypatch"))
        yield f"{replicas.url}?strict=true&longest_lease={LONGEST:g}"
    elif store == "redlock":
        nodes: Group = request.getfixturevalue("redlock_nodes")
        yield nodes.url
    elif store == "mariadb":
        yield request.getfixturevalue("mariadb_url")
    elif store == "mariadb-session":
        yield f"{request.getfixturevalue('mariadb_url')}?mode=session"
    elif store == "zookeeper":
        zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        yield f"{zookeeper.url}/conformance"
    elif store == "zookeeper-ensemble":
        ensemble: ZooKeeperEnsemble = request.getfixturevalue("zookeeper_ensemble")
        yield f"{ensemble.url}/conformance"
    else:
        yield "memory:conformance"


def used_for_long(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all namespaces share one marker, of a quarantine that is over; each case has a namespace of its own."""
    marker = keys.marker_key("conformance", "")
    monkeypatch.setattr(keys, "marker_key", lambda namespace, number: marker)
    found = {name: str(server.command("INFO", name)) for name in ("server", "replication")}
    run = re.search(r"run_id:(\w+)", found["server"])
    history = re.search(r"master_replid:(\w+)", found["replication"])
    assert run is not None
    assert history is not None
    server.command("HSET", marker, "i", f"{run[1]} {history[1]}", "u", 0, "l", round(LONGEST * 1000))


@pytest.mark.parametrize(("store", "harness", "named"), runs())
def test_conformance(store: str, harness: Callable[[], Harness], named: list[tuple[str, Case]], url: str) -> None:
    def run(name: str, case: Case) -> None:
        try:
            harness().run(lambda harness: case(harness, url))
        except BaseException as error:
            error.add_note(f"in {name}")
            raise

    if len(named) == 1:
        run(*named[0])
        return
    with ThreadPoolExecutor(len(named)) as threads:
        for done in [threads.submit(run, name, case) for name, case in named]:
            done.result()


def test_every_case_says_what_it_states() -> None:
    stated = dict(cases())
    assert len(stated) == len(list(cases())), "two cases have the same id"
    assert all(case.__doc__ for case in stated.values())


def test_each_case_runs_once_on_each_store_in_each_harness() -> None:
    ran = Counter(
        (store, harness, name) for store, harness, named in (run.values for run in runs()) for name, _ in named
    )
    assert ran == Counter(
        (store, harness, name)
        for store, (promised, harnesses) in STORES.items()
        for harness in harnesses.values()
        for name, _ in cases(promised)
        if name not in NOT_HERE.get(store, ())
    )
    assert {name.partition("/")[2] for name, _ in cases()} >= WAITING
