"""Redisson (Java) and leasehold share one lock on a Redis Cluster, as processes of their own."""

from __future__ import annotations

import time

import pytest

from leasehold_lab.servers import RedisCluster
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

THEIRS = ("redisson", "redisson-fenced")
OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.35
"""Seconds after a release of Java's, which our waiters do not hear on a cluster, and of a busy machine."""

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
    return dict.fromkeys(THEIRS, program("redisson"))


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, url, namespace, commands, theirs):
    with lock_peers(redis_server, url, namespace, commands=commands) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for _, token in peers.log() if token]
        assert len(tokens) == (1800 if theirs == "redisson-fenced" else 900)
        assert tokens == sorted(set(tokens)), "one counter, which rises over the holds of both sides"


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, url, namespace, commands, ours, theirs):
    with lock_peers(redis_server, url, namespace, 10.0, commands) as peers:
        check_exclusion(peers, ours, theirs, POLLED)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_a_killed_holder_blocks_for_a_lease(redis_server, url, namespace, commands, ours, theirs):
    with lock_peers(redis_server, url, namespace, 3.0, commands) as peers:
        for killed, next_ in ((ours, theirs), (theirs, ours)):
            check_kill(peers, killed, next_, 3.0, POLLED)


@pytest.mark.parametrize("ours", OURS)
def test_a_hold_of_either_side_moves_with_its_slot(cluster, redis_server, url, namespace, commands, ours):
    """Java does not wait meanwhile: Redisson 4.7.0 raises where a waiter's channel has moved to another node."""

    def migrate():
        source = cluster.primary_of(namespace)
        cluster.migrate(namespace, next(node for node in cluster.primaries if node is not source)).finish()

    with lock_peers(redis_server, url, namespace, 3.0, commands) as peers:
        theirs, mine = peers.start("redisson-fenced", ours)
        theirs.acquires()
        mine.order("lock")
        time.sleep(0.3)
        migrate()
        time.sleep(3.5)
        assert theirs.ask("unlock") == "released"
        assert mine.answer().startswith("held")
        migrate()
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            assert theirs.ask("try") == "none"
            time.sleep(0.05)
        assert mine.ask("unlock") == "released"
        assert theirs.ask("try").startswith("held")
        assert theirs.ask("unlock") == "released"
