"""The members of a barrier: how one comes, waits, notices the dead, and goes.

Theory of operation
-------------------
A member takes a *entry*: a permit of a semaphore with as many permits as the barrier has parties. So its lease is kept
by the watchdog, a dead member's entry ends within its lease (or as soon as the store knows), and newcomers wait until
there is room. Then it looks for the dead and writes itself into the rounds (`barrier_rounds`), in one step of a
journal. Going, it takes itself out of the rounds first and gives back the entry after that: so who is in the rounds
without an entry is dead, whatever was lost on the way.

Who judges reads the rounds *before* it looks at the entries: whoever was in them then had an entry before. The step
that follows concerns only those who are still members. The dead are looked for by each newcomer, and every `LOOK`
seconds by the first in line, half as often by the second, and so on, so that many who wait do not ask much; that bounds
the delay after the lease.

What if a member dies after each step: with an entry and not in the rounds, its entry ends; arrived, it is buried; the
last to arrive, the round met in that same step, and nobody needs it any more; inside, it is buried by those who leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold import _validate
from leasehold._engine.acquire import acquire
from leasehold._engine.cell_wait import Pace
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease
from leasehold._engine.request import AcquireRequest, NotAcquired
from leasehold._runtimes.base import Caller
from leasehold._validate import Seconds
from leasehold.errors import (
    AcquireTimeout,
    BrokenBarrier,
    LeaseholdError,
    LeaseLost,
    NotHeld,
)
from leasehold.primitives.coordination import barrier_rounds as rounds_of
from leasehold.primitives.coordination.barrier_record import DIED, LIFE, Book
from leasehold.primitives.coordination.barrier_rounds import SHORT, Broken, Left, Met, Over, Rounds, Waiting
from leasehold.primitives.locks.options import Options

LOOK = 1.0
"""Seconds between two looks for dead members, of the first in line."""

TOUCH = LIFE / 4
"""Seconds after which who waits writes what is there, so that it is not forgotten."""


@dataclass(eq=False, slots=True)
class Member:
    """One who came. ``round``: in which it arrived, 0 while it has not."""

    lease: Lease
    caller: Caller
    handle: object  # what keeps the lease alive; None when a block has it
    round: int = 0
    index: int = 0
    inside: bool = False

    @property
    def id(self) -> str:
        """What the rounds have of its ticket."""
        return self.lease.ticket.id[:SHORT]

    def lives(self) -> bool:
        """Return whether its entry is still its own, and its thread or task has not ended."""
        return self.caller.alive() and self.lease.check_deadline() and self.lease.is_reachable()


class Inside(dict[int, Member]):
    """The members of one barrier object that are inside, by the key of their thread or task."""

    def drop_ended_callers(self) -> None:
        """Keep no member whose thread or task has ended."""
        for key, member in list(self.items()):
            if not member.caller.alive() and self.get(key) is member:
                self.pop(key, None)


class Members:
    """Those of one barrier, as one client sees them."""

    def __init__(self, engine: Engine, name: str, options: Options, *, drop_dead: bool) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._options = options
        self._drop_dead = drop_dead
        self._name = name
        self.book = Book(engine, name, options.terms.mode.limit, drop_dead=drop_dead)

    # --- coming ------------------------------------------------------------------------------------------------

    async def meet(self, timeout: Seconds | None, *, stays: bool) -> Member:
        """Come, and wait for the others; with ``stays`` the member keeps its entry."""
        limit = _validate.timeout(timeout)
        limit = self._options.timeout if timeout is None else limit
        self._engine.ready()
        start = self._runtime.now()
        until = float("inf") if limit is None else start + limit
        member = await self._sit(limit)
        try:
            await self._arrive(member, stays=stays)
            await self._until_met(member, start, until)
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._runtime.shield(self._quit(member))
            raise
        if not stays:
            await self._stand_up(member)
        return member

    async def _sit(self, limit: float | None) -> Member:
        options, caller = self._options, self._runtime.me()
        start = self._runtime.now()
        got = await acquire(self._engine, AcquireRequest(self.book.queue, options.terms, join=limit != 0), limit)
        if isinstance(got, NotAcquired):
            if not self._drop_dead:
                await self.book.abort(self._late())
            raise self._timed_out(start, "there was no room: others are inside, or on their way out")
        return Member(got.lease, caller, got)

    async def _arrive(self, member: Member, *, stays: bool) -> None:
        await self.book.look_for_dead(await self.book.read())

        def step(rounds: Rounds) -> Rounds:
            if rounds.broken:
                raise self.book.broken(rounds.broken)
            member.round, member.inside = rounds.round, stays
            return rounds_of.arrive(rounds, member.id, stays=stays)

        await self.book.change(step)

    async def _until_met(self, member: Member, start: float, until: float) -> None:
        pace, look_at, written = Pace(), self._runtime.now() + LOOK, (0, 0.0)
        while True:
            seen = await self.book.read(self._patience(until))
            fate = rounds_of.fate(seen.state, member.round, member.id)
            if isinstance(fate, Met):
                member.index = fate.index
                return
            if not isinstance(fate, Waiting):
                raise self._missed(fate, member)
            now = self._runtime.now()
            written = written if written[0] == seen.version else (seen.version, now)
            if not member.lease.check_deadline() or now >= until:
                return await self._give_up(member, start)
            if now >= look_at:
                await self.book.look_for_dead(seen, touch=now - written[1] > TOUCH)
                look_at = now + LOOK * (fate.place + 1)
                continue
            await self.book.changed(seen.version, min(until, look_at, member.lease.deadline) - now, pace)

    async def _give_up(self, member: Member, start: float) -> None:
        """End the wait of one who came too late or lost its entry, unless the round met at the last moment."""
        late = member.lease.check_deadline()  # else it was stopped for too long

        def step(rounds: Rounds) -> Rounds | None:
            if not isinstance(rounds_of.fate(rounds, member.round, member.id), Waiting):
                return None
            if self._drop_dead:
                return rounds_of.withdraw(rounds, member.id)
            return rounds_of.break_(rounds, self._late() if late else DIED)

        after = await self.book.change(step)
        fate = rounds_of.fate(after, member.round, member.id)
        if isinstance(fate, Met):
            member.index = fate.index
            return
        if late:
            raise self._timed_out(start, "the others were not there")
        raise self._missed(fate, member)

    # --- going -------------------------------------------------------------------------------------------------

    async def leave(self, member: Member | None, timeout: Seconds | None) -> None:
        """Depart, and wait until all have."""
        limit = _validate.timeout(timeout)
        limit = self._options.timeout if timeout is None else limit
        if member is None:
            raise NotHeld(
                f"the calling thread or task is not inside barrier {self._name!r}",
                name=self._name,
                owner=str(self._engine.owner),
            )
        start = self._runtime.now()
        until = float("inf") if limit is None else start + limit
        try:
            await self._depart(member)
            await self._until_left(member, start, until)
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._stand_up(member)
            raise
        await self._stand_up(member)

    async def _depart(self, member: Member) -> None:
        if not self._engine.owns(member.lease):
            raise member.lease.error()

        def step(rounds: Rounds) -> Rounds | None:
            if member.id in rounds.inside:
                return rounds_of.depart(rounds, member.id)
            ended = rounds_of.fate_inside(rounds, member.round)
            raise self.book.broken(ended.why) if isinstance(ended, Broken) else member.lease.error()

        await self.book.change(step)

    async def _until_left(self, member: Member, start: float, until: float) -> None:
        pace, look_at = Pace(), 0.0
        while True:
            seen = await self.book.read(self._patience(until))
            fate = rounds_of.fate_inside(seen.state, member.round)
            if isinstance(fate, Left):
                return
            if isinstance(fate, Broken):
                raise self.book.broken(fate.why)
            now = self._runtime.now()
            if now >= until:
                if not self._drop_dead:
                    await self.book.abort(self._late())
                raise self._timed_out(start, "others are still inside")
            if now >= look_at:
                await self.book.look_for_dead(seen)
                look_at = now + LOOK * (1 + self._runtime.jitter())
                continue
            await self.book.changed(seen.version, min(until, look_at) - now, pace)

    async def fail(self, member: Member | None, error: BaseException) -> None:
        """Go without the others, because of an error in the block: they hear of it, or go on without this one."""
        if member is not None and not isinstance(error, GeneratorExit):
            await self._runtime.shield(
                self._quit(member, f"{self._engine.owner} failed inside: {type(error).__name__}")
            )

    async def _quit(self, member: Member, why: str = "") -> None:
        """Undo whatever was done so far; the caller has an error already."""

        def step(rounds: Rounds) -> Rounds | None:
            if member.id in rounds.inside and not self._drop_dead:
                return rounds_of.break_(rounds, why or f"{self._engine.owner} was cancelled as it entered")
            return rounds_of.withdraw(rounds, member.id) or rounds_of.depart(rounds, member.id)

        try:
            if member.round:
                await self.book.change(step)
        except LeaseholdError:  # the others see that its entry is gone
            pass
        finally:
            await self._stand_up(member)

    async def _stand_up(self, member: Member) -> None:
        try:
            await self._engine.release(member.lease)
        except LeaseLost:  # the rounds decide, and have
            pass

    # --- words -------------------------------------------------------------------------------------------------

    def _patience(self, until: float) -> float:
        return max(0.0, min(self._options.terms.lease, until - self._runtime.now()))

    def _late(self) -> str:
        return f"{self._engine.owner} waited for longer than its timeout"

    def _missed(self, fate: Broken | Over | Met | Waiting, member: Member) -> LeaseholdError:
        return self.book.broken(fate.why) if isinstance(fate, Broken) else member.lease.error()

    def _timed_out(self, start: float, what: str) -> LeaseholdError:
        waited = self._runtime.now() - start
        kind = AcquireTimeout if self._drop_dead else BrokenBarrier
        return kind(
            f"barrier {self._name!r}: {what} after {waited:.3g} s",
            name=self._name,
            owner=str(self._engine.owner),
            waited=waited,
        )
