"""A lock that Redisson (Java) and leasehold share on a Redis Cluster, while its slot moves to another node."""

from __future__ import annotations

import time

import pytest

from leasehold_lab.servers import RedisCluster
from support.lock_peers import lock_peers

KINDS = {"": "redisson-fenced", "-fair": "redisson-fair", "-write": "redisson-write", "-permit": "redisson-permit"}
"""Their kind for each of ours."""

NOTIFIED = 0.05 + 0.2
"""Seconds after a message, on a busy machine."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(outlive):
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


@pytest.fixture
def url(cluster):
    return f"{cluster.url}?layout=redisson"


@pytest.fixture
def commands(program):
    return dict.fromkeys(KINDS.values(), program("redisson"))


@pytest.fixture
def migrate(cluster, namespace):
    """Moves the lock's slot to another node, at once."""

    def move():
        source = cluster.primary_of(namespace)
        cluster.migrate(namespace, next(node for node in cluster.primaries if node is not source)).finish()

    return move


LEASE = 10.0

SCANNED = 6.5
"""Seconds after which Java knows where the slot is: it looks every five."""


@pytest.mark.parametrize("ours", ["ours", "ours-asyncio"])
@pytest.mark.parametrize("shape", KINDS)
def test_a_hold_of_either_side_moves_with_its_slot(redis_server, url, namespace, commands, migrate, ours, shape):
    """Java does nothing meanwhile: in Redisson 4.7.0 a waiter, and an unlock soon after, may raise an error."""
    with lock_peers(redis_server, url, namespace, LEASE, commands) as peers:
        theirs, mine, *others = peers.start(KINDS[shape], ours + shape, *[ours + shape] * 2 * (shape == "-permit"))
        for holder in (*others, theirs):
            holder.acquires()
        mine.order("lock")
        time.sleep(0.3)
        migrate()
        time.sleep(SCANNED)
        assert theirs.ask("unlock") == "released"
        start = time.monotonic()
        assert mine.answer().startswith("held")
        assert time.monotonic() - start < NOTIFIED
        migrate()
        until = time.monotonic() + LEASE + 1.0
        while time.monotonic() < until:
            assert theirs.ask("try") == "none"
            time.sleep(0.05)
        assert mine.ask("unlock") == "released"
        assert theirs.ask("try").startswith("held")
        assert theirs.ask("unlock") == "released"
