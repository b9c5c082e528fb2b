"""The members of a barrier: arriving, waiting, detecting dead members, leaving.

Theory of operation
-------------------
1. A member acquires an *entry*: a permit of a semaphore with as many permits as the barrier has parties. So the
   watchdog renews its lease, the entry of a dead member expires within the lease (or as soon as the store detects the
   death), and newcomers wait until there is room.
2. It looks for dead members.
3. It adds itself to the rounds (`barrier_rounds`), in one step of a journal.
4. When it leaves, it removes itself from the rounds first and releases the entry after that. So a member in the rounds
   without an entry is dead, whatever was lost before.

Whoever looks for dead members reads the rounds *before* the entries: a member of these rounds had an entry before. The
step that follows concerns only those that are still members. Each newcomer looks for dead members. So does the first
waiter every `LOOK` seconds, the second half as often, and so on: many waiters cause few requests. That bounds the delay
after the lease.

If a member dies after a step:

* with an entry, but not in the rounds: its entry expires;
* after it arrived: the others remove it;
* as the last to arrive: the round met in that same step, and nobody needs it any more;
* inside: those that leave remove it.
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
"""Seconds between two checks for dead members, by the first waiter."""

TOUCH = LIFE / 4
"""Seconds after which a waiter writes the record again, so that it does not expire."""


@dataclass(eq=False, slots=True)
class Member:
    """One member. ``round``: the round in which it arrived, 0 before that."""

    lease: Lease
    caller: Caller
    handle: object  # what keeps the lease alive; None when a block has it
    round: int = 0
    index: int = 0
    inside: bool = False

    @property
    def id(self) -> str:
        """Its id in the rounds: the first characters of its ticket."""
        return self.lease.ticket.id[:SHORT]

    def lives(self) -> bool:
        """Return whether it still holds its entry, and its thread or task has not ended."""
        return self.caller.alive() and self.lease.check_deadline() and self.lease.is_reachable()


class Inside(dict[int, Member]):
    """The members of one barrier object that are inside, by the key of their thread or task."""

    def drop_ended_callers(self) -> None:
        """Drop the members whose threads or tasks have ended."""
        for key, member in list(self.items()):
            if not member.caller.alive() and self.get(key) is member:
                self.pop(key, None)


class Members:
    """The members of one barrier in one client."""

    def __init__(self, engine: Engine, name: str, options: Options, *, drop_dead: bool) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._options = options
        self._drop_dead = drop_dead
        self._name = name
        self.book = Book(engine, name, options.terms.mode.limit, drop_dead=drop_dead)

    # --- arriving -----------------------------------------------------------------------------------------------

    async def meet(self, timeout: Seconds | None, *, stays: bool) -> Member:
        """Arrive, and wait for the others; with ``stays`` the member keeps its entry."""
        limit = _validate.timeout(timeout)
        limit = self._options.timeout if timeout is None else limit
        self._engine.ready()
        start = self._runtime.now()
        until = float("inf") if limit is None else start + limit
        member = await self._acquire_entry(limit)
        try:
            await self._arrive(member, stays=stays)
            await self._until_met(member, start, until)
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._runtime.shield(self._quit(member))
            raise
        if not stays:
            await self._release_entry(member)
        return member

    async def _acquire_entry(self, limit: float | None) -> Member:
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
                raise self._failure(fate, member)
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
        """End the wait after the timeout or the loss of the entry, unless the round met at the last moment."""
        late = member.lease.check_deadline()  # else the process was stopped for too long

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
        raise self._failure(fate, member)

    # --- leaving ------------------------------------------------------------------------------------------------

    async def leave(self, member: Member | None, timeout: Seconds | None) -> None:
        """Depart, and wait until all members have departed."""
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
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._release_entry(member)
            raise
        await self._release_entry(member)

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
        """Leave alone after an error in the block: the barrier breaks, or the others continue without this member."""
        if member is not None and not isinstance(error, GeneratorExit):
            await self._runtime.shield(
                self._quit(member, f"{self._engine.owner} failed inside: {type(error).__name__}")
            )

    async def _quit(self, member: Member, why: str = "") -> None:
        """Undo what was done so far; the caller raises its own error."""

        def step(rounds: Rounds) -> Rounds | None:
            if member.id in rounds.inside and not self._drop_dead:
                return rounds_of.break_(rounds, why or f"{self._engine.owner} was cancelled as it entered")
            return rounds_of.withdraw(rounds, member.id) or rounds_of.depart(rounds, member.id)

        try:
            if member.round:
                await self.book.change(step)
        except LeaseholdError:  # the others detect that its entry has ended
            pass
        finally:
            await self._release_entry(member)

    async def _release_entry(self, member: Member) -> None:
        try:
            await self._engine.release(member.lease)
        except LeaseLost:  # the rounds have decided already
            pass

    # --- errors -------------------------------------------------------------------------------------------------

    def _patience(self, until: float) -> float:
        return max(0.0, min(self._options.terms.lease, until - self._runtime.now()))

    def _late(self) -> str:
        return f"{self._engine.owner} waited for longer than its timeout"

    def _failure(self, fate: Broken | Over | Met | Waiting, member: Member) -> LeaseholdError:
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
