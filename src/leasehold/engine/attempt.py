"""One call of acquire: claim, wait, claim again, until there is a lease or no time is left (see `engine.acquire`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.engine.events import Acquired, GaveUp, Queued
from leasehold.engine.hold import Lease, State
from leasehold.errors import StoreUnavailable
from leasehold.model import Granted, Owner, Wait
from leasehold.runtimes.process import ending

if TYPE_CHECKING:
    from leasehold.engine.acquire import Engine

FIRST_ANSWER = 1.0
"""Seconds that a claim may take at least, however short the timeout: to tell "taken" from "down" it takes an answer."""

FIRST_PAUSE = 0.005
"""Seconds before a request without an answer is sent again; each further pause is twice as long, with jitter."""


@dataclass(frozen=True, slots=True)
class Missed:
    """An acquire that ended without the lock, because someone else had it."""

    waited: float
    held_by: Owner | None


class Attempt:
    """One call of `Engine.acquire`."""

    def __init__(self, engine: Engine, fresh: Callable[[], Lease], *, timeout: float | None, join: bool) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._fresh = fresh
        self._join = join
        self._start = self._runtime.now()
        self._until = float("inf") if timeout is None else self._start + timeout
        self._heard: float | None = None  # when the store last answered
        self._held_by: Owner | None = None
        self._may_be_there = False  # whether the store may know the ticket
        self._lease = fresh()

    async def run(self) -> Lease | Missed:
        """Claim and wait until there is a lease, or no time is left."""
        while True:
            self._engine.keeper.watch(self._lease)
            self._engine.refuse_closed()
            answer = await self._claim_and_wait()
            if self._lease.state is State.RELEASED:  # the client was closed; its leave may have come before our claim
                try:
                    await self._runtime.shield(self._engine.leave(self._lease))
                finally:
                    if ending():  # a daemon thread that waited: it ends with the interpreter, without a word
                        raise SystemExit
                    self._engine.refuse_closed()
            if answer is None:
                await self.give_up("timeout", leave=self._join)
                return Missed(self._waited(), self._held_by)
            if self._lease.granted(answer):
                return self._acquired()
            await self._too_late()

    async def give_up(self, why: str, *, leave: bool = True) -> None:
        """End the attempt; with ``leave`` take the ticket off the store, whatever that did with it."""
        if not self._lease.leaves():
            return
        self._engine.keeper.forget(self._lease)
        if leave and self._may_be_there:
            await self._runtime.shield(self._engine.leave(self._lease))
        if self._engine.observe is not None:
            self._engine.observe(GaveUp(*self._who(), self._waited(), why))

    def abandon(self) -> None:
        """End the attempt where nothing can be sent: the ticket is renewed no more and ends with its lease."""
        if self._lease.leaves():
            self._engine.keeper.forget(self._lease)

    def _acquired(self) -> Lease:
        self._lease.adopted = False
        self._engine.keeper.granted(self._lease)
        if self._engine.observe is not None:
            self._engine.observe(Acquired(*self._who(), self._lease.token, self._waited()))
        return self._lease

    async def _too_late(self) -> None:
        late = self._lease
        await self.give_up("granted too late")
        if self._left() <= 0:
            late.why = "the grant came too late to be of use: the store is slow, or the lease too short for it"
            raise late.error()
        self._lease, self._may_be_there = self._fresh(), False

    async def _claim_and_wait(self) -> Granted | None:
        while True:
            answer = await self._claim()
            if isinstance(answer, Granted):
                return answer
            if not self._join or self._left() <= 0 or self._taken_away():
                return None
            granted = await self._wait(answer)
            if granted is not None:
                return granted
            if self._left() <= 0 or self._taken_away():
                return None

    def _taken_away(self) -> bool:
        """Say whether the client was closed and has left for this ticket."""
        return self._lease.state is State.RELEASED

    async def _wait(self, answer: Wait) -> Granted | None:
        pause = max(0.0, min(self._left(), answer.ask_again))
        try:
            return await self._engine.store.changed(self._lease.name, self._lease.ticket, answer.mark, timeout=pause)
        except StoreUnavailable as error:  # the claim that follows finds out whether the store is down
            if error.lasting:
                raise
            await self._runtime.sleep(min(pause, FIRST_PAUSE * (10 + 10 * self._runtime.jitter())))
            return None

    async def _claim(self) -> Granted | Wait:
        engine, name, ticket = self._engine, self._lease.name, self._lease.ticket

        async def ask(within: float) -> Granted | Wait:
            before, self._may_be_there = self._may_be_there, True
            try:
                within = min(within, engine.response_timeout)
                return await engine.store.claim(name, ticket, join=self._join, within=within)
            except StoreUnavailable as error:
                self._may_be_there = before or error.unknown
                raise

        if self._heard is None:
            answer, _ = await engine.repeat(ask, min(engine.response_timeout, max(self._left(), FIRST_ANSWER)))
        else:
            patience = min(ticket.terms.lease, max(self._left(), FIRST_ANSWER))
            answer, _ = await engine.repeat(ask, patience, through_outage=True)
        if isinstance(answer, Wait):
            if self._heard is None and engine.observe is not None:
                engine.observe(Queued(*self._who(), None if answer.held_by is None else str(answer.held_by)))
            self._held_by = answer.held_by
        self._heard = self._runtime.now()
        return answer

    def _who(self) -> tuple[str, str, float]:
        return self._lease.name, str(self._engine.owner), self._runtime.now()

    def _waited(self) -> float:
        return self._runtime.now() - self._start

    def _left(self) -> float:
        return self._until - self._runtime.now()
