"""Read-write locks and semaphores on Redis when something breaks: types, memory, and keys that vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis.crc
from shared_calls import NAMES, READER, ROLES, WRITER, a_ticket, claim, expire, leave, renew, state

from leasehold._model import (
    Granted,
    Kind,
    LockMode,
    ReleaseReason,
    RenewalResult,
    Ticket,
)
from leasehold._runtimes.base import finish
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer

# --- the wrong type ----------------------------------------------------------------------------------------------


ATTEMPTS: dict[str, Callable[[RedisStore, str, Ticket, Ticket], object]] = {
    "read": lambda store, name, _, __: claim(store, name, a_ticket()),
    "fair": lambda store, name, _, __: claim(store, name, a_ticket(LockMode(Kind.READ_WRITE, fair=True))),
    "try": lambda store, name, _, __: claim(store, name, a_ticket(WRITER), join=False),
    "again": lambda store, name, _, waiter: claim(store, name, waiter),
    "leave waiting": lambda store, name, _, waiter: leave(store, name, waiter),
    "leave holding": lambda store, name, holder, _: leave(store, name, holder),
    "break": lambda store, name, holder, _: leave(store, name, holder, ReleaseReason.BREAK),
    "look": lambda store, name, _, __: finish(store.inspect(name, exact=True)),
}


@pytest.mark.parametrize("held", [True, False], ids=["held", "expired"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_key_of_the_wrong_type_changes_nothing(server, store, role, what, held):
    name, holder, waiter = next(NAMES), a_ticket(lock_delay=1.0), a_ticket(WRITER)
    claim(store, name, holder)
    claim(store, name, waiter)
    if not held:
        expire(server, name, holder)
    key = keys.shared_keys("default", name)[ROLES.index(role)]
    server.command("DEL", key)
    server.command("SET", key, "not ours", "PX", 100_000)
    before = state(server, name)
    assert renew(store, (name, waiter)) == [RenewalResult.UNKNOWN]
    with pytest.raises(StoreUnavailable, match="WRONGTYPE") as caught:
        ATTEMPTS[what](store, name, holder, waiter)
    assert not caught.value.unknown
    assert state(server, name) == before


@pytest.mark.parametrize("role", ["lock", "holders", "terms"])
def test_a_key_of_the_wrong_type_fails_only_its_own_renewal(server, store, role):
    held = [(next(NAMES), a_ticket()) for _ in range(5)]
    for name, ticket in held:
        claim(store, name, ticket)
    for broken in (0, 2):  # the first is the one that the script writes to before all others
        key = keys.shared_keys("default", held[broken][0])[ROLES.index(role)]
        server.command("DEL", key)
        server.command("SET", key, "not ours")
    gone, there = RenewalResult.GONE, RenewalResult.HELD
    assert renew(store, *held) == [gone, there, gone, there, there]


# --- no memory ---------------------------------------------------------------------------------------------------


@pytest.fixture
def full(server: RedisServer) -> Iterator[Callable[[], object]]:
    """Fill the memory when called."""
    yield lambda: server.command("CONFIG", "SET", "maxmemory", "100kb")
    server.command("CONFIG", "SET", "maxmemory", "0")


def test_full_memory_refuses_acquires_only(server, store, full):
    name, free = next(NAMES), next(NAMES)
    first, second, expired, writer, reader = (a_ticket(mode) for mode in (READER, READER, READER, WRITER, READER))
    for ticket in (first, second, expired, writer):
        claim(store, name, ticket)
    claim(store, name, reader := a_ticket(LockMode(Kind.READ_WRITE, exclusive=False, fair=True)))
    expire(server, name, expired)
    before = state(server, name), state(server, free)
    full()
    for where in (name, free):
        for fair in (False, True):
            with pytest.raises(StoreUnavailable, match="OOM") as caught:
                claim(store, where, a_ticket(LockMode(Kind.READ_WRITE, exclusive=False, fair=fair)))
            assert not caught.value.unknown
    assert (state(server, name), state(server, free)) == before
    granted = claim(store, name, first)  # the same answer to who holds already
    assert isinstance(granted, Granted)
    assert renew(store, (name, first), (name, second)) == [RenewalResult.HELD, RenewalResult.HELD]
    assert renew(store, (name, expired)) == [RenewalResult.GONE]
    assert renew(store, (name, writer), (name, reader)) == [RenewalResult.QUEUED, RenewalResult.QUEUED]
    assert leave(store, name, first)
    assert leave(store, name, second)
    assert finish(store.wait(name, writer, 1, timeout=1.0)) is not None
    assert leave(store, name, writer, ReleaseReason.BREAK)
    assert finish(store.wait(name, reader, 1, timeout=1.0)) is not None
    assert leave(store, name, reader)
    assert finish(store.inspect(name, exact=True)) == []


# --- keys that vanish, and their life ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_the_state_is_consistent_after_one_key_was_deleted(server, store, role):
    """Counters are computed anew from the remaining holders; every key expires; an unused name blocks no client."""
    name = next(NAMES)
    tickets = [a_ticket(), a_ticket(), a_ticket(LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True))]
    waiters = [a_ticket(WRITER), a_ticket(WRITER)]
    for ticket in (*tickets, *waiters):
        claim(store, name, ticket)
    those = keys.shared_keys("default", name)
    server.command("DEL", those[ROLES.index(role)])
    claim(store, name, late := a_ticket())
    for key in those:
        assert server.command("PTTL", key) != -1
    result = renew(store, *((name, ticket) for ticket in tickets))
    assert set(result) == {RenewalResult.GONE if role in ("holders", "terms") else RenewalResult.HELD}
    if role not in ("holders", "terms"):
        assert int(server.command("HGET", those[0], "c")) == 4
        assert int(server.command("HGET", those[0], "u")) == 1
    for ticket in (*tickets, late, *waiters):
        leave(store, name, ticket)
    assert finish(store.inspect(name, exact=True)) == []
    assert isinstance(claim(store, name, a_ticket(WRITER), join=False), Granted)


def test_every_key_expires_and_only_the_token_outlives_its_users(server, store):
    name, long, short, waiter = (
        next(NAMES),
        a_ticket(lease=50.0, lock_delay=5.0),
        a_ticket(lease=10.0),
        a_ticket(WRITER),
    )
    for ticket in (long, short, waiter):
        claim(store, name, ticket)
    those, kept = keys.shared_keys("default", name), 3_600_000
    assert 54_000 < server.command("PTTL", those[0]) - kept <= 55_001
    for key in those[1:]:
        assert kept / 2 < server.command("PTTL", key) <= kept + 55_001
    for ticket in (long, short, waiter):
        assert leave(store, name, ticket)
    assert 0 < server.command("PTTL", those[0]) <= kept
    assert server.command("EXISTS", *those[1:]) == 0
    assert set(server.command("HKEYS", those[0])) == {"k", "f"}


def test_the_keys_outlive_a_lease_of_days(server, store):
    week = 7 * 86_400.0
    name, ticket = next(NAMES), a_ticket(lease=week)
    claim(store, name, ticket)
    server.command("DEL", keys.shared_keys("default", name)[0])
    claim(store, name, a_ticket())  # the counters are made anew, and with them the life of what they were made from
    for key in (keys.shared_keys("default", name)[i] for i in (0, 4, 5)):
        assert server.command("PTTL", key) > (week - 10) * 1000


def test_all_keys_of_a_name_share_a_slot():
    for name in ("a", "stock:42", "{}", "{a}b", "}{", "é", "x" * 512):
        assert len({redis.crc.key_slot(key) for key in keys.shared_keys("default", name)}) == 1
        assert len(set(keys.shared_keys("default", name))) == 6
