"""Hazelcast's FencedLock (Java) and leasehold share one lock, as processes of their own."""

from __future__ import annotations

import pytest
from hazelcast_members import TTL, cluster

from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

THEIRS = "hazelcast"

NOTIFIED = 0.05 + 0.25
"""Seconds from a release to the next holder, and of a busy machine: the servers send a message."""

EXPIRY = TTL + 2.0 + 1.5
"""Seconds until the servers have ended a session: they look once a second, and its last heartbeat was a second ago."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def members(program):
    with cluster(program("hazelcast")[:-1]) as made:
        yield made


@pytest.fixture
def commands(program):
    return {THEIRS: program("hazelcast")}


def test_three_and_three_count_together(redis_server, members, namespace, commands):
    with lock_peers(redis_server, members.url, namespace, 10.0, commands=commands) as peers:
        check_counting(peers, (THEIRS,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for _, token in peers.log()]
        assert len(tokens) == 1800
        assert tokens == sorted(set(tokens)), "the fence rises over the holds of both sides"


def test_they_share_a_lock_in_another_group(redis_server, members, namespace, commands):
    with lock_peers(redis_server, f"{members.url}?group=other", namespace, 10.0, commands=commands) as peers:
        check_counting(peers, (THEIRS, *OURS), 50)
        tokens = [token for _, token in peers.log()]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out_and_is_notified_by_it(redis_server, members, namespace, commands, ours):
    with lock_peers(redis_server, members.url, namespace, 20.0, commands) as peers:
        check_exclusion(peers, ours, THEIRS, NOTIFIED)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_blocks_for_its_session(redis_server, members, namespace, commands, ours, record_property):
    with lock_peers(redis_server, members.url, namespace, 4.0, commands) as peers:
        for killed, next_ in ((ours, THEIRS), (THEIRS, ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, EXPIRY, 0.0)
            record_property("ms:layouts: free after kill -9, hazelcast", round(took * 1000))


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_waiter_delays_nobody_for_longer_than_its_session(redis_server, members, namespace, commands, ours):
    """The servers hand the lock to a dead waiter, too, until its session ends."""
    with lock_peers(redis_server, members.url, namespace, 10.0, commands) as peers:
        holder, dead, alive = peers.start(THEIRS, ours, ours)
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
        dead.kill()
        assert holder.ask("unlock") == "released"
        assert alive.answer(within=EXPIRY + 1.0).startswith("held")
