"""The acquire loop: claim, wait, claim again, until there is a lease or no time is left. Theory: see `engine`."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from leasehold._engine.engine import FIRST_PAUSE, Engine
from leasehold._engine.lease import ENDED, LeaseHandle, State
from leasehold._engine.request import AcquireRequest, NotAcquired
from leasehold._model import Granted, Owner, Wait
from leasehold._runtimes.process import ending
from leasehold.errors import StoreUnavailable
from leasehold.events import Acquired, GaveUp, Queued

FIRST_ANSWER = 1.0
"""Seconds that a claim may take at least, however short the timeout: to tell "taken" from "down" it takes an answer."""

TOO_LATE = "the grant came too late to be of use: the store is slow, or the lease too short for it"


def acquire(
    engine: Engine, request: AcquireRequest, timeout: float | None
) -> Coroutine[Any, Any, LeaseHandle | NotAcquired]:
    """Get what is wished for, waiting at most ``timeout`` seconds (None: for ever); it may be to try only once.

    Returns:
        The handle of the lease, which is held; or `NotAcquired` if someone else had the name.

    Raises:
        StoreUnavailable: the store did not answer, so nobody knows who has it. Nothing is left behind for longer
            than a lease.
        LeaseLost: it was granted, but until the timeout the answer came too late to be of use.
        NameInUse: the name is in use as another primitive.

    """
    return AcquireLoop(engine, request, timeout).run()


class AcquireLoop:
    """One call of `acquire`."""

    __slots__ = (
        "_blocked",
        "_engine",
        "_gives_up",
        "_handle",
        "_heard",
        "_held_by",
        "_lease",
        "_may_be_there",
        "_repeated",
        "_request",
        "_runtime",
        "_start",
        "_until",
    )

    def __init__(self, engine: Engine, request: AcquireRequest, timeout: float | None) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._request = request
        self._start = engine.runtime.now()
        self._until = None if timeout is None else self._start + timeout
        self._heard = False  # whether the store has answered
        self._held_by: Owner | None = None
        self._blocked: tuple[str, float] | None = None  # why nobody may have it, and until when
        self._may_be_there = False  # whether the store may know the ticket
        self._gives_up = False  # whether it has begun to: a signal handler may raise before it has left
        self._repeated = False  # whether a claim had no answer: it may arrive after one that was answered
        self._handle: LeaseHandle | None = engine.lease(request)
        self._lease = self._handle.lease

    async def run(self) -> LeaseHandle | NotAcquired:
        """Claim and wait until there is a lease, or no time is left."""
        engine = self._engine
        try:
            engine.attempts.add(self)
            while True:
                engine.watchdog.watch(self._lease)
                if engine.closed:
                    engine.refuse_closed()
                first = await self._claim()
                answer = first if isinstance(first, Granted) else await self._wait_and_claim(first)
                if answer is not None and self._handle is not None and self._lease.granted(answer):
                    return self._acquired(self._handle)
                if self._lease.state is State.RELEASED:
                    await closed_meanwhile(engine, self._runtime.shield(engine.leave(self._lease)))
                if answer is None:
                    await self._give_up("timeout", leave=self._request.join or self._repeated)
                    return NotAcquired(self._waited(), self._held_by, self._why_blocked())
                await self._too_late()
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            self._abandon()
            raise
        except BaseException as error:
            await self._give_up(type(error).__name__)
            raise
        finally:
            engine.attempts.discard(
                self
            )  # here, not in a call of ours: a signal handler may raise before its first line
            if engine.closed:
                engine.ended()

    async def _give_up(self, why: str, *, leave: bool = True) -> None:
        """End the attempt; with ``leave`` take the ticket off the store, whatever that did with it."""
        cut_off, self._gives_up = self._gives_up, self._gives_up or self._lease.state not in ENDED
        if not self._lease.leaves() and not cut_off:
            return
        self._engine.watchdog.forget(self._lease)
        if (leave or cut_off) and self._may_be_there:
            await self._runtime.shield(self._leave())
        self._gives_up = False
        if self._engine.observe.wants(GaveUp):
            self._engine.observe(GaveUp(*self._who(), self._waited(), why))

    async def _leave(self) -> None:
        await self._engine.leave(self._lease)
        self._gives_up = False

    def _abandon(self) -> None:
        """End the attempt where nothing can be sent: the ticket is renewed no more and ends with its lease."""
        if self._lease.leaves():
            self._engine.watchdog.forget(self._lease)

    def _acquired(self, handle: LeaseHandle) -> LeaseHandle:
        # The traceback of an error may refer to this attempt, for as long as no garbage is collected.
        self._handle = None
        engine = self._engine
        engine.watchdog.granted(self._lease)
        if engine.observe.wants(Acquired):
            engine.observe(Acquired(*self._who(), self._lease.token, self._waited()))
        return handle

    async def _too_late(self) -> None:
        late = self._lease
        await self._give_up("granted too late")
        if self._left() <= 0:
            late.why = TOO_LATE
            raise late.error()
        handle = self._handle = self._engine.lease(self._request)
        self._lease, self._may_be_there, self._repeated = handle.lease, False, False

    async def _wait_and_claim(self, answer: Wait) -> Granted | None:
        lease = self._lease
        while self._request.join and not self._is_over():
            pause, granted = max(0.0, min(self._left(), answer.ask_again)), None
            try:
                granted = await self._engine.store.wait(lease.name, lease.ticket, answer.mark, timeout=pause)
            except StoreUnavailable as error:  # the claim that follows finds out whether the store is down
                if error.lasting:
                    raise
                await self._runtime.sleep(min(pause, FIRST_PAUSE * (10 + 10 * self._runtime.jitter())))
            if granted is not None:
                return granted
            if self._is_over():
                return None
            claimed = await self._claim()
            if isinstance(claimed, Granted):
                return claimed
            answer = claimed
        return None

    def _is_over(self) -> bool:
        """Say whether no time is left, or the client was closed and has left for this ticket."""
        return self._left() <= 0 or self._lease.state is State.RELEASED

    async def _claim(self) -> Granted | Wait:
        began, longest = self._start, self._engine.response_timeout
        if self._heard:  # a waiter rides over an outage
            began, longest = self._runtime.now(), self._lease.ticket.terms.lease
        patience = longest if self._until is None else min(longest, max(self._left(), FIRST_ANSWER))
        try:
            answer = await self._ask(patience)
        except StoreUnavailable as error:
            again = self._engine.again(error, self._ask, began + patience, through_outage=self._heard)
            answer, repeated = await again
            self._repeated = self._repeated or repeated
        if isinstance(answer, Wait):
            if not self._heard and self._engine.observe.wants(Queued):
                self._engine.observe(Queued(*self._who(), None if answer.held_by is None else str(answer.held_by)))
            self._held_by = answer.held_by
            self._blocked = (answer.blocked_why, self._runtime.now() + answer.ask_again) if answer.blocked_why else None
        self._heard = True
        return answer

    async def _ask(self, within: float) -> Granted | Wait:
        engine, lease = self._engine, self._lease
        before, self._may_be_there = self._may_be_there, True
        try:
            within = min(within, engine.response_timeout)
            return await engine.store.try_acquire(lease.name, lease.ticket, join=self._request.join, within=within)
        except StoreUnavailable as error:
            self._may_be_there = before or error.unknown
            raise

    def _who(self) -> tuple[str, str, float]:
        return self._lease.name, str(self._engine.owner), self._runtime.now()

    def _why_blocked(self) -> str:
        if self._blocked is None:
            return ""
        why, until = self._blocked
        return f"{why} for {max(until - self._runtime.now(), 0.0):.1f} s more"

    def _waited(self) -> float:
        return self._runtime.now() - self._start

    def _left(self) -> float:
        return float("inf") if self._until is None else self._until - self._runtime.now()


async def closed_meanwhile(engine: Engine, leaving: Awaitable[object]) -> None:
    """End an attempt whose client was closed: leave again, since its leave may have come before our claim; raise."""
    try:
        await leaving
    finally:
        if ending():  # a daemon thread that waited: it ends with the interpreter, without a word
            raise SystemExit
        engine.refuse_closed()
