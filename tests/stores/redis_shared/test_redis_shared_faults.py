"""Read-write locks and semaphores on Redis when something breaks: types, memory, keys, readers, messages."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import redis.crc

from leasehold._model import (
    Granted,
    Kind,
    LeaseTerms,
    LockMode,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    Wait,
    ticket_id,
)
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores import registry
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import SHARED_CLAIM, SHARED_LEAVE, SHARED_RENEW
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedisServer
from support.flavors import both

NAMES = (f"shared:{number}" for number in itertools.count())
ROLES = ("lock", "queue", "beat", "waiters", "holders", "terms")
READER = LockMode(Kind.READ_WRITE, exclusive=False)
WRITER = LockMode(Kind.READ_WRITE)
LEASE = 0.9
NOISE = 0.25


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(opened, RedisStore)
    finish(opened._transport.listen(5.0))
    yield opened
    finish(opened.close())


def a_ticket(mode: LockMode = READER, *, lease: float = 30.0, lock_delay: float = 0.0) -> Ticket:
    return Ticket(
        ticket_id(BlockingRuntime.random_bytes(16)), LeaseTerms(mode, Owner("host", 1, "x"), lease, lock_delay)
    )


def permit(limit: int, n: int = 1) -> LockMode:
    return LockMode(Kind.SEMAPHORE, exclusive=False, permits=n, limit=limit)


def claim(store: RedisStore, name: str, ticket: Ticket, *, join: bool = True) -> Granted | Wait:
    return finish(store.try_acquire(name, ticket, join=join, within=5.0))


def leave(store: RedisStore, name: str, ticket: Ticket, reason: ReleaseReason = ReleaseReason.RELEASE) -> bool:
    return finish(store.release(name, ticket, reason=reason, within=5.0))


def renew(store: RedisStore, *those: tuple[str, Ticket]) -> list[RenewalResult]:
    return list(finish(store.renew(those, within=5.0)))


def state(server: RedisServer, name: str) -> list[object]:
    those = keys.shared_keys("default", name)
    return [server.command("DEBUG", "DIGEST-VALUE", *those), *(server.command("PEXPIRETIME", key) for key in those)]


def expire(server: RedisServer, name: str, ticket: Ticket) -> None:
    """Let a holder's lease end now."""
    server.command("ZADD", keys.shared_keys("default", name)[4], "XX", "1", ticket.id)


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
    """Counters are computed anew from the remaining holders; every key expires; an unused name blocks nobody."""
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


# --- other uses of the name --------------------------------------------------------------------------------------


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


# --- deaf waiters ------------------------------------------------------------------------------------------------


def test_a_waiter_without_a_subscriber_is_skipped_and_keeps_its_entry_for_a_second(server, store):
    name, writer, deaf, reader = next(NAMES), a_ticket(WRITER), a_ticket(WRITER), a_ticket()
    far = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(far, RedisStore)
    finish(far._transport.listen(5.0))
    claim(store, name, writer)
    claim(far, name, deaf)
    wait = claim(store, name, reader)
    assert isinstance(wait, Wait)
    finish(far.close())
    for _ in range(100):
        if server.command("PUBSUB", "NUMSUB", far._channel)[1] == 0:
            break
        time.sleep(0.01)
    leave(store, name, writer)
    assert finish(store.wait(name, reader, wait.mark, timeout=1.0)) is not None
    (view,) = finish(store.inspect(name, exact=True))
    assert [entry.ticket.id for entry in view.waiters] == [deaf.id]
    assert 0 < view.waiters[0].expires <= 1.001  # the server counts in ms


# --- the dead ----------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from leasehold import Client
locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
for _ in range(int(sys.argv[4])):
    assert eval(sys.argv[3]).acquire() is not None
print("held", flush=True)
time.sleep(60)
"""


class Holder:
    """A process that holds, until it is killed."""

    def __init__(self, server, namespace, what, times=1):
        command = [sys.executable, "-c", HOLD, server.url, namespace, what, str(times)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@both
def test_readers_that_are_killed_keep_a_writer_out_for_a_lease_at_most(server, namespace, harness):
    """With a live reader the writer waits for that one alone; the dead one's lease expires."""
    dead = [Holder(server, namespace, f"locks.rw_lock('x', lease={LEASE}).reader()") for _ in range(3)]

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as locks,
            harness.client(server.url, namespace=namespace) as others,
        ):
            live = await others.rw_lock("x", lease=LEASE).reader().acquire()
            writer = harness.spawn(lambda: locks.rw_lock("x").writer().acquire(timeout=10))
            await harness.sleep(LEASE / 2)
            for holder in dead:
                holder.kill()
            await harness.sleep(LEASE + NOISE)
            live.raise_if_lost()
            assert [who.owner for who in (await locks.inspect("x")).holders] == [live.owner]
            await live.release()
            start = harness.now()
            got = await writer.result()
            assert harness.now() - start < NOISE
            assert got.token > live.token
            await got.release()

    harness.run(body)


@both
def test_the_last_reader_is_killed_and_a_writer_enters_within_the_lease(server, namespace, harness):
    dead = [Holder(server, namespace, f"locks.rw_lock('x', lease={LEASE}).reader()") for _ in range(2)]

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            writer = harness.spawn(lambda: locks.rw_lock("x").writer().acquire(timeout=10))
            await harness.sleep(LEASE / 2)
            for holder in dead:
                holder.kill()
            start = harness.now()
            got = await writer.result()
            assert harness.now() - start < LEASE + NOISE
            await got.release()

    harness.run(body)


@both
def test_permits_of_killed_holders_return_within_the_lease(server, namespace, harness):
    dead = Holder(server, namespace, f"locks.semaphore('x', 5, lease={LEASE})", times=5)

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            partner = locks.semaphore("x", 5)
            assert await partner.acquire(blocking=False) is None
            waiters = [harness.spawn(lambda n=n: partner.acquire(n, timeout=10)) for n in (2, 3)]
            await harness.sleep(0.2)
            dead.kill()
            start = harness.now()
            got = [await waiter.result() for waiter in waiters]
            assert harness.now() - start < LEASE + NOISE
            assert await partner.available() == 0
            for hold in got:
                await hold.release()
            assert await partner.available() == 5

    harness.run(body)


@both
def test_another_waiter_watches_when_the_watching_one_acquires(server, namespace, harness):
    """The leases of killed holders end one after the other: each frees a permit for one of two waiters of a client."""
    dead = [Holder(server, namespace, f"locks.semaphore('x', 2, lease={lease})") for lease in (LEASE, 2 * LEASE)]

    async def body(harness):
        async with harness.client(server.url, namespace=namespace) as locks:
            partner = locks.semaphore("x", 2)
            waiters = [harness.spawn(lambda: partner.acquire(timeout=10)) for _ in range(2)]
            await harness.sleep(0.2)
            for holder in dead:
                holder.kill()
            start = harness.now()
            got = [await waiter.result() for waiter in waiters]
            assert harness.now() - start < 2 * LEASE + NOISE
            for hold in got:
                await hold.release()

    harness.run(body)


EXPIRE_ALL = """
for _, ticket in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 'XX', 1, ticket) end
"""


def test_many_expired_holders_are_removed_in_steps(server, store):
    """While some of them remain, no ticket acquires; waiters retry at once."""
    name, writer = next(NAMES), a_ticket(WRITER)
    for _ in range(1_100):
        assert isinstance(claim(store, name, a_ticket(), join=False), Granted)
    server.command("EVAL", EXPIRE_ALL, 1, keys.shared_keys("default", name)[4])
    first = claim(store, name, writer)
    assert isinstance(first, Wait)
    assert first.ask_again < 0.01
    assert isinstance(claim(store, name, writer), Granted)
    assert server.command("ZCARD", keys.shared_keys("default", name)[4]) == 1


def test_many_readers_are_granted_in_steps(server, store):
    name, writer, readers = next(NAMES), a_ticket(WRITER), [a_ticket() for _ in range(1_100)]
    for ticket in (writer, *readers):
        claim(store, name, ticket)
    _, queue, _, _, holders, _ = keys.shared_keys("default", name)
    leave(store, name, writer)
    assert (server.command("ZCARD", holders), server.command("ZCARD", queue)) == (1_000, 100)
    leave(store, name, readers[0])
    assert (server.command("ZCARD", holders), server.command("ZCARD", queue)) == (1_099, 0)


# --- lost words --------------------------------------------------------------------------------------------------

KINDS = {
    "reader": lambda locks: locks.rw_lock("x", lease=LEASE).reader(),
    "writer": lambda locks: locks.rw_lock("x", lease=LEASE).writer(),
    "permits": lambda locks: locks.semaphore("x", 5, lease=LEASE).permits(3),
}


@pytest.fixture
def proxy(server):
    with FaultProxy(server.port) as running:
        yield running


def lose(proxy, lost, script):
    return proxy.drop_reply(where=script.digest) if lost == "reply" else proxy.cut_at(where=script.digest)


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_acquire_renewal_and_release_with_lost_requests_or_replies(server, proxy, namespace, harness, kind, lost):
    """The lost request is repeated: one hold, with one token, and nothing is left on the server."""

    async def body(harness):
        async with harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            async with KINDS[kind](locks):
                pass
            fault = lose(proxy, lost, SHARED_CLAIM)
            hold = await KINDS[kind](locks).acquire(timeout=5)
            assert fault.hits == 1
            (info,) = (await locks.inspect("x")).holders
            assert info.token == hold.token
            fault = lose(proxy, lost, SHARED_RENEW)
            await harness.sleep(1.5 * LEASE)
            assert fault.hits == 1
            hold.raise_if_lost()
            fault = lose(proxy, lost, SHARED_LEAVE)
            await hold.release()
            assert fault.hits == 1
            assert await locks.holds() == []
            again = await KINDS[kind](locks).acquire(blocking=False)
            assert again.token > hold.token
            await again.release()

    harness.run(body)


@both
def test_hand_over_when_the_grant_message_is_lost(server, proxy, namespace, harness):
    """The renewal of the queue entry, at a third of the lease, finds the grant."""

    async def body(harness):
        async with (
            harness.client(server.url, namespace=namespace) as others,
            harness.client(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks,
        ):
            hold = await others.rw_lock("x").writer().acquire()
            waiter = harness.spawn(KINDS["reader"](locks).acquire)
            await harness.sleep(0.2)
            fault = proxy.drop(Side.REPLIES, where=b"$7\r\nmessage")
            start = harness.now()
            await hold.release()
            got = await waiter.result()
            assert fault.hits == 1
            assert harness.now() - start < LEASE / 3 + NOISE
            await got.release()

    harness.run(body)
