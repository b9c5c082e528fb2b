"""The close of a client.

Theory of operation
-------------------
A signal handler may interrupt a close at any line, and raise: it calls observers and callbacks of users, and waits for
the store. Its steps are these, and each is taken even if an earlier one was interrupted:

1. Every hold ends as a loss. From here on its holder does not hold.
2. The holders' callbacks are called, and their blocks are given time to end.
3. Every ticket is released. What an interrupt leaves unsent, the watchdog sends as it closes.
4. The watchdog and the store are closed.

Only if its event loop is closed meanwhile, nothing more is sent: leases end what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from leasehold._engine.lease import Later, Lease
from leasehold._engine.lease_states import HOLDING
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold._runtimes.base import Runtime, Scope, Signal, call_each
from leasehold.store_api import Store

CLOSE_WITHIN = 2.0  # seconds that closing may take for what is still held and for the watchdog's end


class Closing(Protocol):
    """What a close needs of an engine."""

    runtime: Runtime
    store: Store
    watchdog: Watchdog
    closed: bool
    attempts: dict[object, None]
    ended: Signal

    async def send_release(self, lease: Lease) -> bool | None: ...


async def close(engine: Closing, within: float) -> None:
    """Close an engine that is open. What a signal handler raises meanwhile is raised at the end."""
    leases, blocks, calls = list[Lease](), list[Scope](), Later()
    try:
        engine.closed = True
        leases = engine.watchdog.leases()
        call_each(partial(end_lease, lease, calls) for lease in leases)
        # The task of an interrupted block leaves that block; waiting for a block of our own task would never end.
        blocks = [scope for lease in leases for scope in lease.scopes if not (scope.is_mine() or scope.is_over())]
    finally:
        await engine.runtime.shield(_close(engine, leases, blocks, calls, within))


def end_lease(lease: Lease, calls: Later) -> None:
    """End a lease whose client is closed; its holder's callbacks are put into ``calls``."""
    why = "its client was closed"
    if lease.state not in HOLDING:
        lease.why = lease.why or why
        lease.begin_release()
        return
    try:
        lease.mark_lost(why, calls)
    finally:  # an observer is called before the callbacks, and may be interrupted
        lease.complete_end(calls)


async def _close(engine: Closing, leases: Sequence[Lease], blocks: list[Scope], calls: Later, within: float) -> None:
    until, unsent, loop_ended = engine.runtime.now() + within, list(leases[::-1]), False
    try:
        try:
            await notify_holders(engine, blocks, calls, within / 2)
        except GeneratorExit:
            raise
        except BaseException:  # of a signal handler, or of a callback in this thread
            await release_all(engine, unsent, until)
            raise
        await release_all(engine, unsent, until)
    except GeneratorExit:  # the event loop is closed: nothing can be awaited any more, nor sent
        loop_ended = True
        raise
    finally:
        try:
            if not loop_ended:
                await engine.watchdog.close(max(0.0, until - engine.runtime.now()), unsent)
        finally:
            if not loop_ended:
                await engine.store.close()
            engine.runtime.close()


async def notify_holders(engine: Closing, blocks: list[Scope], calls: Later, within: float) -> None:
    """Call the holders' callbacks, then wait until their blocks have ended; ``within`` seconds at most."""
    runtime = engine.runtime
    until = runtime.now() + within

    async def call_all() -> None:
        call_each(calls)

    if calls:
        try:
            job = runtime.spawn_loop(call_all, "leasehold-close")
        except RuntimeError:  # no thread can be started
            await call_all()
        else:
            await job.join(within)
    while runtime.now() < until:
        engine.ended.clear()
        if all(scope.is_over() for scope in blocks):
            return
        await engine.ended.wait(until - runtime.now())


async def release_all(engine: Closing, unsent: list[Lease], until: float) -> None:
    """Release the tickets of ended leases, and wait for acquires under way: those release their tickets again."""
    runtime = engine.runtime
    for lease in unsent:
        lease.begin_release()  # if an interrupt kept it from being ended: nobody else may get what it still holds
    while unsent and runtime.now() < until:
        await engine.send_release(unsent[-1])
        unsent.pop()
    while engine.attempts and runtime.now() < until:
        engine.ended.clear()
        if engine.attempts:
            await engine.ended.wait(until - runtime.now())
