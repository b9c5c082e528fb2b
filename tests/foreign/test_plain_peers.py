"""redsync (Go), node-redlock (JavaScript), redis-py and leasehold share one plain key, as processes of their own."""

from __future__ import annotations

import pytest

from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

PROGRAMS = ("redsync", "node-redlock")
THEIRS = (*PROGRAMS, "redis-py")
OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.25
"""Seconds for a release of theirs without a message, and for a busy machine."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def commands(program):
    return {theirs: program(theirs) for theirs in PROGRAMS}


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, namespace, commands, theirs):
    with lock_peers(redis_server, "plain", namespace, commands=commands) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)


def test_four_libraries_count_together(redis_server, namespace, commands):
    with lock_peers(redis_server, "plain", namespace, commands=commands) as peers:
        check_counting(peers, (*THEIRS, *OURS), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, namespace, commands, ours, theirs):
    with lock_peers(redis_server, "plain", namespace, 10.0, commands) as peers:
        check_exclusion(peers, ours, theirs, POLLED)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_a_killed_holder_blocks_for_a_lease(redis_server, namespace, commands, ours, theirs, record_property):
    with lock_peers(redis_server, "plain", namespace, 1.5, commands) as peers:
        for killed, next_ in ((ours, theirs), (theirs, ours)):
            took = check_kill(peers, killed, next_, 1.5, POLLED)
            record_property("ms:layouts: free after kill -9, plain", round(took * 1000))
