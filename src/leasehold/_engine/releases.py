"""The releases of several leases of one client, and those that are sent again after an interrupt.

Theory of operation
-------------------
A signal handler that raises (Ctrl-C) interrupts a release, and so does a program that cancels all its tasks. It is then
sent once more. If that is interrupted, too, the watchdog sends it in the background. No lease may be left out: the
watchdog renews none of them any more, but they would be held until their leases end.

A store that does not answer delays a release of several names no longer than that of one: the rest is left to the
watchdog as well. A store that answers, however slowly, is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import repeat
from typing import Any, cast

from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import State
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.store_api import BatchStore

AT_ONCE = 100  # names in one request: it occupies a server for about a millisecond

ReleaseResult = bool | LeaseLost
"""The result of releasing one lease: whether the store confirmed, or that it was lost before."""


async def send_releases(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    """Release the tickets in the store in this order; return for each what `Engine.send_release` returns.

    If it is interrupted, the watchdog releases them. The caller must shield it.
    """
    try:
        return await _send(engine, leases)
    except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
        raise
    except BaseException:
        _leave_to_watchdog(engine, leases)  # all: a release may be repeated
        raise


async def _send(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    several = len(leases) > 1 and engine.store.capabilities.batches and leases[0] not in engine.unwaited
    several = several and not engine.runtime.interrupts()
    size, until = AT_ONCE if several else 1, engine.runtime.now() + engine.release_within
    found: list[bool | None] = []
    for start in range(0, len(leases), size):
        some = leases[start : start + size]
        found += await _send_some(engine, some) if several else [await engine.send_release(some[0])]
        if found[-1] is None and engine.runtime.now() >= until:
            _leave_to_watchdog(engine, leases[len(found) :])
            break
    return found + [None] * (len(leases) - len(found))


async def _send_some(engine: Engine, leases: Sequence[Lease]) -> list[bool | None]:
    store = cast(BatchStore, engine.store)
    pairs = [(lease.name, lease.ticket) for lease in leases]

    def request(within: float) -> Coroutine[Any, Any, Sequence[bool]]:
        return store.release_many(pairs, within=within)

    try:
        found, repeated = await engine.repeat(request, engine.release_within)
    except StoreUnavailable as error:
        engine.contact.failed(leases[0], "release", error)
        _leave_to_watchdog(engine, leases)
        return [None] * len(leases)
    return [was_there or (None if repeated else False) for was_there in found]


def _leave_to_watchdog(engine: Engine, leases: Sequence[Lease]) -> None:
    for lease in leases:
        lease.begin_release()  # if an interrupt kept it from being ended
        engine.watchdog.retry_release(lease.name, lease.ticket)


async def release_again(engine: Engine, leases: Sequence[Lease]) -> None:
    """Release again after a release that was interrupted, at whatever step. The caller must shield it."""
    try:
        ours = [lease for lease in leases if engine.check_owner(lease)]
        for lease in ours:
            lease.begin_release()
            engine.watchdog.forget(lease)
        answers = await _send(engine, ours)
    except BaseException as error:
        ours = [lease for lease in leases if lease.ticket.terms.owner is engine.owner]
        answers = [None] * len(ours)
        if not isinstance(error, GeneratorExit):  # the event loop is closed: nothing can be sent any more
            _leave_to_watchdog(engine, ours)
        raise
    finally:
        for lease, was_there in zip(ours, answers, strict=True):  # pyright: ignore[reportPossiblyUnboundVariable]
            engine.attempts.pop(lease, None)  # before the holder is notified: it may close the client
            if lease.state is not State.LOST:  # a loss is reported as such only
                # If it was not there, the first release may have removed it.
                engine.end_release(lease, was_there or None)


async def release_all(engine: Engine, leases: Sequence[Lease]) -> list[ReleaseResult]:
    """Release in this order; return for each whether the store confirmed, or the loss. All are tried, whatever fails.

    The caller must shield it.
    """
    try:
        engine.attempts.update(dict.fromkeys(leases))  # before the watchdog forgets them: a close waits
        holding = [lease for lease in leases if engine.begin_release(lease)]
        found = dict(zip(map(id, holding), await _send(engine, holding), strict=True))
    except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
        raise
    except BaseException:  # a signal handler has raised, or the program has cancelled the shielded task, too
        await release_again(engine, leases)
        raise
    finally:
        deque(map(engine.attempts.pop, leases, repeat(None)), 0)  # one step: a signal handler may raise after it
        engine.wake_close()
    results: list[ReleaseResult] = []
    for lease in leases:
        try:
            results.append(engine.end_release(lease, found[id(lease)]) if id(lease) in found else lease.error())
        except LeaseLost as error:
            results.append(error)
    return results
