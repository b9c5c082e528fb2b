"""Hazelcast's FencedLock (Java) and leasehold share one lock, as processes of their own."""

from __future__ import annotations

import statistics

import pytest
from hazelcast_members import TTL, cluster

from leasehold import Client
from leasehold._runtimes.base import run_sync
from leasehold.stores.hazelcast import inspecting
from leasehold.stores.hazelcast.connection import requests
from support.lock_peers import check_counting, check_exclusion, check_kill, wake_in_turn

OURS = ("ours", "ours-asyncio")

THEIRS = "hazelcast"

BOTH = (THEIRS, "spring-hazelcast")
"""Hazelcast's own `getLock`, and the registry of Spring Integration."""

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
    return dict.fromkeys(BOTH, program("hazelcast"))


@pytest.mark.parametrize("theirs", BOTH)
def test_three_and_three_count_together(share, members, theirs):
    with share(members.url, 10.0) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for _, token in peers.log()]
        assert len(tokens) == 1800
        assert tokens == sorted(set(tokens)), "the fence rises over the holds of both sides"


def test_they_share_a_lock_in_another_group(share, members):
    with share(f"{members.url}?group=other", 10.0) as peers:
        check_counting(peers, (*BOTH, *OURS), 50)
        tokens = [token for _, token in peers.log()]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("theirs", BOTH)
@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out_and_is_notified_by_it(share, members, ours, theirs):
    with share(members.url, 20.0) as peers:
        check_exclusion(peers, ours, theirs, NOTIFIED)


@pytest.mark.parametrize(("ours", "theirs"), [*zip(OURS, BOTH, strict=True), (OURS[1], THEIRS)])
def test_a_killed_holder_blocks_for_its_session(share, members, ours, theirs, record_property):
    with share(members.url, 4.0) as peers:
        for killed, next_ in ((ours, theirs), (theirs, ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, TTL, EXPIRY - TTL)
            record_property("ms:layouts: free after kill -9, hazelcast", round(took * 1000))


@pytest.mark.parametrize("killed", [*OURS, THEIRS])
def test_a_killed_waiter_delays_nobody_for_longer_than_its_session(share, members, killed):
    """The servers hand the lock to a dead waiter, too, until its session ends."""
    with share(members.url, 10.0) as peers:
        holder, dead, alive = peers.start(THEIRS, killed, "ours")
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
        dead.kill()
        assert holder.ask("unlock") == "released"
        assert alive.answer(within=EXPIRY + 1.0).startswith("held")


def test_a_holder_in_java_is_listed_and_its_lock_can_be_freed(share, members):
    with share(members.url, 10.0) as peers, Client.from_url(members.url) as us:
        (holder,) = peers.start(THEIRS)
        token = holder.acquires()
        (found,) = us.holds(peers.key)
        assert found.name == peers.key
        assert found.token == token
        assert us.force_release(peers.key, token)
        assert us.lock(peers.key).acquire(timeout=5.0).release()
        assert holder.ask("unlock") == "IllegalMonitorStateException"


def test_a_holder_in_java_is_told_at_its_next_call_that_its_session_ended(share, members):
    with share(members.url, 10.0) as peers, Client.from_url(members.url) as us:
        (holder,) = peers.start(THEIRS)
        token = holder.acquires()
        store = us.store
        until = store._runtime.now() + 10.0
        (view,) = run_sync(store.inspect(peers.key, exact=True))
        session, _ = inspecting.owner_in(view.holders[0].ticket.id)
        group = run_sync(store._sessions.current(until)).group
        run_sync(store._driver.ask(*requests.close_session(group, session), until))
        with us.lock(peers.key, timeout=5.0) as hold:
            assert hold.token > token
            assert holder.ask("unlock") == "LockOwnershipLostException"


@pytest.mark.timing
@pytest.mark.parametrize("ours", OURS)
def test_a_waiter_is_woken_within_50_ms(share, members, ours, record_property):
    """Half of ten waiters of each side are, from the other side's release to their answer, over two pipes."""
    with share(members.url, 20.0) as peers:
        took = wake_in_turn(peers, ours, THEIRS)
    for side, times in took.items():
        record_property(f"ms:layouts: {side} woken by the other side", round(statistics.median(times) * 1000))
        assert statistics.median(times) < 0.05, f"{side}: {times}"
