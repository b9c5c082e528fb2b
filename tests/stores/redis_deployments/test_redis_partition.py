"""A cluster primary is cut off from all other nodes and keeps serving its side, with clients on both sides."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from strict_mode import LONGEST, disturbed, work

from leasehold import Client
from leasehold._runtimes.base import Runtime
from leasehold._url import parse
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection import settings
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.openers import Strict
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.history import History, Hold, check
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import Node, RedisCluster
from support.flavors import both
from support.stores.cluster_bus import Bus
from support.stores.failover_load import LEASE, NOISE, Load

NODE_TIMEOUT = 2.0

PROMOTED = NODE_TIMEOUT + 6.0 + 3 * NOISE
"""Seconds until the names of a primary that was cut off are granted by another: detection, vote, our pauses."""

NAME = "a"


@dataclass(frozen=True)
class Inside:
    """Opens the locks of one node alone, like a client that reaches no other."""

    settings: Settings
    marker: bytes = b""

    def open(self, runtime: Runtime, namespace: str) -> RedisStore:
        return RedisStore(runtime, self.settings, namespace, marker=lambda _: self.marker)


def inside(node: Node, strict: Strict | None = None, marker: bytes = b"") -> Inside:
    found = settings.from_url(parse(f"redis://127.0.0.1:{node.port}"))
    return Inside(replace(found, mode="cluster", strict=strict), marker)


def marker_at(cluster: RedisCluster, node: Node, namespace: str) -> bytes:
    """Return the marker that clients of the whole cluster use for a node."""
    number = keys.number_where(lambda number: cluster.primary_of(keys.marker_key(namespace, str(number))) is node)
    return keys.marker_key(namespace, str(number))


@pytest.fixture
def parted() -> Iterator[tuple[RedisCluster, Bus]]:
    cluster = RedisCluster(node_timeout=NODE_TIMEOUT)
    with Bus(cluster) as bus:
        yield cluster, bus


def owner(cluster: RedisCluster, namespace: str, name: str = NAME) -> Node:
    return cluster.primary_of(keys.mutex_keys(namespace, name)[0])


def refuses(node: Node) -> bool:
    return "cluster_state:fail" in str(node.command("CLUSTER", "INFO"))


def successor(cluster: RedisCluster, old: Node) -> Callable[[], bool]:
    """Return a check whether the other nodes have another primary for the slots of ``old``."""
    others = [node for node in cluster.nodes if node is not old]

    def chosen() -> bool:
        for node in others:
            lines = str(node.command("CLUSTER", "NODES")).splitlines()
            serving = [line for line in lines if re.search(r" connected .*\d", line) and "fail" not in line.split()[2]]
            if any(f":{old.port}@" in line for line in serving):
                return False
        return sum(node.role == "master" for node in others) == 3

    return chosen


@both
def test_no_guarded_write_goes_backwards_while_both_sides_serve(
    harness: Harness, namespace: str, parted: tuple[RedisCluster, Bus]
) -> None:
    cluster, bus = parted
    old = owner(cluster, namespace)

    async def body(harness: Harness) -> None:
        outer = Load(harness, cluster.url, namespace, [NAME])
        inner = Load(harness, inside(old), namespace, [NAME], resource=outer.resource)  # type: ignore[arg-type]
        stop = threading.Event()

        def disturb() -> None:
            for load in (inner, outer):
                load.wait_service(10.0)
            names = (f"only-{number}" for number in range(1000))
            mine = next(name for name in names if owner(cluster, namespace, name) is old)
            bus.cut(old)
            with Client(inside(old), namespace=namespace) as others:  # it goes on serving its side
                assert others.lock(mine).acquire(timeout=0) is not None
            cluster.wait_until(lambda: refuses(old), NODE_TIMEOUT + 2 * NOISE, "a minority stops by its timeout")
            outer.wait_service(PROMOTED)
            cluster.wait_until(successor(cluster, old), PROMOTED, "another has its slots")
            bus.mend(old)
            cluster.wait_until(lambda: old.role == "slave", 20.0, "it follows its successor")
            stop.set()

        job = harness.spawn(lambda: inner.run(stop.wait))
        await outer.run(disturb)
        stop.set()
        await job.result()
        both = Load(harness, cluster.url, namespace, [NAME], resource=outer.resource)
        both.holdings = [*inner.holdings, *outer.holdings]
        both.check()

    harness.run(body)


@both
def test_in_strict_mode_no_two_valid_claims_overlap(
    harness: Harness, namespace: str, parted: tuple[RedisCluster, Bus]
) -> None:
    cluster, bus = parted
    old = owner(cluster, namespace)
    marker = marker_at(cluster, old, namespace)
    holds: list[Hold] = []
    ends = threading.Event()

    def granted(who: str, since: float) -> bool:
        return any(hold.who.startswith(who) and hold.asked > since for hold in list(holds))

    def disturb() -> None:
        for who in ("inside", "outside"):
            cluster.wait_until(lambda who=who: granted(who, 0.0), 20.0, "both sides are served")
        bus.cut(old)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        cluster.wait_until(lambda: refuses(old), NODE_TIMEOUT + 2 * NOISE, "a minority stops by its timeout")
        cluster.wait_until(successor(cluster, old), PROMOTED, "another has its slots")
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        cluster.wait_until(lambda: granted("outside", now), LONGEST + LEASE + 3 * NOISE, "after the quarantine")
        bus.mend(old)

    async def body(harness: Harness) -> None:
        url = f"{cluster.url}?strict=true&longest_lease={LONGEST}"
        async with (
            harness.client(url, namespace=namespace) as outer,
            harness.client(inside(old, Strict(longest=LONGEST), marker), namespace=namespace) as inner,
        ):
            sides: list[tuple[str, Any]] = [("outside", outer), ("inside", inner)]
            jobs = [
                harness.spawn(lambda who=who, locks=locks, n=n: work(harness, locks, f"{who}/{n}", NAME, holds, ends))
                for who, locks in sides
                for n in range(2)
            ]
            await disturbed(harness, disturb, jobs, ends)

    harness.run(body)
    verdict = check(History(holds=tuple(holds)))
    assert not verdict.violations, verdict.report()
