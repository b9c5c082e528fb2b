"""Processes with redis-py's Lock and processes with leasehold share one plain key; and a service migrates in place."""

from __future__ import annotations

import time

import pytest

from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.25
"""Seconds for a release of redis-py's lock, which sends no message, and for a busy machine."""


def test_both_kinds_count_together(redis_server, namespace):
    with lock_peers(redis_server, "plain", namespace) as peers:
        check_counting(peers, ("redis-py",) * 3 + ("ours", "ours-asyncio", "ours"), 300)


@pytest.mark.parametrize("ours", OURS)
def test_each_kind_keeps_the_other_out_and_is_served_after_it(redis_server, namespace, ours):
    with lock_peers(redis_server, "plain", namespace, 10.0) as peers:
        check_exclusion(peers, ours, "redis-py", POLLED)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_of_either_kind_blocks_for_a_lease(redis_server, namespace, ours, record_property):
    with lock_peers(redis_server, "plain", namespace, 1.5) as peers:
        for killed, next_ in ((ours, "redis-py"), ("redis-py", ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, 1.5, POLLED)
            record_property("ms:layouts: free after kill -9, plain", round(took * 1000))


def test_a_killed_waiter_delays_nobody_for_long(redis_server, namespace):
    """The waiter behind a dead one looks once a second, until the dead one's entry has ended."""
    with lock_peers(redis_server, "plain", namespace, 10.0) as peers:
        holder, dead, alive = peers.start("redis-py", "ours", "ours-asyncio")
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
            time.sleep(0.3)
        dead.kill()
        start = time.monotonic()
        assert holder.ask("unlock") == "released"
        assert alive.answer().startswith("held")
        assert time.monotonic() - start < 1.5 + 0.25


def test_a_service_migrates_while_it_runs(redis_server, namespace):
    """Processes of the old kind are replaced one by one; old and new count under the same lock all the while."""
    visits, rounds = 40, 4
    with lock_peers(redis_server, "plain", namespace) as peers:
        instances = peers.start(*["redis-py"] * rounds)
        expected, mixes = 0, list[set[str]]()
        for number in range(rounds + 1):
            mixes.append({peer.kind for peer in instances})
            for peer in instances:
                peer.order(f"count {visits}")
            for peer in instances:
                assert (answer := peer.answer()) == "counted", f"{peer.kind}: {answer}"
            expected += visits * rounds
            assert peers.counted() == expected
            if number < rounds:  # roll out: the next old instance ends, a new one starts
                instances[number].kill()
                instances[number] = peers.start(OURS[number % 2])[0]
        assert mixes[0] == {"redis-py"}
        assert mixes[2] == {"redis-py", *OURS}
        assert mixes[-1] == set(OURS)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens)), "tokens of the new kind rise from its first hold on"


def test_a_service_migrates_without_a_pause(redis_server, namespace):
    """An old instance is killed in the middle of its work: the others go on, and no update is lost."""
    with lock_peers(redis_server, "plain", namespace, 0.6) as peers:
        old = peers.start("redis-py", "redis-py")
        for peer in old:
            peer.order("count 100000")
        for number, kind in enumerate(OURS):
            (new,) = peers.start(kind)
            assert new.ask("count 60") == "counted"
            old[number].kill()
            redis_server.command("DEL", f"{namespace}:room")  # it may have died inside: its visit is cut off
        for peer in peers.start("ours", "ours-asyncio"):
            assert peer.ask("count 30") == "counted"
        visits = peers.visits()
        assert visits["ours"] == visits["ours-asyncio"] == 90
        # Killed between its write and its entry in the list, an instance has counted once without an entry.
        assert peers.counted() - sum(visits.values()) in (0, 1, 2)
