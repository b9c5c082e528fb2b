"""redsync (Go) with three pools, node-redlock (JavaScript) with three clients and leasehold share one quorum's lock."""

from __future__ import annotations

import pytest

from leasehold_lab.servers import RedlockNodes
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

THEIRS = ("redsync", "node-redlock")
OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.35
"""Seconds for a release of theirs without a message, a round of votes, and a busy machine."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def url():
    with RedlockNodes(3) as nodes:
        yield f"{nodes.url}?layout=plain"


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, url, namespace, program, theirs):
    with lock_peers(redis_server, url, namespace, commands={theirs: program(theirs)}) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)


def test_four_libraries_count_together(redis_server, url, namespace, program):
    commands = {theirs: program(theirs) for theirs in THEIRS}
    with lock_peers(redis_server, url, namespace, commands=commands) as peers:
        check_counting(peers, (*THEIRS, "redlock-py", *OURS), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, url, namespace, program, ours, theirs):
    with lock_peers(redis_server, url, namespace, 10.0, {theirs: program(theirs)}) as peers:
        check_exclusion(peers, ours, theirs, POLLED)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_a_killed_holder_blocks_for_a_lease(redis_server, url, namespace, program, ours, theirs, record_property):
    with lock_peers(redis_server, url, namespace, 1.5, {theirs: program(theirs)}) as peers:
        for killed, next_ in ((ours, theirs), (theirs, ours)):
            took = check_kill(peers, killed, next_, 1.5, POLLED)
            record_property("ms:layouts: free after kill -9, plain Redlock", round(took * 1000))
