"""The fast path: the acquire of a free name, and the release of a held one, each in one function.

Nearly every acquire finds its name free, and nearly every release is answered. Most of their cost is the depth of
calls, so this case is written without helpers. All else continues on the general path, with the same lease and ticket:

===========================================  ===================================================================
fast path                                    general path, which handles every case
===========================================  ===================================================================
`acquire`: a ticket, and one try             `AcquireLoop`, which continues with the result of that try: "wait",
                                             an error, no answer, a late grant. An acquire with ``cancel`` uses
                                             it from the start
`acquire`: interrupted, cancelled, closed    `AcquireLoop.give_up`, and `AcquireLoop.abandon`
`release`: one request                       `Engine.send_release`, `release_again` after an interrupt
===========================================  ===================================================================

A test runs random histories on both paths, and compares the results.
"""

from __future__ import annotations

from leasehold._engine.acquire import FIRST_ANSWER, AcquireLoop, First
from leasehold._engine.cancellation import Cancellation
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.releases import release_again
from leasehold._model import AcquireRequest, Granted, NotAcquired, ReleaseReason
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import Acquired


async def acquire(
    engine: Engine, request: AcquireRequest, timeout: float | None, cancel: Cancellation | None = None
) -> LeaseHandle | NotAcquired:
    """Acquire what is requested, waiting at most ``timeout`` seconds (None: for ever); a request may try only once.

    Return the handle of the lease, which is held; or `NotAcquired` if the name was held by another, or ``cancel``
    was called before or meanwhile.

    Raises:
        StoreUnavailable: the holder is unknown. No ticket is left in the store for longer than a lease.
        LeaseLost: it was granted, but each grant arrived after its deadline.
        NameInUse: the name is in use as another primitive.
        RuntimeError: it would wait for a hold of its own thread or task, and the request refuses that.
    """
    handle: LeaseHandle | None
    first: First | None
    start, handle, loop, first, sent = engine.runtime.now(), engine.lease(request), None, None, False
    lease = handle.lease
    try:
        engine.attempts[lease] = None
        if cancel is None:
            engine.watchdog.watch(lease)
            if engine.closed:
                engine.refuse_closed()
            within = engine.response_timeout
            if timeout is not None and timeout < within:
                within = min(within, max(timeout, FIRST_ANSWER))
            sent = True
            try:
                first = await engine.store.try_acquire(lease.name, lease.ticket, join=request.join, within=within)
            except StoreUnavailable as error:
                first = error
            else:
                if isinstance(first, Granted) and lease.granted(first):
                    engine.watchdog.granted(lease)
                    if engine.contact.lost_since is not None:
                        engine.contact.answered(lease)
                    if engine.tally is not None:
                        engine.tally.acquired(lease.name, engine.runtime.now() - start, False)
                    if engine.observer.wants(Acquired):
                        engine.observer(Acquired(*lease.event_fields(), lease.token, engine.runtime.now() - start))
                    return handle
        loop = AcquireLoop(engine, request, timeout, cancel, lease=lease, start=start, sent=sent, first=first)
        handle = first = None  # the traceback of `first` may keep this frame alive, which must not keep the lease alive
        while await loop.advance():
            try:
                loop.received = await loop.sleep()
            except StoreUnavailable as error:
                loop.received = error
        return loop.result()
    except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
        (loop or AcquireLoop(engine, request, timeout, lease=lease, start=start, sent=sent)).abandon()
        raise
    except BaseException as error:
        loop = loop or AcquireLoop(engine, request, timeout, lease=lease, start=start, sent=sent)
        await loop.give_up(type(error).__name__)
        raise
    finally:
        # Here, not in a method: a signal handler may raise before the first line of a call.
        engine.attempts.pop(lease, None)
        if cancel is not None:
            cancel._end(id(loop))
        if engine.closed:
            engine.wake_close()


async def release(engine: Engine, lease: Lease) -> bool:
    """Release; return whether the store confirmed. If not, the name is free by the end of the lease at the latest.

    Raises:
        LeaseLost: it was lost before; the present holder is not affected.
    """
    attempts, within = engine.attempts, engine.release_within
    try:
        attempts[lease] = None  # before the watchdog forgets it: a close finds it in one of both, and waits
        if not engine.begin_release(lease):
            raise lease.error()
        was_there: bool | None
        if lease in engine.unwaited or engine.runtime.interrupts():
            was_there = await engine.send_release(lease)
        else:
            try:
                was_there = await engine.store.release(
                    lease.name, lease.ticket, reason=ReleaseReason.RELEASE, within=within
                )
            except StoreUnavailable as error:
                was_there = await engine.send_release_again(lease, error, lease.released + within)
    except (GeneratorExit, LeaseLost):  # the event loop is closed: nothing can be awaited any more
        raise
    except BaseException:
        # It was interrupted during the request, or by a signal handler before it. A release may be repeated: send
        # it once more, shielded. Only this case is worth a task of its own.
        await engine.runtime.shield(release_again(engine, [lease]))
        raise
    finally:
        attempts.pop(lease, None)
        if engine.closed:
            engine.wake_close()
    return engine.end_release(lease, was_there)
