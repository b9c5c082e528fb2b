"""The first scenarios: replies that are lost or late for another call, holders that crash, calls that are cancelled."""

from __future__ import annotations

import asyncio

from leasehold_lab.proxy.proxy import Side
from museum.catalogue import Seen, exhibit, exposed, partly, sound
from museum.hall import Hall, outcome

LEASE = 1.0
"""Seconds of a lease that expires during a scenario."""

SOON = 1.0
"""Seconds within which anything ends that does not wait for a timer, even on a busy machine."""


class NotReached(AssertionError):
    """The fault did not occur, so the scenario has shown nothing."""


@exhibit("the reply to acquire is lost", known="node-redlock #168", needs="link")
async def lost_acquire_reply(hall: Hall) -> Seen:
    """The server grants the lock, and the connection breaks before the client receives the reply. Sound: the client
    asks again, recognises its own lock, and acquires it; or it leaves nothing behind. Default settings."""
    lock = await hall.lock(link=True)
    lost = hall.proxy.drop_reply(where=hall.variant.claim)
    result = await outcome(lock.acquire(2.0))
    reached(lost.hits)
    taken = await hall.taken()
    if result.error is None and result.value:
        if not taken:
            return exposed("reports that it holds the lock while others can acquire it")
        await lock.release()
        return sound("asks again and acquires it")
    if not taken:
        return sound(f"{result.words}, and leaves nothing behind")
    words = f"{result.words}, and the lock stays taken {hall.remains()}"
    return partly(words) if result.error is not None and not hall.forever() else exposed(words)


@exhibit("the reply to release is lost", needs="link")
async def lost_release_reply(hall: Hall) -> Seen:
    """The server frees the lock, and the connection breaks before the client receives the reply. Sound: no error that
    reports a lost lock, and the lock is free."""
    lock = await hall.lock(lease=10, link=True)
    await lock.acquire(0)
    lost = hall.proxy.drop_reply(where=hall.variant.leave)
    result = await outcome(lock.release())
    reached(lost.hits)
    if await hall.taken():
        return partly(f"the lock stays taken {hall.remains()}")
    if result.error is not None:
        return partly(f"`release` {result.words} although it freed the lock")
    return sound("free, without an error")


@exhibit("the holder crashes, default settings", known="redis-py #554, redis-py #818, celery-once #147, pulpcore #7945")
async def crash_with_defaults(hall: Hall) -> Seen:
    """A process acquires with the library's default settings and is killed. Sound: free again in bounded time."""
    await asyncio.to_thread(hall.crash, None)
    if hall.variant.backend == "redis":
        if hall.forever():
            return exposed("taken for ever: the key has no expiry unless one is asked for")
        left = await hall.left()
        return sound(f"taken {hall.remains() if left is None else f'until its lease ends ({round(left)} s)'}")
    return sound("free soon after") if await hall.free_within(6.0) else exposed("taken for more than 6 s")


@exhibit("the holder crashes while another waits", known="python-redis-lock #6", needs="redis leases")
async def crash_while_another_waits(hall: Hall) -> Seen:
    """A process holds the lock for 1 s and is killed; another waits with default settings, for ever. No message reports
    the expiry. Sound: it acquires the lock soon after the lease has ended."""
    lock = await hall.lock()
    await asyncio.to_thread(hall.crash, LEASE)
    waiting = lock.begin_acquire(None)
    done, _ = await asyncio.wait((waiting,), timeout=LEASE + 2.0)
    if not done:
        return exposed("the waiter still sleeps 2 s after the lease has ended")
    await lock.release()
    return sound("the waiter acquires it soon after the lease has ended")


@exhibit("acquire is cancelled", known="CURATOR-79", needs="asyncio link")
async def cancelled_acquire(hall: Hall) -> Seen:
    """A task is cancelled while the reply to its acquire is under way. Sound: soon nothing is left. Default
    settings."""
    lock = await hall.lock(link=True)
    hall.proxy.forget()
    replies = hall.proxy.hold(Side.REPLIES)
    task = lock.begin_acquire(None)
    await sent(hall, hall.variant.claim)
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.sleep(0.05)
    replies.remove()
    await asyncio.wait((task,), timeout=SOON)
    if await hall.free_within(SOON):
        return sound("nothing is left")
    words = f"the lock stays taken {hall.remains()}; its token is forgotten"
    return exposed(words) if hall.forever() else partly(words)


@exhibit("release is cancelled", known="redis-py #3847, redis-py #4258", needs="asyncio redis")
async def cancelled_release(hall: Hall) -> Seen:
    """A release is cancelled at its first, second, third … step, and then called again. Sound: the lock is free."""
    client = await hall.client()
    for step in range(1, 16):
        name = f"{hall.name}-{step}"
        lock = await hall.lock(name, lease=30, client=client)
        if not await lock.acquire(0):
            return exposed("after an earlier cancellation the client gets no more locks")
        task = lock.begin_release()
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=SOON)
        if await hall.free_within(0.2, name):
            continue
        again = await outcome(lock.release())
        if not await hall.free_within(0.3, name):
            end = "does not help" if again.error is None else again.words
            return exposed(f"held until its lease ends, and releasing again {end}")
    return sound("free at once, or when released again")


@exhibit("the next call gets a cancelled call's reply", known="CVE-2023-28858", needs="asyncio link")
async def reply_of_another_call(hall: Hall) -> Seen:
    """A task is cancelled while the reply to its acquire is under way, and the client continues in use. Sound: each
    later call gets its own answer."""
    client = await hall.client(link=True)
    for turn in range(5):
        replies = hall.proxy.hold(Side.REPLIES)
        task = (await hall.lock(f"{hall.name}-{turn}", lease=5, client=client)).begin_acquire(None)
        await asyncio.sleep(0.05)
        task.cancel()
        replies.remove()
        await asyncio.wait((task,), timeout=SOON)
        other = f"{hall.name}+{turn}"
        mine, theirs = [await hall.lock(other, lease=5, client=one) for one in (client, await hall.client())]
        first = await outcome(mine.acquire(0))
        if first.error is not None or not first.value:
            return exposed(f"the next acquire of a free lock {first.words}")
        if await theirs.acquire(0):
            return exposed("the next acquire reports a lock that others can acquire")
        await mine.release()
        if not await theirs.acquire(0):
            return exposed("the next release frees nothing")
        if (await outcome(mine.acquire(0))).value:
            return exposed("a later acquire gets a lock that another holds")
        await theirs.release()
    return sound("each call gets its own answer")


async def sent(hall: Hall, where: bytes) -> None:
    for _ in range(500):
        if hall.proxy.count(where):
            return
        await asyncio.sleep(0.01)
    raise NotReached(f"no request with {where!r} was sent")


def reached(hits: object) -> None:
    if not hits:
        raise NotReached("the fault did not occur")
