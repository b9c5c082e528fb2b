"""The acquire loop: try, wait, try again, until the lease is granted, the time is up, or ``cancel`` is called.

The theory is in `engine`, that of cancellations in `cancellation`. The first try of nearly all acquires is
made in `fast_path`; the loop does all that follows if that did not get the lease.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress

from leasehold._engine.cancellation import Attempt, Cancellation
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.lease_states import ENDED, State
from leasehold._engine.retry import FIRST_PAUSE, documented, retry
from leasehold._model import AcquireRequest, Granted, Nested, NotAcquired, Owner, Wait
from leasehold._runtimes.base import Caller, warn
from leasehold._runtimes.process import ending
from leasehold.errors import StoreUnavailable
from leasehold.events import Acquired, GaveUp, Queued

FIRST_ANSWER = 1.0
"""Seconds that a try may take at least, however short the timeout: only an answer distinguishes "taken" from "down"."""

TOO_LATE = "the grant arrived too late, after its own deadline: the store is slow, or the lease is too short for it"

NESTED = (
    "this thread or task holds lock {!r} already and would wait for itself, until another one releases that hold or "
    "its lease ends; use rlock, here and there, for a lock that its holder may acquire again"
)

NOT_SENT = Wait(None, 0.0)
"""What a try returns in place of an answer if it was cancelled before it reached the store."""

First = Granted | Wait | StoreUnavailable
"""What a first try received."""


class AcquireLoop(LeaseHandle):
    """One acquire, in general; see `leasehold._engine.fast_path.acquire`, which runs it.

    It keeps the lease alive until it is granted. The first try of ``lease`` began at ``start``; with ``sent``, the
    store may know its ticket; with ``first``, this is what it received.

    Many tasks may wait at a time, and each keeps the frames of all coroutines that are suspended meanwhile. So the
    caller itself awaits the `sleep`; all else happens in `advance`, which has ended by then.
    """

    __slots__ = (
        *("_answered", "_attempt", "_blocked", "_cancel", "_ending", "_engine", "_held_by", "_maybe_stored"),
        *("_queued", "_repeated", "_request", "_result", "_sleeps", "_start", "_until", "_wait", "received"),
    )

    def __init__(
        self,
        engine: Engine,
        request: AcquireRequest,
        timeout: float | None,
        cancel: Cancellation | None = None,
        *,
        lease: Lease,
        start: float,
        sent: bool,
        first: First | None = None,
    ) -> None:
        super().__init__(lease)
        self._engine = engine
        self._request = request
        self._cancel = cancel
        self._attempt: Attempt | None = None  # what ``cancel`` may end
        self._start = start
        self.received = first  # what the first try, or the last sleep, received
        self._until = None if timeout is None else self._start + timeout
        self._answered = False  # whether the store has answered
        self._held_by: Owner | None = None
        self._blocked: tuple[str, float] | None = None  # why the name is blocked, and until when
        self._maybe_stored = sent  # whether the store may know the ticket
        self._ending = False  # whether it began to end: a signal handler may raise before the release was sent
        self._queued = False  # whether observers count it among the waiters
        self._repeated = False  # whether a try had no answer: it may arrive after one that was answered
        self._sleeps = False  # whether it waits in the store
        self._wait: Wait | None = None  # the answer after which it is to wait there
        self._result: LeaseHandle | NotAcquired | None = None

    async def advance(self) -> bool:
        """Go on until it is to `sleep`: return True. Or until it has its `result`: return False."""
        answer = await (self._after_sleep() if self._sleeps else self._begin())
        while True:
            if isinstance(answer, Wait):
                if self._request.join and not self._is_over():
                    self._wait = answer
                    return True
                answer = None
            if answer is not None and self._takes(answer):
                self._result = self._acquired()
                return False
            if self._is_cancelled():
                self._result = await self._cancelled()
                return False
            if self.lease.state is State.RELEASED:
                engine = self._engine
                await closed_meanwhile(engine, engine.runtime.shield(engine.send_release(self.lease)))
            if answer is None:
                await self.give_up("timeout", release=self._request.join or self._repeated)
                self._result = NotAcquired(self._waited(), self._held_by, self._why_blocked())
                return False
            await self._too_late()
            answer = await self._begin()

    def result(self) -> LeaseHandle | NotAcquired:
        """Return the result, once: the traceback of an earlier error may keep this object alive for long."""
        result, self._result = self._result, None
        assert result is not None
        return result

    async def _begin(self) -> Granted | Wait | None:
        """Try for the first time with a ticket; None if it was cancelled before."""
        engine = self._engine
        if isinstance(self.received, Wait):
            first, self.received = self.received, None
            return self._answer(first)
        if self.received is None:
            engine.watchdog.watch(self.lease)
            if engine.closed:
                engine.refuse_closed()
        if self._cancel is not None:
            self._attempt = self._cancel._begin(id(self), engine, self.lease)
            if self._attempt.cancelled:
                return None
        return await self._try_acquire()

    def sleep(self) -> Awaitable[Granted | None]:
        """Wait in the store until it is worth trying again; return what `Store.wait` does."""
        wait, self._wait, self._sleeps = self._wait, None, True
        assert wait is not None
        pause = max(0.0, wait.ask_again if self._until is None else min(self._left(), wait.ask_again))
        return self._engine.store.wait(self.lease.name, self.lease.ticket, wait.mark, timeout=pause)

    async def _after_sleep(self) -> Granted | Wait | None:
        """Try again, unless the wait brought the grant; None if the time is up."""
        woken, self.received, self._sleeps = self.received, None, False
        if isinstance(woken, StoreUnavailable):  # the next try detects whether the store is down
            engine = self._engine
            engine.contact.failed(self.lease, "wait", woken)
            if woken.lasting:
                try:
                    raise documented(woken) from woken.__cause__
                finally:
                    del woken  # see `leasehold._engine.retry.asked`
            pause = FIRST_PAUSE * (10 + 10 * engine.runtime.jitter())
            await engine.runtime.sleep(max(0.0, min(self._left(), pause)))
        elif isinstance(woken, Granted):
            return woken
        return None if self._is_over() else await self._try_acquire()

    async def give_up(self, why: str, *, release: bool = True) -> None:
        """End the attempt; with ``release`` release the ticket in the store, whatever its state is there."""
        # A cancellation has ended the lease, too, and its release may have overtaken our request.
        interrupted = self._ending or self._is_cancelled()
        self._ending = self._ending or self.lease.state not in ENDED
        if not self.lease.begin_release() and not interrupted:
            if self._queued:  # the close of the client has ended it
                self._report_end(why)
            return
        self._engine.watchdog.forget(self.lease)
        if (release or interrupted) and self._maybe_stored:
            await self._engine.runtime.shield(self._release())
        self._ending = False
        self._report_end(why)

    def _report_end(self, why: str) -> None:
        queued, self._queued = self._queued, False
        if self._engine.observer.wants(GaveUp):
            self._engine.observer(GaveUp(*self.lease.event_fields(), self._waited(), why, queued=queued))

    async def _cancelled(self) -> NotAcquired:
        if self._maybe_stored and self._attempt is not None:
            await self._attempt.released()
        await self.give_up("cancelled")
        return NotAcquired(self._waited(), self._held_by, self._why_blocked())

    def _is_cancelled(self) -> bool:
        return self._attempt is not None and self._attempt.cancelled

    def _takes(self, answer: Granted) -> bool:
        """Return whether it is held now: not if it was cancelled before, or the grant is too late."""
        return (self._attempt is None or self._attempt.granted()) and self.lease.granted(answer)

    async def _release(self) -> None:
        await self._engine.send_release(self.lease)
        self._ending = False

    def abandon(self) -> None:
        """End the attempt where nothing can be sent: the ticket is not renewed any more and ends with its lease."""
        if self.lease.begin_release():
            self._engine.watchdog.forget(self.lease)
        if self._queued:
            self._report_end("its event loop was closed")

    def _acquired(self) -> LeaseHandle:
        # The traceback of an earlier error may keep this object alive for long: it must not keep the lease alive.
        handle, engine = LeaseHandle(self.lease), self._engine
        engine.watchdog.granted(self.lease)
        queued, self._queued = self._queued, False
        if engine.tally is not None:
            engine.tally.acquired(self.lease.name, self._waited(), queued)
        if engine.observer.wants(Acquired):
            engine.observer(Acquired(*self.lease.event_fields(), self.lease.token, self._waited(), queued=queued))
        return handle

    async def _too_late(self) -> None:
        late = self.lease
        await self.give_up("granted too late")
        if self._left() <= 0:
            late.why = TOO_LATE
            raise late.error()
        super().__init__(self._engine.lease(self._request).lease)
        self._maybe_stored, self._repeated = False, False

    def _is_over(self) -> bool:
        """Return whether the time is up, or this ticket was released: by a cancellation, or the close of the client."""
        return (self._until is not None and self._left() <= 0) or self.lease.state is State.RELEASED

    async def _try_acquire(self) -> Granted | Wait:
        began, longest = self._start, self._engine.response_timeout
        if self._answered:  # a waiter tolerates an outage of up to one lease
            began, longest = self._engine.runtime.now(), self.lease.ticket.terms.lease
        patience = longest if self._until is None else min(longest, max(self._left(), FIRST_ANSWER))
        try:
            answer = await self._send(patience)
        except StoreUnavailable as error:
            answer, repeated = await retry(
                self._engine.runtime, error, self._send, began + patience, through_outage=self._answered
            )
            self._repeated = self._repeated or repeated
        return self._answer(answer)

    def _answer(self, answer: Granted | Wait) -> Granted | Wait:
        """Take an answer of the store, and return it."""
        if answer is NOT_SENT:
            return answer
        engine = self._engine
        if engine.contact.lost_since is not None:
            engine.contact.answered(self.lease)
        if isinstance(answer, Wait):
            if not self._answered:
                self._queued = True
                if engine.observer.wants(Queued):
                    held_by = None if answer.held_by is None else str(answer.held_by)
                    engine.observer(Queued(*self.lease.event_fields(), held_by))
                if self._request.nested and self._request.join:
                    self._check_nested(self._request.nested, answer.held_by)
            self._held_by = answer.held_by
            if answer.blocked_why:
                self._blocked = answer.blocked_why, engine.runtime.now() + answer.ask_again
            else:
                self._blocked = None
        self._answered = True
        return answer

    def _check_nested(self, nested: Nested, held_by: Owner | None) -> None:
        """Warn, or raise, if the calling thread or task begins to wait for a hold of its own.

        The wait need not last for ever: another thread may release that hold. It is not warned of if it has a timeout,
        or if the lease is not renewed and the program kept only the hold: that may be a limit of the rate. With a kept
        lock object, or in a block, it is.
        """
        if (nested == "warn" and self._until is not None) or (held_by or self._engine.owner) != self._engine.owner:
            return
        holder = self._engine.watchdog.holder_of(self.lease.name)
        if holder is None or not _acquired_by(holder, self._engine.runtime.me()):
            return
        text = NESTED.format(self.lease.name)
        if nested == "raise":
            raise RuntimeError(text)
        if holder.renews or holder.lock_object() is not None:
            warn(text)

    async def _send(self, within: float) -> Granted | Wait:
        engine, lease = self._engine, self.lease
        if self._is_cancelled():  # between two tries to reach the store
            return NOT_SENT
        first, self.received = self.received, None
        before, self._maybe_stored = self._maybe_stored and first is None, True
        try:
            if isinstance(first, StoreUnavailable):
                raise first
            if first is not None:
                return first
            within = min(within, engine.response_timeout)
            return await engine.store.try_acquire(lease.name, lease.ticket, join=self._request.join, within=within)
        except StoreUnavailable as error:
            first = None  # see `leasehold._engine.retry.asked`
            self._maybe_stored = before or error.unknown
            engine.contact.failed(lease, "acquire", error)
            raise

    def _why_blocked(self) -> str:
        if self._blocked is None:
            return ""
        why, until = self._blocked
        return f"{why} for {max(until - self._engine.runtime.now(), 0.0):.1f} s more"

    def _waited(self) -> float:
        return self._engine.runtime.now() - self._start

    def _left(self) -> float:
        return float("inf") if self._until is None else self._until - self._engine.runtime.now()


async def closed_meanwhile(engine: Engine, releasing: Awaitable[object]) -> None:
    """End an attempt whose client was closed: release again, as the first release may have overtaken our try; raise."""
    with suppress(Exception):  # what the store raises does not matter; a cancellation and a Ctrl-C are passed on
        await releasing
    if ending():  # a daemon thread that waited: it ends with the interpreter, without a message
        raise SystemExit
    engine.refuse_closed()


def leave_loop(engine: Engine) -> None:
    """End the acquires and releases of an event loop that was closed: nothing resumes them.

    Their tickets would keep their places in the queues, so the watchdog releases them. Holds are renewed again. If a
    signal handler interrupts it, it is called again.
    """
    queued = [lease for lease in engine.watchdog.leases() if lease.state is State.QUEUED]
    for one in dict.fromkeys((*queued, *engine.attempts)):
        if isinstance(one, Lease):  # else a batch: its leases are queued
            engine.watchdog.retry_release(one.name, one.ticket)
            handle = one.handle()
            if isinstance(handle, AcquireLoop):
                handle.abandon()
            one.begin_release()
            engine.watchdog.forget(one)
        engine.attempts.pop(one, None)
    engine.watchdog.resume()


def _acquired_by(lease: Lease, caller: Caller) -> bool:
    """Return whether a thread or task holds a lease; also where the lock object is gone, and only the hold is left."""
    lock, entry = lease.lock_object(), lease.entry
    if lock is not None:
        return lock.lists(lease, caller)
    return lease.handle() is not None and isinstance(entry, Caller) and entry.key == caller.key and entry.alive()
