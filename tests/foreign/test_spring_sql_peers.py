"""Spring Integration's JdbcLockRegistry (Java) and leasehold share one row, as processes of their own."""

from __future__ import annotations

import time

import pytest

from leasehold import tables
from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

MARGIN = 0.3
"""Seconds, in the URLs here: all processes are on one host."""

POLLED = 0.15 + 0.35
"""Seconds for a release without a message, and for a busy machine."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def commands(program):
    return {"spring-jdbc": program("spring")}


@pytest.fixture(params=["postgres", "mariadb"])
def url(request):
    server = request.getfixturevalue(f"{request.param}_server").url
    url = f"{server}?layout=spring&margin={MARGIN}"
    tables.create(url)
    return url


def test_three_and_three_count_together(redis_server, url, namespace, commands, record_property):
    with lock_peers(redis_server, url, namespace, commands=commands) as peers:
        start = time.monotonic()
        check_counting(peers, ("spring-jdbc",) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        record_property("s:layouts: 1,800 visits, spring on SQL", round(time.monotonic() - start, 1))


@pytest.mark.parametrize("ours", OURS)
def test_each_side_keeps_the_other_out_and_is_served_after_it(redis_server, url, namespace, commands, ours):
    with lock_peers(redis_server, url, namespace, 20.0, commands) as peers:
        check_exclusion(peers, ours, "spring-jdbc", POLLED)


@pytest.mark.parametrize("ours", OURS)
def test_a_killed_holder_blocks_for_a_lease_and_the_margins(
    redis_server, url, namespace, commands, ours, record_property
):
    with lock_peers(redis_server, url, namespace, 2.0, commands) as peers:
        for killed, next_ in ((ours, "spring-jdbc"), ("spring-jdbc", ours), (ours, "ours")):
            took = check_kill(peers, killed, next_, 2.0, MARGIN + POLLED)
            record_property("ms:layouts: free after kill -9, spring on SQL", round(took * 1000))


def test_a_holder_of_spring_that_does_not_renew_is_followed_and_its_late_release_frees_nobody(
    redis_server, url, namespace, commands
):
    with lock_peers(redis_server, url, namespace, 1.0, commands) as peers:
        theirs, ours, other = peers.start("spring-jdbc", "ours", "ours")
        theirs.acquires()
        ours.acquires()
        assert theirs.ask("unlock").startswith("refused")
        assert other.ask("try") == "none"
        assert ours.ask("unlock") == "released"


def test_our_watchdog_keeps_the_row(redis_server, url, namespace, commands):
    with lock_peers(redis_server, url, namespace, 1.0, commands) as peers:
        ours, theirs = peers.start("ours", "spring-jdbc")
        ours.acquires()
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            assert theirs.ask("try") == "none"
            time.sleep(0.05)
        assert ours.ask("unlock") == "released"
        assert theirs.acquires() == 0
