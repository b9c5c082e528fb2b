"""One name, used as a mutex, a read-write lock or a semaphore, one after the other."""

from __future__ import annotations

import itertools
import time

import pytest
from shared_calls import NAMES, READER, WRITER, a_ticket, claim, expire, leave, permit, renew, state

from leasehold._model import (
    Granted,
    Kind,
    LockMode,
    ReleaseReason,
    RenewalResult,
    Wait,
)
from leasehold._runtimes.base import finish
from leasehold.errors import NameInUse
from leasehold.stores.redis import keys
from leasehold_lab.servers import RedisServer


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.permutations([LockMode(), READER, WRITER, permit(5), permit(3)], 2)),
    ids=lambda mode: f"{mode.kind}-{mode.exclusive}-{mode.limit}",
)
def test_a_name_has_one_use_at_a_time_and_the_error_names_both(server, store, first, second):
    if first.kind is second.kind is Kind.READ_WRITE:
        return
    name, holder, waiter, other = next(NAMES), a_ticket(first), a_ticket(first), a_ticket(second)
    claim(store, name, holder)
    if first.exclusive:
        claim(store, name, waiter)
    before = state(server, name)
    for join in (True, False):
        with pytest.raises(NameInUse) as caught:
            claim(store, name, other, join=join)
        for mode in (first, second):
            words = f"semaphore of {mode.limit}" if mode.kind is Kind.SEMAPHORE else mode.kind.value
            assert words in str(caught.value)
        assert not leave(store, name, other)
    assert state(server, name) == before
    leave(store, name, waiter)
    leave(store, name, holder)
    assert isinstance(claim(store, name, other), Granted)
    assert leave(store, name, other)


def free_for_a_mutex(server: RedisServer, name: str) -> None:
    """Let the time pass after which the name is free for a mutex."""
    server.command("PEXPIRE", keys.shared_keys("default", name)[0], 3_600_000 - 1)


@pytest.mark.parametrize(("first", "others"), [(READER, [permit(5), LockMode()]), (LockMode(), [READER, permit(5)])])
def test_a_waiter_counts_as_a_use_of_the_name(server, store, first, others):
    """The holder is dead, and the waiter has not noticed yet."""
    name, holder, waiter = next(NAMES), a_ticket(first), a_ticket(WRITER if first is READER else first)
    claim(store, name, holder)
    claim(store, name, waiter)
    if first is READER:
        expire(server, name, holder)
    else:
        free_for_a_mutex(server, name)
    for other in others:
        with pytest.raises(NameInUse):
            claim(store, name, a_ticket(other))
    assert renew(store, (name, waiter)) == [RenewalResult.QUEUED]  # and it hands the name over
    assert finish(store.wait(name, waiter, 1, timeout=1.0)) is not None


def test_a_renewed_shared_hold_keeps_a_mutex_out(server, store):
    name, reader = next(NAMES), a_ticket()
    claim(store, name, reader)
    lock = keys.shared_keys("default", name)[0]
    server.command("PEXPIRE", lock, 3_600_000 + 100)  # so much is left of the lease
    assert renew(store, (name, reader)) == [RenewalResult.HELD]
    assert 29_000 < server.command("PTTL", lock) - 3_600_000 <= 30_001
    with pytest.raises(NameInUse):
        claim(store, name, a_ticket(LockMode()))


@pytest.mark.parametrize("mode", [READER, WRITER, permit(5)], ids=["reader", "writer", "permit"])
def test_the_lock_delay_of_a_mutex_blocks_shared_holders(server, store, mode):
    name, holder, next_one = next(NAMES), a_ticket(LockMode(), lock_delay=10.0), a_ticket(mode)
    claim(store, name, holder)
    leave(store, name, holder, ReleaseReason.BREAK)
    wait = claim(store, name, next_one)
    assert isinstance(wait, Wait)
    assert 9.0 < wait.ask_again < 10.1
    assert wait.held_by is None
    with pytest.raises(NameInUse):  # from now on it is the waiter's use that counts
        claim(store, name, a_ticket(LockMode()))


@pytest.mark.parametrize("mode", [READER, WRITER, permit(5)], ids=["reader", "writer", "permit"])
@pytest.mark.parametrize("noticed", [False, True])
def test_the_lock_delay_of_a_shared_holder_blocks_a_mutex(server, store, mode, noticed):
    name, holder, mutex = next(NAMES), a_ticket(mode, lease=0.2, lock_delay=10.0), a_ticket(LockMode())
    claim(store, name, holder)
    with pytest.raises(NameInUse):
        claim(store, name, mutex)
    time.sleep(0.25)
    if noticed:
        assert isinstance(claim(store, name, a_ticket(mode), join=False), Wait)
    for _ in range(2):
        wait = claim(store, name, mutex)
        assert isinstance(wait, Wait)
        assert 9.0 < wait.ask_again < 10.0
        assert wait.held_by is None
    with pytest.raises(NameInUse):  # from now on it is the waiter's use that counts
        claim(store, name, a_ticket(mode))
    assert renew(store, (name, mutex), (name, holder)) == [RenewalResult.QUEUED, RenewalResult.GONE]
    free_for_a_mutex(server, name)
    assert isinstance(claim(store, name, mutex), Granted)
    assert leave(store, name, mutex)
    assert isinstance(claim(store, name, a_ticket(mode)), Granted)


def test_a_shared_holder_beside_a_lock_delay_keeps_a_mutex_out(store):
    name, dead, alive = next(NAMES), a_ticket(lease=0.2, lock_delay=10.0), a_ticket()
    claim(store, name, dead)
    claim(store, name, alive)
    time.sleep(0.25)
    for mutex in (a_ticket(LockMode()), a_ticket(LockMode())):
        with pytest.raises(NameInUse):
            claim(store, name, mutex)
        assert isinstance(claim(store, name, a_ticket(), join=False), Wait)
    assert leave(store, name, alive)
    assert isinstance(claim(store, name, a_ticket(LockMode())), Wait)


def test_a_mutex_clears_the_state_of_an_earlier_use(server, store):
    """The lock was evicted, and a mutex acquired the name: the earlier reader has lost its hold for good."""
    name, ghost, between = next(NAMES), a_ticket(), a_ticket(LockMode())
    claim(store, name, ghost)
    server.command("DEL", keys.shared_keys("default", name)[0])
    assert isinstance(claim(store, name, between), Granted)
    assert renew(store, (name, ghost)) == [RenewalResult.GONE]
    assert leave(store, name, between)
    readers = [a_ticket() for _ in range(3)]
    for reader in readers:
        assert isinstance(claim(store, name, reader), Granted)
    assert renew(store, (name, ghost)) == [RenewalResult.GONE]
    (view,) = finish(store.inspect(name, exact=True))
    assert [entry.ticket.id for entry in view.holders] == [reader.id for reader in readers]
