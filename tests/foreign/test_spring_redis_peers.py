"""Spring Integration's RedisLockRegistry (Java) and leasehold share one key, as processes of their own."""

from __future__ import annotations

import pytest

from support.lock_peers import check_counting, check_exclusion, check_kill, lock_peers

OURS = ("ours", "ours-asyncio")

POLLED = 0.15 + 0.35
"""Seconds for a release, perhaps without a message, and for a busy machine."""

pytestmark = pytest.mark.timeout(900)

THEIRS = ("spring-redis", "spring-redis-pubsub")
"""Both types of RedisLockRegistry."""


@pytest.fixture
def url(redis_server):
    return f"{redis_server.url}?layout=spring&registry=locks"


@pytest.fixture
def commands(program):
    return dict.fromkeys(THEIRS, tuple(program("spring")))


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, url, namespace, commands, theirs):
    with lock_peers(redis_server, url, namespace, commands=commands) as peers:
        check_counting(peers, (theirs,) * 3 + ("ours", "ours-asyncio", "ours"), 300)
        tokens = [token for kind, token in peers.log() if kind in OURS]
        assert tokens == sorted(set(tokens))


def test_both_types_count_together(redis_server, url, namespace, commands):
    with lock_peers(redis_server, url, namespace, commands=commands) as peers:
        check_counting(peers, (*THEIRS, *OURS), 100)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", THEIRS)
def test_each_side_keeps_the_other_out(redis_server, url, namespace, commands, ours, theirs):
    with lock_peers(redis_server, url, namespace, 20.0, commands) as peers:
        check_exclusion(peers, ours, theirs, POLLED)


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_killed_holder_blocks_for_a_lease(redis_server, url, namespace, commands, theirs, record_property):
    """A waiter of the type PUB_SUB_LOCK gets no message of an expiry: it polls when its wait of a TTL is over."""
    pubsub = theirs == THEIRS[1]
    with lock_peers(redis_server, url, namespace, 2.0, commands) as peers:
        for killed, next_ in (("ours", theirs), (theirs, "ours"), ("ours-asyncio", "ours-asyncio")):
            noise = 2.0 + POLLED if pubsub and next_ == theirs else POLLED
            took = check_kill(peers, killed, next_, 2.0, noise)
            record_property(f"ms:layouts: free after kill -9, {theirs}", round(took * 1000))
