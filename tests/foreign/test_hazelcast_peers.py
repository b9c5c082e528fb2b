"""Hazelcast's FencedLock (Java) and leasehold share one lock, as processes of their own."""

from __future__ import annotations

import statistics
import time

import pytest
from hazelcast_members import TTL, cluster

from leasehold_lab.conformance.case_context import held
from support.flavors import both
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

THEIRS = "hazelcast"

THEIR_MAP = "hazelcast-map"

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
    return dict.fromkeys((THEIRS, THEIR_MAP), program("hazelcast"))


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


@pytest.mark.timing
@pytest.mark.parametrize("ours", OURS)
def test_a_waiter_is_woken_within_50_ms(redis_server, members, namespace, commands, ours, record_property):
    """Half of ten waiters of each side are, from the other side's release to their answer, over two pipes."""
    took = {True: list[float](), False: list[float]()}
    with lock_peers(redis_server, members.url, namespace, 20.0, commands) as peers:
        pair = peers.start(ours, THEIRS)
        pair[0].acquires()
        for number in range(20):
            holder, waiter = pair[number % 2], pair[1 - number % 2]
            waiter.order("lock")
            time.sleep(0.1)
            start = time.monotonic()
            holder.order("unlock")
            assert waiter.answer().startswith("held")
            took[waiter.kind == ours].append(time.monotonic() - start)
            assert holder.answer() == "released"
    for side, times in ((ours, took[True]), (THEIRS, took[False])):
        record_property(f"ms:layouts: {side} woken by the other side", round(statistics.median(times) * 1000))
        assert statistics.median(times) < 0.05, f"{side}: {times}"


# --- without CP ----------------------------------------------------------------------------------------------------


@pytest.fixture
def map_url(members):
    return f"{members.url}?without_cp=true&map=locks"


def test_three_and_three_count_together_under_a_lock_of_a_map(redis_server, map_url, namespace, commands):
    with lock_peers(redis_server, map_url, namespace, 10.0, commands=commands) as peers:
        check_counting(peers, (THEIR_MAP,) * 3 + ("ours", "ours-asyncio", "ours"), 300)


@pytest.mark.parametrize("ours", OURS)
def test_each_side_of_a_map_keeps_the_other_out(redis_server, map_url, namespace, commands, ours):
    with lock_peers(redis_server, map_url, namespace, 20.0, commands) as peers:
        check_exclusion(peers, ours, THEIR_MAP, NOTIFIED)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_of_a_map_blocks_for_its_lease(redis_server, map_url, namespace, commands, ours):
    with lock_peers(redis_server, map_url, namespace, 4.0, commands) as peers:
        for killed, next_ in ((ours, THEIR_MAP), (THEIR_MAP, ours), (ours, "ours")):
            check_kill(peers, killed, next_, 4.0 + 2.0, 0.5)


@pytest.mark.parametrize("ours", OURS)
def test_a_holder_of_a_map_keeps_its_lock_by_renewals(redis_server, map_url, namespace, commands, ours):
    with lock_peers(redis_server, map_url, namespace, 1.0, commands) as peers:
        holder, waiter = peers.start(ours, THEIR_MAP)
        holder.acquires()
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert waiter.ask("try") == "none"
            time.sleep(0.05)
        assert holder.ask("unlock") == "released"
        assert waiter.acquires() == 0


@both
def test_a_wait_for_a_map_that_was_given_up_gives_the_lock_back(harness, map_url, namespace):
    async def body(harness):
        client, other = harness.client(map_url), harness.client(map_url)
        hold = held(await other.lock(namespace).acquire())
        assert await client.lock(namespace).acquire(timeout=0.3) is None
        await hold.release()
        start = harness.now()
        await held(await other.lock(namespace).acquire(timeout=5.0)).release()
        assert harness.now() - start < 1.0

    harness.run(body)
