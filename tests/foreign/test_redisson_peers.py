"""Redisson (Java) and leasehold share one lock, on one server and on a cluster, as processes of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from leasehold_lab.servers import RedisCluster
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers, note, note_kill

THEIRS = ("redisson", "redisson-fenced")
OTHERS = ("redisson-fair", "redisson-read", "redisson-write", "redisson-permit")
OURS = ("ours", "ours-asyncio")
FAIR = ("ours-fair", "ours-asyncio-fair")

NOTIFIED = 0.05
"""Seconds from a release to the next holder: there are messages."""

NOISE = 0.2
"""Seconds of a busy machine."""

pytestmark = pytest.mark.timeout(900)


class Place(NamedTuple):
    """Where the lock is: its layout or URL, and what runs a command on the server that has its keys."""

    there: str
    command: Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(outlive):
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group


@pytest.fixture(params=["server", "cluster"])
def place(request, redis_server, namespace):
    if request.param == "server":
        return Place("redisson", redis_server.command)
    group = request.getfixturevalue("cluster")
    return Place(f"{group.url}?layout=redisson", lambda *words: group.primary_of(namespace).command(*words))


@pytest.fixture
def commands(program):
    return dict.fromkeys(THEIRS + OTHERS, program("redisson"))


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, place, namespace, commands, theirs):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for _, token in peers.log() if token]
        assert len(tokens) == (1800 if theirs == "redisson-fenced" else 900)
        assert tokens == sorted(set(tokens)), "one counter, which rises over the holds of both sides"


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_each_side_keeps_the_other_out_and_is_notified_by_it(redis_server, place, namespace, commands, ours, theirs):
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        check_exclusion(peers, ours, theirs, NOTIFIED + NOISE)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_blocks_for_a_lease(redis_server, place, namespace, commands, ours, record_property):
    with lock_peers(redis_server, place.there, namespace, 3.0, commands) as peers:
        for killed, next_ in ((ours, "redisson"), ("redisson", ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, 3.0, NOISE)
            record_property("ms:layouts: free after kill -9, redisson", round(took * 1000))


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("shape", ["", "-write"])
def test_a_killed_waiter_delays_nobody(redis_server, place, namespace, commands, ours, shape):
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        kinds = ("redisson", "redisson", ours, ours)
        holder, dead, dead_too, alive = peers.start(*(kind + shape for kind in kinds))
        holder.acquires()
        for waiter in (dead, dead_too, alive):
            waiter.order("lock")
            time.sleep(0.3)
        dead.kill()
        dead_too.kill()
        start = time.monotonic()
        assert holder.ask("unlock") == "released"
        assert alive.answer().startswith("held")
        assert time.monotonic() - start < NOTIFIED + NOISE


@pytest.mark.parametrize("ours", OURS)
def test_the_watchdogs_of_both_sides_keep_the_lock(redis_server, place, namespace, commands, ours):
    with lock_peers(redis_server, place.there, namespace, 1.0, commands) as peers:
        for first, second in (peers.start(ours, "redisson"), peers.start("redisson", ours)):
            first.acquires()
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert second.ask("try") == "none"
                time.sleep(0.05)
            assert first.ask("unlock") == "released"
            assert second.acquires() >= 0
            assert second.ask("unlock") == "released"


def test_no_key_but_the_counter_is_left(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, ("redisson-fenced", *OURS), 50)
        left = {str(key) for key in place.command("KEYS", f"*{namespace}*")}
        assert left - {f"{namespace}:{part}" for part in ("count", "log")} == {
            f"redisson_lock_token:{{{namespace}}}",
            f"leasehold:layout:redisson:{{{namespace}}}:side",
        }


# --- the fair lock -------------------------------------------------------------------------------------------------


def test_three_and_three_count_together_in_turn(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, ("redisson-fair",) * 3 + (*FAIR, "ours-fair"), 300)
        for key in (f"redisson_lock_queue:{{{namespace}}}", f"redisson_lock_timeout:{{{namespace}}}", namespace):
            assert place.command("EXISTS", key) == 0


@pytest.mark.parametrize("ours", FAIR)
def test_each_side_of_a_fair_lock_is_notified_by_the_other(redis_server, place, namespace, commands, ours):
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        check_exclusion(peers, ours, "redisson-fair", NOTIFIED + NOISE)


ORDER = ("ours-fair", "redisson-fair", "ours-asyncio-fair", "redisson-fair", "ours-fair", "redisson-fair")


def test_waiters_of_both_sides_are_served_in_order_of_arrival(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        holder, *waiting = peers.start("redisson-fair", *ORDER)
        for shift in range(3):  # each kind is the first, after each kind
            holder.acquires()
            turn = waiting[shift:] + waiting[:shift]
            for waiter in turn:
                waiter.order("lock")
                time.sleep(0.3)
            assert holder.ask("unlock") == "released"
            for number, waiter in enumerate(turn):
                assert waiter.answer().startswith("held")
                time.sleep(0.1)
                assert not [late.kind for late in turn[number + 1 :] if not late._said.empty()]
                assert waiter.ask("unlock") == "released"


@pytest.mark.parametrize("ours", FAIR)
def test_a_killed_fair_holder_blocks_for_a_lease(redis_server, place, namespace, commands, ours):
    with lock_peers(redis_server, place.there, namespace, 3.0, commands) as peers:
        for killed, next_ in ((ours, "redisson-fair"), ("redisson-fair", ours)):
            check_kill(peers, killed, next_, 3.0, NOISE)


@pytest.mark.parametrize("ours", FAIR)
@pytest.mark.parametrize("behind", ["ours-fair", "redisson-fair"])
def test_a_killed_fair_waiter_of_ours_loses_its_place_in_two_leases(
    redis_server, place, namespace, commands, ours, behind
):
    with lock_peers(redis_server, place.there, namespace, 2.0, commands) as peers:
        holder, dead, alive = peers.start("redisson-fair", ours, behind)
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
            time.sleep(0.3)
        time.sleep(1.0)
        dead.kill()
        start = time.monotonic()
        assert holder.ask("unlock") == "released"
        assert alive.answer().startswith("held")
        assert time.monotonic() - start < 2.0 + NOISE


@pytest.mark.parametrize("ours", FAIR)
def test_a_killed_fair_waiter_of_redisson_keeps_its_place_for_its_own_time(
    redis_server, place, namespace, commands, ours
):
    with lock_peers(redis_server, place.there, namespace, 2.0, commands) as peers:
        holder, dead, alive = peers.start(ours, "redisson-fair", ours)
        holder.acquires()
        for waiter in (dead, alive):
            waiter.order("lock")
            time.sleep(0.3)
        dead.kill()
        first, _ = place.command("LRANGE", f"redisson_lock_queue:{{{namespace}}}", 0, -1)
        ends = time.time() + 1.5  # else five minutes
        place.command("ZADD", f"redisson_lock_timeout:{{{namespace}}}", "XX", round(ends * 1000), first)
        assert holder.ask("unlock") == "released"
        assert alive.answer().startswith("held")
        assert -0.01 < time.time() - ends < NOISE


# --- readers and writers -------------------------------------------------------------------------------------------

READ = ("ours-read", "ours-asyncio-read")
WRITE = ("ours-write", "ours-asyncio-write")


def test_readers_and_writers_of_both_sides_count_together(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, ("redisson-read", "redisson-write", "redisson-write", *WRITE, *READ), 300)
        tokens = [token for kind, token in peers.log() if kind in WRITE]
        assert tokens == sorted(set(tokens))
        assert not place.command("KEYS", f"{{{namespace}}}:*:rwlock_timeout:*")
        assert place.command("EXISTS", namespace) == 0


def test_three_writers_and_three_writers_count_together(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, ("redisson-write",) * 3 + (*WRITE, "ours-write"), 300)


@pytest.mark.parametrize("ours", [*READ, *WRITE])
@pytest.mark.parametrize("theirs", ["redisson-read", "redisson-write"])
def test_each_side_of_a_read_write_lock_is_notified_by_the_other(
    redis_server, place, namespace, commands, ours, theirs
):
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        if "write" in ours + theirs:
            check_exclusion(peers, ours, theirs, NOTIFIED + NOISE)
        else:
            together = peers.start(ours, theirs, ours, theirs)
            assert [peer.ask("try").partition(" ")[0] for peer in together] == ["held"] * 4
            assert [peer.ask("unlock") for peer in together] == ["released"] * 4


@pytest.mark.parametrize("killed", ["ours-read", "ours-asyncio-write", "redisson-read", "redisson-write"])
def test_a_killed_reader_or_writer_blocks_for_a_lease(redis_server, place, namespace, commands, killed):
    with lock_peers(redis_server, place.there, namespace, 3.0, commands) as peers:
        for next_ in ("ours-write", "redisson-write"):
            check_kill(peers, killed, next_, 3.0, NOISE)


@pytest.mark.parametrize("stays", ["ours-read", "redisson-read"])
def test_a_killed_reader_delays_a_writer_for_its_lease_only_while_another_reads(
    redis_server, place, namespace, commands, stays
):
    with lock_peers(redis_server, place.there, namespace, 2.0, commands) as peers:
        for killed in ("ours-read", "redisson-read"):
            dead, reader, writer = peers.start(killed, stays, "ours-write")
            dead.acquires()
            reader.acquires()
            writer.order("lock")
            time.sleep(0.3)
            at = dead.kill()
            time.sleep(max(0.0, at + 2.0 + NOISE - time.monotonic()))
            start = time.monotonic()
            assert reader.ask("unlock") == "released"
            assert writer.answer().startswith("held")
            assert time.monotonic() - start < NOTIFIED + NOISE
            assert writer.ask("unlock") == "released"


# --- permits -------------------------------------------------------------------------------------------------------

PERMIT = ("ours-permit", "ours-asyncio-permit")

SKEW = 1.0
"""Seconds for which a permit of ours outlives its lease."""


def test_three_and_three_never_have_more_permits_than_there_are(redis_server, place, namespace, commands):
    with lock_peers(redis_server, place.there, namespace, commands=commands) as peers:
        check_counting(peers, ("redisson-permit",) * 3 + (*PERMIT, "ours-permit"), 300)
        assert place.command("GET", namespace) == "3", "all of them are free"
        assert place.command("ZCARD", f"{{{namespace}}}:timeout") == 0


@pytest.mark.parametrize("ours", PERMIT)
def test_each_side_is_notified_of_a_permit_of_the_other(redis_server, place, namespace, commands, ours):
    with lock_peers(redis_server, place.there, namespace, 60.0, commands) as peers:
        for first, waits in ((ours, "redisson-permit"), ("redisson-permit", ours)):
            *holders, waiter = peers.start(first, waits, first, waits)
            for holder in holders:
                assert holder.ask("try").startswith("held")
            assert waiter.ask("try") == "none"
            waiter.order("lock")
            time.sleep(0.3)
            start = time.monotonic()
            assert holders[0].ask("unlock") == "released"
            assert waiter.answer().startswith("held")
            assert time.monotonic() - start < NOTIFIED + NOISE
            for peer in (*holders[1:], waiter):
                assert peer.ask("unlock") == "released"


@pytest.mark.parametrize("killed", [*PERMIT, "redisson-permit"])
def test_a_permit_of_a_killed_holder_is_free_after_its_lease(redis_server, place, namespace, commands, killed):
    with lock_peers(redis_server, place.there, namespace, 3.0, commands) as peers:
        for next_ in ("ours-permit", "redisson-permit"):
            dead, *holders, waiter = peers.start(killed, "ours-permit", "ours-permit", next_)
            for holder in (dead, *holders):
                assert holder.ask("try").startswith("held")
            waiter.order("lock")
            time.sleep(0.3)
            at = dead.kill()
            assert waiter.answer().startswith("held")
            took = time.monotonic() - at
            assert took < 3.0 + SKEW + NOISE
            note_kill(peers, killed, next_, took, 3.0)
            for peer in (*holders, waiter):
                assert peer.ask("unlock") == "released"


# --- how soon a waiter is woken --------------------------------------------------------------------------------------

PAIRS = {"": "redisson", "-fair": "redisson-fair", "-write": "redisson-write", "-permit": "redisson-permit"}


@pytest.mark.timing
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("shape", PAIRS)
def test_a_waiter_is_woken_within_50_ms(redis_server, place, namespace, commands, ours, shape, record_property):
    """Half of ten waiters of each side are, from the other side's release to their answer, over two pipes."""
    theirs, ours, took = PAIRS[shape], ours + shape, {True: list[float](), False: list[float]()}
    with lock_peers(redis_server, place.there, namespace, 10.0, commands) as peers:
        pair = peers.start(ours, theirs)
        others = peers.start(*[ours] * 2) if shape == "-permit" else []
        for other in others:
            other.acquires()
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
        for mine, times in took.items():
            for one in times:
                note(peers, theirs, "woken", side="ours" if mine else "theirs", ms=round(one * 1000))
    for side, times in ((ours, took[True]), (theirs, took[False])):
        record_property(f"ms:layouts: {side} woken by the other side", round(statistics.median(times) * 1000))
        assert statistics.median(times) < NOTIFIED, f"{side}: {times}"
