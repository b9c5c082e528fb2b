"""A script that fails changes nothing; a key of the wrong type affects its name only; full memory allows releases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from leasehold._model import (
    Change,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    Wait,
)
from leasehold._runtimes.base import finish
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.stores.redis.calls import a_ticket, claim, leave, open_store, renew, state

NAMES = (f"job:{number}" for number in itertools.count())
ROLES = ("lock", "queue", "beat", "waiters")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = open_store(server.url)
    finish(opened._transport.listen(5.0))
    yield opened
    finish(opened.close())


# --- the wrong type --------------------------------------------------------------------------------------------


def attempts(store: RedisStore, name: str, holder: Ticket, waiter: Ticket) -> dict[str, object]:
    """All operations on a name, as calls that return whether there was an error."""
    refusals: list[StoreUnavailable] = []

    def fails(call: object) -> bool:
        try:
            call()  # type: ignore[operator]
        except StoreUnavailable as error:
            refusals.append(error)
            return True
        return False

    return {
        "claim": lambda: fails(lambda: claim(store, name, a_ticket())),
        "fair claim": lambda: fails(lambda: claim(store, name, a_ticket(fair=True))),
        "try": lambda: fails(lambda: claim(store, name, a_ticket(), join=False)),
        "fair try": lambda: fails(lambda: claim(store, name, a_ticket(fair=True), join=False)),
        "again": lambda: fails(lambda: claim(store, name, waiter)),
        "stay": lambda: renew(store, (name, waiter)) == [RenewalResult.UNKNOWN],
        "leave waiting": lambda: fails(lambda: leave(store, name, waiter)),
        "leave holding": lambda: fails(lambda: leave(store, name, holder)),
        "break": lambda: fails(lambda: leave(store, name, holder, ReleaseReason.BREAK)),
        "look": lambda: fails(lambda: finish(store.inspect(name, exact=True))),
        "refusals": refusals,
    }


@pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "what",
    ["claim", "fair claim", "try", "fair try", "again", "stay", "leave waiting", "leave holding", "break", "look"],
)
def test_a_key_of_the_wrong_type_changes_nothing_else(server, store, role, what, held):
    """A "free" name has waiters, and its holder's lease has expired: the next acquire hands it over."""
    name, holder, waiter = next(NAMES), a_ticket(), a_ticket()
    claim(store, name, holder)
    claim(store, name, waiter)
    mutex = keys.mutex_keys("default", name)
    if not held:
        server.command("PEXPIRE", mutex[0], 3_600_000 - 1)
    server.command("DEL", mutex[ROLES.index(role)])
    if role == "lock" and what in ("leave waiting", "again"):
        server.command("RPUSH", mutex[0], "no lock")
    else:
        server.command("SET", mutex[ROLES.index(role)], "not ours", "PX", 100_000)
    before = state(server, name)
    asked = attempts(store, name, holder, waiter)
    if asked[what]():  # type: ignore[operator]
        assert state(server, name) == before
    for error in asked["refusals"]:  # type: ignore[attr-defined]
        assert "WRONGTYPE" in str(error)
        assert not error.unknown
    assert server.command("TYPE", mutex[ROLES.index(role)]) in ("string", "list")


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize("who", ["another", "the same"])
def test_a_key_that_was_deleted_alone_gets_a_time_to_live_again(server, store, role, who):
    """The keys of a queue get theirs together; one that was evicted alone is made anew by the next claim that waits."""
    name, holder, waiter = next(NAMES), a_ticket(), a_ticket()
    claim(store, name, holder)
    claim(store, name, waiter)
    mutex = keys.mutex_keys("default", name)
    assert all(server.command("PTTL", key) > 3_600_000 for key in mutex)
    server.command("DEL", mutex[ROLES.index(role)])
    claim(store, name, waiter if who == "the same" else a_ticket())
    assert all(server.command("PTTL", key) > 3_600_000 for key in mutex)


def test_a_waiter_that_asks_again_keeps_its_place(server, store):
    name, holder, first, second = next(NAMES), a_ticket(), a_ticket(), a_ticket()
    for ticket in (holder, first, second, first):
        claim(store, name, ticket)
    queue = keys.mutex_keys("default", name)[1]
    assert server.command("ZRANGE", queue, 0, -1) == [first.id, second.id]


@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_the_wrong_type_never_leaves_half_a_grant(server, store, role):
    name = next(NAMES)
    server.command("SET", keys.mutex_keys("default", name)[ROLES.index(role)], "not ours")
    for join in (True, False):
        before, ticket, got, refusal = state(server, name), a_ticket(), None, None
        try:
            got = claim(store, name, ticket, join=join)
        except StoreUnavailable as error:
            refusal = str(error)
        if refusal is not None:
            assert "WRONGTYPE" in refusal
            assert state(server, name) == before
        else:  # a key that this step does not need
            assert isinstance(got, Granted)
            assert leave(store, name, ticket)


def test_a_renewal_that_is_refused_for_all_raises_the_reason(server, store):
    name, ticket = next(NAMES), a_ticket()
    claim(store, name, ticket)
    server.command("REPLICAOF", "127.0.0.1", str(free_port()))
    try:
        with pytest.raises(StoreUnavailable, match="READONLY"):
            renew(store, (name, ticket))
    finally:
        server.command("REPLICAOF", "NO", "ONE")


def test_a_key_of_the_wrong_type_fails_only_its_own_renewal(server, store):
    held = [(next(NAMES), a_ticket()) for _ in range(5)]
    for name, ticket in held:
        claim(store, name, ticket)
    server.command("SET", keys.mutex_keys("default", held[2][0])[0], "not ours")
    assert renew(store, *held) == [
        RenewalResult.HELD,
        RenewalResult.HELD,
        RenewalResult.GONE,
        RenewalResult.HELD,
        RenewalResult.HELD,
    ]


def test_a_cell_of_the_wrong_type_changes_nothing(server, store):
    key = keys.cell_key("default", "c")
    server.command("SET", key, "not ours")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        finish(store.compare_and_set("c", Change(b"value")))
    assert server.command("GET", key) == "not ours"


# --- no memory -------------------------------------------------------------------------------------------------


@pytest.fixture
def full(server: RedisServer) -> Iterator[object]:
    """Fill the memory when called."""
    yield lambda: server.command("CONFIG", "SET", "maxmemory", "100kb")
    server.command("CONFIG", "SET", "maxmemory", "0")


def test_full_memory_refuses_acquires_only(server, store, full):
    name, free, holder, first, second = next(NAMES), next(NAMES), a_ticket(), a_ticket(), a_ticket()
    for ticket in (holder, first, second):
        claim(store, name, ticket)
    before = state(server, name), state(server, free)
    full()
    late_ones = [(a_ticket(fair=fair), where) for fair in (False, True) for where in (name, free)]
    for late, where in late_ones:
        with pytest.raises(StoreUnavailable, match="OOM") as caught:
            claim(store, where, late)
        assert not caught.value.unknown
        finish(store.release(where, late, reason=ReleaseReason.RELEASE, within=5.0))
    assert (state(server, name), state(server, free)) == before
    assert renew(store, (name, holder), (name, first), (name, second)) == [
        RenewalResult.HELD,
        RenewalResult.QUEUED,
        RenewalResult.QUEUED,
    ]
    assert leave(store, name, holder)
    assert finish(store.wait(name, first, 1, timeout=1.0)) is not None
    assert renew(store, (name, first)) == [RenewalResult.HELD]
    assert leave(store, name, first, ReleaseReason.BREAK)
    assert finish(store.wait(name, second, 1, timeout=1.0)) is not None
    assert leave(store, name, second)
    assert finish(store.inspect(name, exact=True)) == []


def test_full_memory_does_not_prevent_hand_over_after_expiry(server, store, full):
    name, holder, waiter = next(NAMES), a_ticket(lease=0.2), a_ticket()
    claim(store, name, holder)
    assert isinstance(claim(store, name, waiter), Wait)
    full()
    server.command("PEXPIRE", keys.mutex_keys("default", name)[0], 3_600_000 - 1)
    assert renew(store, (name, waiter)) == [RenewalResult.QUEUED]  # and it hands the name over
    assert finish(store.wait(name, waiter, 1, timeout=1.0)) is not None


def test_full_memory_refuses_a_cell_and_changes_nothing(server, store, full):
    finish(store.compare_and_set("full", Change(b"one")))
    full()
    with pytest.raises(StoreUnavailable, match="OOM"):
        finish(store.compare_and_set("full", Change(b"two")))
    assert finish(store.compare_and_set("full", Change())).value == b"one"


# --- what a renewal result means ---------------------------------------------------------------------------------


def test_renewal_finds_a_grant_whose_message_was_lost(server, store):
    """The result HELD means a full lease: the watchdog counts it from before its request."""
    name, holder, waiter = next(NAMES), a_ticket(), a_ticket(lease=10.0)
    claim(store, name, holder)
    claim(store, name, waiter)
    leave(store, name, holder)  # the message is not read: a network that is slow
    lock = keys.mutex_keys("default", name)[0]
    server.command("PEXPIRE", lock, 3_600_000 + 4_000)  # six seconds later
    assert renew(store, (name, waiter)) == [RenewalResult.HELD]
    left = server.command("PTTL", lock)
    assert isinstance(left, int)
    assert left - 3_600_000 > 9_000


def test_renewal_reports_an_expired_grant_whose_message_was_lost_as_gone(server, store):
    name, holder, waiter = next(NAMES), a_ticket(), a_ticket(lease=10.0)
    claim(store, name, holder)
    claim(store, name, waiter)
    leave(store, name, holder)
    server.command("PEXPIRE", keys.mutex_keys("default", name)[0], 3_600_000 - 1)
    assert renew(store, (name, waiter)) == [RenewalResult.GONE]


def test_a_grant_message_older_than_the_last_reply_is_ignored(server, store):
    """The grant was force-released before the waiter retried and had to wait: the message of that grant is void."""
    name, holder, waiter, other = next(NAMES), a_ticket(), a_ticket(), a_ticket()
    claim(store, name, holder)
    wait = claim(store, name, waiter)
    assert isinstance(wait, Wait)
    leave(store, name, holder)
    with open_other(server) as second:
        leave(second, name, waiter, ReleaseReason.BREAK)
        assert isinstance(claim(second, name, other), Granted)
    again = claim(store, name, waiter)
    assert isinstance(again, Wait)
    assert finish(store.wait(name, waiter, again.mark, timeout=0.1)) is None


class open_other:
    def __init__(self, server: RedisServer) -> None:
        self.store = open_store(server.url)

    def __enter__(self) -> RedisStore:
        return self.store

    def __exit__(self, *error: object) -> None:
        finish(self.store.close())


def test_a_waiter_without_a_queue_entry_is_gone(server, store):
    """One key of a name may be evicted or deleted alone: then the renewal must report the waiter as gone."""
    name, holder, waiter = next(NAMES), a_ticket(), a_ticket()
    claim(store, name, holder)
    claim(store, name, waiter)
    server.command("DEL", keys.mutex_keys("default", name)[1])
    assert renew(store, (name, waiter)) == [RenewalResult.GONE]


@pytest.mark.parametrize("role", ROLES)
def test_every_key_expires_even_if_one_was_deleted(server, store, role):
    name, holder, first, second = next(NAMES), a_ticket(), a_ticket(), a_ticket()
    claim(store, name, holder)
    claim(store, name, first)
    mutex = keys.mutex_keys("default", name)
    server.command("DEL", mutex[ROLES.index(role)])
    claim(store, name, second)
    renew(store, (name, holder), (name, first), (name, second))
    for key in mutex:
        assert server.command("PTTL", key) != -1
