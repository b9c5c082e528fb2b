"""Many clients that wait for one name on one server, and what that costs the server."""

from __future__ import annotations

import asyncio
import time

from leasehold import AsyncClient

CLIENTS = 4


def commands(server):
    """Return the counts of commands of locks: not those asked to find out."""
    counts = server.commandstats()
    return {name: n for name, n in counts.items() if name.partition("|")[0] not in ("info", "config", "auth", "ping")}


async def clients_of(stack, server, namespace, count=CLIENTS):
    return [
        await stack.enter_async_context(AsyncClient.from_url(server.url, namespace=namespace)) for _ in range(count)
    ]


async def queued(locks, name, count, limit=20.0):
    """Wait until so many wait."""
    end = time.monotonic() + limit
    while True:
        info = await locks.inspect(name)
        if info is not None and len(info.waiters) == count:
            return
        assert time.monotonic() < end, info and len(info.waiters)
        await asyncio.sleep(0.02)
