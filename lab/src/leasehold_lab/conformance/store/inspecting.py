"""Who looks sees who holds and who waits, since when and for how long, as those concerned described themselves."""

from __future__ import annotations

import os
import platform
from functools import partial

from leasehold.client import AsyncClient
from leasehold_lab.conformance.case_context import ALL, MUTEX, UNFAIR, Arena, case
from leasehold_lab.runtimes.case_runtimes import Job


@case(ALL)
async def the_holder_is_shown(arena: Arena) -> None:
    """`inspect` shows the holder with its facts, and nothing when nobody is there."""
    client, watcher = arena.client(), arena.client()
    assert await watcher.inspect(arena.name) is None
    hold = await arena.holder(client, lease=20.0, meta={"job": "nightly", "try": 2})
    info = await watcher.inspect(arena.name)
    assert info is not None
    assert (info.name, info.kind, info.waiters, info.free_in) == (arena.name, arena.variant.kind, (), 0)
    assert info.token == hold.token
    (holder,) = info.holders
    assert (holder.owner, holder.token) == (client.owner, hold.token)
    assert (holder.host, holder.pid) == (platform.node()[:64], os.getpid())
    assert holder.meta == {"job": "nightly", "try": 2}
    assert 0 < holder.remaining <= 20
    await hold.release()
    assert await watcher.inspect(arena.name) is None


@case(ALL)
async def waiters_are_shown_in_order(arena: Arena) -> None:
    """Who came first is first; a waiter has no token."""
    watcher, clients = arena.client(), [arena.client() for _ in range(3)]
    hold = await arena.holder(watcher)
    jobs = list[Job[None]]()
    for number, client in enumerate(clients):
        jobs.append(arena.world.spawn(partial(_hold_once, arena, client, number)))
        await arena.queued(watcher, number + 1)
    info = await arena.queued(watcher, 3)
    assert [who.owner for who in info.waiters] == [client.owner for client in clients]
    assert [who.meta for who in info.waiters] == ["0", "1", "2"]
    assert all(who.token is None and 0 < who.remaining <= 30 for who in info.waiters)
    await hold.release()
    for job in jobs:
        await job.result()
    assert await watcher.inspect(arena.name) is None


async def _hold_once(arena: Arena, client: AsyncClient, number: int) -> None:
    async with arena.lock(client, meta=str(number)):
        pass


@case(UNFAIR)
async def holds_lists_what_begins_with_a_prefix(arena: Arena) -> None:
    """Names come in order; characters that mean something in a pattern mean themselves here."""
    client = arena.client()
    names = ["a", "a*c", "abc", "abd", "b", "[ab]c", "a?c", "a\\c"]
    holds = [await arena.holder(client, name) for name in names]
    assert [info.name for info in await client.holds()] == sorted(map(arena.spelled, names))
    for prefix, found in (("ab", ["abc", "abd"]), ("a*", ["a*c"]), ("[", ["[ab]c"]), ("a\\", ["a\\c"]), ("none", [])):
        infos = await client.holds(arena.spelled(prefix))
        assert [info.name for info in infos] == [arena.spelled(name) for name in found]
    for hold in holds:
        await hold.release()
    assert await client.holds() == []


@case(MUTEX)
async def an_expired_holder_is_not_shown(arena: Arena) -> None:
    """What has run out is gone for who looks, too."""
    client = arena.client()
    hold = await arena.holder(lease=0.3, renew=False)
    await arena.world.sleep(arena.gone(0.3))
    assert await client.inspect(arena.name) is None
    assert await client.holds() == []
    assert not await arena.lock().locked()
    assert hold.lost
