"""Any text is a name; different names and namespaces are separate; a name has one kind at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations

from leasehold._model import Granted, Kind, LockMode, ReleaseReason, Wait
from leasehold.client import AsyncClient
from leasehold.errors import NameInUse
from leasehold_lab.conformance.case_context import NAME, WITHIN, CaseContext, case, held, raised, ticket

Query = Callable[[], Awaitable[object]]
"""Returns whether a name is in use."""

NAMES = (
    "plain",
    "Plain",
    "plain ",
    " plain",
    "Müller & Söhne",
    "Mu\u0308ller & So\u0308hne",  # looks the same, but consists of other characters
    "鍵🔒",
    "{braces}",
    "{}",
    "}{",
    "{a}b",
    "a{b}",
    "a:b",
    "a%3Ab",
    "a%b",
    "a/b",
    "../a",
    "a\\b",
    "'; --",
    '"quoted"',
    "*",
    "?",
    "[a-z]",
    "nul\0inside",
    "line\nbreak",
    "\r\n",
    "\x01\x1f\x7f",
    "\u2028",
    "x" * 512,
    "é" * 256,
)


@case()
async def any_text_is_a_name(context: CaseContext) -> None:
    """Locks of many unusual names are held at the same time, each visible under its own name only."""
    client = context.client()
    holds = {name: held(await client.lock(name).acquire(blocking=False)) for name in NAMES}
    for name, hold in holds.items():
        info = await client.inspect(name)
        assert info is not None
        assert info.name == name
        assert [who.token for who in info.holders] == [hold.token]
        assert name in [info.name for info in await client.holds(name)]
    assert [info.name for info in await client.holds()] == sorted(NAMES)
    for hold in holds.values():
        assert await hold.release() is True
    assert await client.holds() == []


@case()
async def namespaces_are_separate(context: CaseContext) -> None:
    """The same name in another namespace is another lock, whatever the two are called."""
    root = context.namespace
    pairs = [(root, "a:b"), (f"{root}:a", "b"), (f"{root}{{a}}", "b"), (f"{root}*", "b"), (f"{root}%", "b")]
    clients = [(context.client(namespace=namespace), name) for namespace, name in pairs]
    holds = [held(await client.lock(name).acquire(blocking=False)) for client, name in clients]
    for client, name in clients:
        assert [info.name for info in await client.holds()] == [name]
    for hold in holds:
        assert await hold.release() is True


@case(needs=("permits",))
async def a_name_has_one_kind_at_a_time(context: CaseContext) -> None:
    """A name in use as a semaphore refuses a lock, and the reverse; a free name accepts either."""
    client = context.client()
    mine = ticket(client, LockMode(Kind.SEMAPHORE, exclusive=False, permits=1, limit=3))
    other = ticket(client, LockMode(Kind.SEMAPHORE, exclusive=False, permits=1, limit=4))
    answer = await client.store.try_acquire(NAME, mine, join=True, within=WITHIN)
    assert isinstance(answer, Granted)
    error = await raised(NameInUse, context.lock().acquire(timeout=1))
    assert error.name == NAME
    await raised(NameInUse, client.store.try_acquire(NAME, other, join=True, within=WITHIN))
    assert await client.store.release(NAME, mine, reason=ReleaseReason.RELEASE, within=WITHIN)
    hold = await context.holder()
    await raised(NameInUse, client.store.try_acquire(NAME, mine, join=True, within=WITHIN))
    hold.raise_if_lost()
    assert await hold.release() is True


@case(needs=("permits", "shared", "lock_delay"))
async def in_a_lock_delay_a_name_has_no_kind(context: CaseContext) -> None:
    """When a holder with a lock delay has expired, another kind waits for the rest of it and is not refused."""
    client = context.client()
    kinds = [LockMode(), LockMode(Kind.READ_WRITE), LockMode(Kind.SEMAPHORE, exclusive=False, limit=3)]
    pairs = {f"{NAME}{number}": pair for number, pair in enumerate(permutations(kinds, 2))}
    for name, (first, _) in pairs.items():
        expiring = ticket(client, first, lease=context.short, lock_delay=30.0)
        assert isinstance(await client.store.try_acquire(name, expiring, join=False, within=WITHIN), Granted)
    await context.harness.sleep(context.expired_after(context.short))
    for name, (first, second) in pairs.items():
        waiter = ticket(client, second)
        assert isinstance(await client.store.try_acquire(name, waiter, join=True, within=WITHIN), Wait)
        await raised(NameInUse, client.store.try_acquire(name, ticket(client, first), join=True, within=WITHIN))
        assert await client.store.release(name, waiter, reason=ReleaseReason.RELEASE, within=WITHIN)


def as_lock(client: AsyncClient) -> list[Query]:
    """Return queries that use the name as a mutex, one for each kind."""
    return [client.lock(NAME).locked, client.rlock(NAME).locked]


def as_read_write(client: AsyncClient) -> list[Query]:
    """Return queries that use the name as a read-write lock, one for each side."""
    both = client.rw_lock(NAME)
    sides = [both.reader(), both.writer(), *([both.upgradeable()] if client.store.capabilities.upgrades else [])]
    return [side.locked for side in sides]


def as_semaphore(client: AsyncClient, limit: int) -> list[Query]:
    """Return queries that use the name as a semaphore with this limit."""
    permits = client.semaphore(NAME, limit)
    return [permits.locked, permits.available, permits.permits(limit).locked]


async def all_refuse(client: AsyncClient, queries: Sequence[Query], acquire: Query) -> None:
    """Check that all queries raise `NameInUse`, as ``acquire`` does, while the name is in use as another kind."""
    for query in (acquire, *queries):
        error = await raised(NameInUse, query())
        assert error.name == NAME


@case(needs=("permits", "fair"))
async def inspecting_a_semaphore_needs_its_limit(context: CaseContext) -> None:
    """`locked` raises for a name that is a lock or has another limit, since any answer would be a guess."""
    one, two = context.client(), context.client()
    for limit in (1, 2):
        hold = held(await one.semaphore(NAME, limit).acquire(limit))
        assert await two.semaphore(NAME, limit).available() == 0
        assert await two.semaphore(NAME, limit).locked()
        await all_refuse(two, as_semaphore(two, 40), two.semaphore(NAME, 40).acquire)
        await all_refuse(two, as_lock(two), two.lock(NAME).acquire)
        waiter = context.harness.spawn(two.semaphore(NAME, limit).acquire)
        await context.queued(two, 1)
        assert await two.semaphore(NAME, limit).available() == 0
        await all_refuse(two, as_semaphore(two, 40), two.semaphore(NAME, 40).acquire)
        await hold.release()
        await held(await waiter.result()).release()
        assert await two.semaphore(NAME, 40).available() == 40
        assert not await two.lock(NAME).locked()
    mutex = held(await one.lock(NAME).acquire())
    for limit in (1, 2, 40):
        await all_refuse(two, as_semaphore(two, limit), two.semaphore(NAME, limit).acquire)
    await mutex.release()
    assert not await two.semaphore(NAME, 2).locked()


@case(needs=("shared", "fair"))
async def inspecting_a_read_write_lock_needs_its_kind(context: CaseContext) -> None:
    """`locked` raises for a name that is in use as another kind of lock."""
    one, two = context.client(), context.client()
    hold = held(await one.rw_lock(NAME).reader().acquire())
    assert await two.rw_lock(NAME).writer().locked()
    assert not await two.rw_lock(NAME).reader().locked()
    await all_refuse(two, as_lock(two), two.lock(NAME).acquire)
    await hold.release()
    assert not await two.lock(NAME).locked()
    mutex = held(await one.lock(NAME).acquire())
    await all_refuse(two, as_read_write(two), two.rw_lock(NAME).writer().acquire)
    await mutex.release()
    assert not await two.rw_lock(NAME).writer().locked()
