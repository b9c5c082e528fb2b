"""The scenarios. Each is one way in which locks are known to break, done to one lock, and looked at from outside.

Those of single requests come first, in `scenarios_of_requests`; here are those of leases, waits, sessions and names.
"""

from __future__ import annotations

import asyncio

from leasehold_lab.proxy.proxy import Side
from museum.catalogue import Seen, Verdict, exhibit, exposed, partly, sound
from museum.hall import Hall, fork_and_release, outcome
from museum.scenarios_of_requests import LEASE, SOON, NotReached, reached, sent


@exhibit("one lock object, two users", known="aredis #119, aioredis #1040, dogpile.cache #171", needs="leases")
async def shared_object(hall: Hall) -> Seen:
    """Two tasks (or threads) share a lock object. The lease of the first expires, the second acquires, and then the
    first releases. Sound: the second still holds the lock."""
    first = await hall.lock(lease=LEASE, fixed=True)
    second = await hall.alongside(first)
    await first.acquire(0)
    await asyncio.sleep(LEASE + 0.2)
    got = await outcome(second.acquire(0.5))
    if got.error is not None or not got.value:
        return partly(f"the second user {got.words}: an object is for one user")
    said = await outcome(first.release())
    if not await hall.taken():
        return exposed("the first user's release frees the second's lock")
    return sound(f"the second keeps it; the first's release {_end(said.error)}")


@exhibit("release after the lease has ended", known="redis-py #1095", needs="leases")
async def release_after_expiry(hall: Hall) -> Seen:
    """The lease of a holder expires, another client acquires, and then the first releases. Sound: the other keeps the
    lock, and the first is notified."""
    late, other = await hall.lock(lease=LEASE, fixed=True), await hall.lock(lease=10)
    await late.acquire(0)
    await asyncio.sleep(LEASE + 0.2)
    if not await other.acquire(0):
        return exposed("the lock is still taken after its lease")
    said = await outcome(late.release())
    if not await hall.taken():
        return exposed("frees the other's lock")
    if said.error is None and said.value is not False:
        return partly("leaves the other's lock alone; the late holder gets no notice")
    return sound(f"leaves the other's lock alone; `release` {_end(said.error)}")


@exhibit("the reply to acquire comes after the lease has ended", known="node-redlock #369", needs="leases link")
async def late_reply(hall: Hall) -> Seen:
    """The network delays the reply to an acquire for longer than the lease. Sound: the caller does not get a lock that
    others can acquire."""
    lock = await hall.lock(lease=LEASE, link=True)
    hall.proxy.forget()
    replies = hall.proxy.hold(Side.REPLIES, where=hall.variant.granted)
    task = lock.begin_acquire(3.0)
    await sent(hall, hall.variant.claim)
    await asyncio.sleep(LEASE + 0.6)
    replies.remove()
    said = await outcome(task)
    if said.error is None and said.value and not await hall.taken():
        return exposed("reports that it holds the lock, 0.6 s after the lease has ended")
    return sound(f"{said.words}" + (", which is true" if said.value else ""))


@exhibit(
    "the lock is released just before the waiter subscribes", known="Redisson #1763, redis-lock-py #3", needs="wakes"
)
async def missed_wake_up(hall: Hall) -> Seen:
    """A waiter has learned that the lock is taken. Before its request for a notification arrives, the lock is released.
    Sound: it acquires the lock soon after."""
    holder, waiter = await hall.lock(lease=30), await hall.lock(lease=30, client=await hall.client(link=True))
    await holder.acquire(0)
    asks = hall.proxy.hold(Side.REQUESTS, where=hall.variant.wakes)
    task = waiter.begin_acquire(10.0)
    reached(await asyncio.to_thread(asks.wait, 5.0))
    await holder.release()
    await asyncio.sleep(0.2)
    asks.remove()
    return await _woken(task)


@exhibit("connections break while waiting", known="Redisson #6026", needs="link")
async def connection_lost_while_waiting(hall: Hall) -> Seen:
    """All connections of a waiter break; then the lock is released. Sound: it acquires the lock soon after."""
    holder, waiter = await hall.lock(lease=30), await hall.lock(lease=30, link=True)
    await holder.acquire(0)
    task = waiter.begin_acquire(10.0)
    await asyncio.sleep(0.4)
    hall.proxy.cut()
    await asyncio.sleep(0.3)
    await holder.release()
    return await _woken(task)


@exhibit("the lock is taken away while its block runs", known="python-redis-lock #85, redbeat #230", needs="redis")
async def silent_loss(hall: Hall) -> Seen:
    """The key of a held lock is deleted (an operator, an eviction, a failover). Sound: the holder is notified while it
    works, without asking; and if it asks, it gets the true answer."""
    lock = await hall.lock(lease=LEASE)
    await lock.acquire(0)
    hall.delete()
    await asyncio.sleep(0.8 * LEASE)
    told, asked = lock.raw.told, await outcome(lock.valid())
    if told:
        return sound("notified without asking, within a third of the lease" if asked.value is False else "notified")
    if asked.error is None and asked.value:
        return exposed("still reports that it holds the lock")
    if asked.error is None and asked.value is None:
        said = await outcome(lock.release())
        end = "and `release` is silent" if said.error is None else f"until `release` {said.words}"
        return exposed(f"the holder gets no notice {end}")
    return partly("reports it when asked; the holder gets no notice")


@exhibit("the session ends while the block runs", known="kazoo #2", needs="zookeeper")
async def session_ends(hall: Hall) -> Seen:
    """The server ends the holder's session, and with it the lock; the holder's connection comes back. Sound: the holder
    is notified without asking; and if it asks, it gets the true answer."""
    client = await hall.client()
    lock = await hall.lock(client=client)
    await lock.acquire(0)
    await hall.end_session(client)
    if not await hall.free_within(SOON):
        raise NotReached("the session goes on")
    await asyncio.sleep(SOON)
    if lock.raw.told:
        return sound("notified without asking")
    if (await outcome(lock.valid())).value:
        return exposed("still reports that it holds the lock; only a listener on the client's state is notified")
    return partly("reports it when asked; the holder gets no notice")


@exhibit("a new session finds the old one's node", known="CURATOR-498, CURATOR-604", needs="zookeeper")
async def node_of_the_old_session(hall: Hall) -> Seen:
    """An acquire is executed, and the server is unreachable before the reply comes. The client is restarted, continues
    or acquires again in its new session, and finds the node of its old one, which ends soon. Sound: it keeps what it
    then acquires."""
    client = await hall.client(link=True)
    await hall.warm(client)
    lock = await hall.lock(client=client)
    reply = hall.proxy.hold(Side.REPLIES, where=hall.variant.granted)
    task = lock.begin_acquire(1.0)
    reached(await asyncio.to_thread(reply.wait, 5.0))
    hall.proxy.stop()
    await hall.restart(client, hall.reconnect)
    said, holder = await outcome(asyncio.wait_for(task, 5.0)), lock
    if not said.value:
        holder = await hall.lock(client=client)
        said = await outcome(holder.acquire(6.0))
    if said.error is not None or not said.value:
        return partly(f"the second acquire {said.words}")
    if await hall.free_within(3.0):
        return exposed("takes the old session's node for its own; when that ends, others can acquire the lock too")
    await holder.release()
    return sound("has a node of its own, and keeps it")


@exhibit("a fork inherits a held lock", known="psycopg2 #829, filelock #657", needs="blocking")
async def fork_with_a_held_lock(hall: Hall) -> Seen:
    """A process forks while it holds a lock, and the child ends its copy of the block. Sound: the parent still holds
    the lock."""
    lock = await hall.lock(lease=10)
    await lock.acquire(0)
    ended = await lock.actor.start(fork_and_release, lock.raw)
    if not await hall.taken():
        return exposed("the child's release frees the parent's lock")
    return sound("the parent keeps it") if ended else partly("the parent keeps it; the child hangs in `release`")


@exhibit("two names collide")
async def name_collision(hall: Hall) -> Seen:
    """A lock is held, and locks with names that resemble its name or its keys are tried. Sound: they are acquired."""
    holder = await hall.lock(lease=10)
    await holder.acquire(0)
    name, client = hall.name, await hall.client()
    clashes = []
    for other in (name.upper(), f"{name} ", f"{name}:lock", f"lock:{name}", f"{{{name}}}", f"{name}}}", f"{name}%20"):
        lock = await hall.lock(other, lease=10, client=client)
        if not await lock.acquire(0):
            clashes.append(other.replace(name, "x").replace(name.upper(), "X"))
            continue
        await lock.release()
        if not await hall.taken():
            return exposed(f"a release of {other.replace(name, 'x')!r} frees 'x'")
    return (
        exposed(f"'x' excludes {', '.join(map(repr, clashes))}") if clashes else sound("distinct names do not collide")
    )


@exhibit("a fencing token", known="Redisson #4684, portalocker #146")
async def fencing_token(hall: Hall) -> Seen:
    """Four holders, one after the other; before the last the keys are lost. Sound: each has a higher number than all
    before it, so that the resource can refuse late holders."""
    tokens: list[int | None] = []
    for turn in range(4):
        if turn == 3 and hall.variant.backend == "redis":
            hall.delete()
        lock = await hall.lock(lease=5)
        await lock.acquire(0)
        tokens.append(lock.raw.token)
        await lock.release()
    known = [token for token in tokens if token is not None]
    if len(known) < len(tokens):
        return exposed("has none: a resource cannot distinguish a late holder from the present one")
    return (
        sound("always higher, also after the keys were lost") if known == sorted(set(known)) else exposed("not rising")
    )


@exhibit("a `with` block that did not get the lock", known="etcd3 #599, etcd3 #1314")
async def block_without_the_lock(hall: Hall) -> Seen:
    """Another client holds the lock for longer than a `with` block waits. Sound: the block does not run."""
    holder = await hall.lock(lease=20)
    await holder.acquire(0)
    said = await outcome(hall.body(hall.name, 0.4))
    if said.error is None and said.value is None:
        return Seen(Verdict.NOT_APPLICABLE, "its block waits for ever")
    return sound(f"{said.words}, the block does not run") if said.error else exposed("the block runs without the lock")


async def _woken(task: asyncio.Future[object]) -> Seen:
    done, _ = await asyncio.wait((task,), timeout=2 * SOON)
    if not done:
        return exposed("the waiter still sleeps, though the lock is free")
    said = await outcome(task)
    if said.error is not None:
        return partly(f"the waiter {said.words}")
    return sound("the waiter acquires it soon after") if said.value else exposed("the waiter gives up on a free lock")


def _end(error: BaseException | None) -> str:
    return "is silent" if error is None else f"raises `{type(error).__name__}`"
