"""Spring Integration's ZookeeperLockRegistry (Java) and leasehold share one node, as processes of their own."""

from __future__ import annotations

import pytest

from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.35
"""Seconds for a release, perhaps without a message, and for a busy machine."""

pytestmark = pytest.mark.timeout(900)

THEIRS = "spring-zookeeper"


@pytest.fixture
def url(zookeeper_server):
    return f"{zookeeper_server.url}/SpringIntegration-LockRegistry?namespace="


@pytest.fixture
def commands(program):
    return {THEIRS: program("spring")}


def test_three_and_three_count_together(redis_server, url, namespace, commands):
    with lock_peers(redis_server, url, namespace, 10.0, commands=commands) as peers:
        check_counting(peers, (THEIRS,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out(redis_server, url, namespace, commands, ours):
    with lock_peers(redis_server, url, namespace, 20.0, commands) as peers:
        check_exclusion(peers, ours, THEIRS, POLLED)


def test_a_killed_holder_blocks_for_its_session(redis_server, url, namespace, commands):
    with lock_peers(redis_server, f"{url}&session_timeout=4", namespace, 4.0, commands) as peers:
        for killed, next_ in (("ours", THEIRS), (THEIRS, "ours")):
            check_kill(peers, killed, next_, 4.0, 4.0)
