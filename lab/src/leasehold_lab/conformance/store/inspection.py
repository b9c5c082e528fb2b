"""`inspect` shows holders and waiters, with their times and their own descriptions; `ping` shows nothing."""

from __future__ import annotations

import os
import platform
from functools import partial

from leasehold._engine.engine import PROBE
from leasehold.client import AsyncClient
from leasehold_lab.conformance.case_context import ALL, MUTEX, UNFAIR, CaseContext, case
from leasehold_lab.runtimes.harnesses import Job


@case(ALL)
async def inspect_shows_the_holder(context: CaseContext) -> None:
    """`inspect` shows the holder with its owner, token, host, pid and `meta`, and nothing if the name is free."""
    client, watcher = context.client(), context.client()
    assert await watcher.inspect(context.name) is None
    meta = context.meta({"job": "nightly", "try": 2})
    hold = await context.holder(client, lease=20.0, meta=meta)
    info = await watcher.inspect(context.name)
    assert info is not None
    assert (info.name, info.kind, info.waiters, info.free_in) == (context.name, context.variant.kind, (), 0)
    assert info.token == hold.token
    (holder,) = info.holders
    assert (holder.owner, holder.token) == (client.owner, hold.token)
    assert (holder.host, holder.pid) == (platform.node()[:64], os.getpid())
    assert holder.meta == meta
    assert 0 < holder.remaining <= 20
    await hold.release()
    assert await watcher.inspect(context.name) is None


@case(ALL)
async def inspect_shows_waiters_in_order(context: CaseContext) -> None:
    """Waiters are listed in order of arrival, without tokens."""
    watcher, clients = context.client(), [context.client() for _ in range(3)]
    hold = await context.holder(watcher)
    jobs = list[Job[None]]()
    for number, client in enumerate(clients):
        jobs.append(context.harness.spawn(partial(_hold_once, context, client, number)))
        await context.queued(watcher, number + 1)
    info = await context.queued(watcher, 3)
    assert [who.owner for who in info.waiters] == [client.owner for client in clients]
    assert [who.meta for who in info.waiters] == [context.meta(str(number)) for number in range(3)]
    assert all(who.token is None and 0 < who.remaining <= 30 for who in info.waiters)
    await hold.release()
    for job in jobs:
        await job.result()
    assert await watcher.inspect(context.name) is None


async def _hold_once(context: CaseContext, client: AsyncClient, number: int) -> None:
    async with context.lock(client, meta=context.meta(str(number))):
        pass


@case(UNFAIR)
async def holds_lists_names_with_a_prefix(context: CaseContext) -> None:
    """`holds` lists names in order; characters that are special in patterns match only themselves."""
    client = context.client()
    names = ["a", "a*c", "abc", "abd", "b", "[ab]c", "a?c", "a\\c"]
    holds = [await context.holder(client, name) for name in names]
    assert [info.name for info in await client.holds()] == sorted(map(context.shown, names))
    for prefix, found in (("ab", ["abc", "abd"]), ("a*", ["a*c"]), ("[", ["[ab]c"]), ("a\\", ["a\\c"]), ("none", [])):
        infos = await client.holds(context.shown(prefix))
        assert [info.name for info in infos] == [context.shown(name) for name in found]
    for hold in holds:
        await hold.release()
    assert await client.holds() == []


@case(MUTEX)
async def inspect_omits_an_expired_holder(context: CaseContext) -> None:
    """A holder whose lease has expired is not shown."""
    client = context.client()
    hold = await context.holder(lease=0.3, renew=False)
    await context.harness.sleep(context.expired_after(0.3))
    assert await client.inspect(context.name) is None
    assert await client.holds() == []
    assert not await context.lock().locked()
    assert hold.lost


@case()
async def ping_changes_nothing(context: CaseContext) -> None:
    """`ping` leaves no name behind, and disturbs neither the holder nor a waiter of the name that it uses."""
    client = context.client()
    await client.ping()
    assert await client.holds() == []
    hold = await context.holder(name=PROBE)
    job = context.harness.spawn(partial(_hold_probe, context))
    before = await context.queued(client, 1, PROBE)
    await client.ping()
    after = await context.queued(client, 1, PROBE)
    assert (after.token, after.waiters[0].owner) == (before.token, before.waiters[0].owner)
    await hold.release()
    await job.result()
    await client.ping()
    assert await client.holds() == []


async def _hold_probe(context: CaseContext) -> None:
    async with context.lock(name=PROBE):
        pass
