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

A check for dead members reads the rounds *before* the entries: each member of these rounds had an entry before. The
step that follows concerns only those that are still members. Each newcomer makes the check, and each member that
leaves. The first waiter makes it every `CHECK_EVERY` seconds, the second half as often, and so on: many waiters cause
few requests. The checks bound the delay after the lease.

If a member dies after a step:

* with an entry, but not in the rounds: its entry expires;
* after it arrived: the others remove it;
* as the last to arrive: the round met in that same step, and the others do not need it any more;
* inside: those that leave remove it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.fast_path import acquire, release
from leasehold._engine.lease import Lease
from leasehold._engine.retry import views_of
from leasehold._model import AcquireRequest, NotAcquired
from leasehold._runtimes.base import Caller
from leasehold._validate import Seconds
from leasehold.errors import (
    AcquireTimeout,
    BrokenBarrier,
    LeaseholdError,
    LeaseLost,
    NameInUse,
    NotHeld,
    StoreUnavailable,
)
from leasehold.primitives.bases import AsyncPrimitive
from leasehold.primitives.coordination import barrier_rounds as rounds_of
from leasehold.primitives.coordination.barrier_rounds import SHORT, Met, Over, Rounds, Waiting
from leasehold.primitives.coordination.journal import Journal, Pace, Seen
from leasehold.primitives.locks.options import Options

CHECK_EVERY = 1.0
"""Seconds between two checks for dead members, by the first waiter."""

ROUNDS_TTL = 7 * 86_400.0
"""Seconds after the last change at which the rounds expire."""

REWRITE_AFTER = ROUNDS_TTL / 4
"""Seconds after which a waiter writes the rounds again, so that they do not expire."""

DIED = "a member died, or was stopped for longer than its lease"


@dataclass(eq=False, slots=True)
class Member:
    """One member. ``round``: the round in which it arrived, 0 before that."""

    lease: Lease
    caller: Caller
    handle: object  # keeps the lease alive; None if the block keeps it
    round: int = 0
    index: int = 0
    departed: bool = False

    @property
    def id(self) -> str:
        """Its id in the rounds: the first characters of its ticket."""
        return self.lease.ticket.id[:SHORT]

    def round_state(self, rounds: Rounds | None) -> Met | Waiting | Over:
        """Return the state of its round; after it departed, whether the others have departed, too."""
        if self.departed:
            return rounds_of.inside_state(rounds, self.round)
        return rounds_of.round_state(rounds, self.round, self.id)

    def lives(self) -> bool:
        """Return whether it still holds its entry, and its thread or task has not ended."""
        return self.caller.alive() and self.lease.check_deadline() and self.lease.is_reachable()


class Inside(dict[int, Member]):
    """The members of one barrier object that are inside, by the key of their thread or task."""

    def lists(self, lease: object, caller: Caller) -> bool:
        """Return False: no lock waits for the members of a barrier."""
        return False

    def drop_ended_callers(self) -> None:
        """Drop the members whose threads or tasks have ended."""
        for key, member in list(self.items()):
            if not member.caller.alive() and self.get(key) is member:
                self.pop(key, None)


class Members(AsyncPrimitive):
    """The members of one barrier in one client, and the rounds that it shares with other clients."""

    def __init__(self, engine: Engine, name: str, options: Options, *, drop_dead: bool) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._options = options
        self._drop_dead = drop_dead
        self._journal: Journal[Rounds] = Journal(engine, "barrier", name, rounds_of.read, ROUNDS_TTL)
        self._queue = _validate.name(f"barrier/{_validate.name(name)}")  # where members have their entries
        self._name = name
        self.parties = options.terms.mode.limit

    # --- arriving -----------------------------------------------------------------------------------------------

    async def meet(self, timeout: Seconds | None, *, stays: bool) -> Member:
        """Arrive, and wait for the others; with ``stays`` the member keeps its entry."""
        limit = self._limit(timeout)
        self._engine.ready()
        start = self._runtime.now()
        member = await self._acquire_entry(limit, start)
        try:
            await self._arrive(member, stays=stays)
            await self._until_met(member, start, start + limit)
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._runtime.shield(self._quit(member))
            raise
        if not stays:
            await self._release_entry(member)
        return member

    async def _acquire_entry(self, limit: float, start: float) -> Member:
        caller, within = self._runtime.me(), None if limit == float("inf") else limit
        got = await acquire(self._engine, AcquireRequest(self._queue, self._options.terms, join=limit != 0), within)
        if isinstance(got, NotAcquired):
            raise await self._late(start, "there was no room: others are inside, or on their way out")
        return Member(got.lease, caller, got)

    async def _arrive(self, member: Member, *, stays: bool) -> None:
        await self._look_for_dead(await self._journal.read())

        def step(rounds: Rounds) -> Rounds:
            if self._mine(rounds).broken:
                raise self._broken(rounds.broken)
            member.round = rounds.round
            return rounds_of.arrive(rounds, member.id, stays=stays)

        await self._change(step)

    async def _until_met(self, member: Member, start: float, until: float) -> None:
        state = await self._until_decided(member, until, self._runtime.now() + CHECK_EVERY)
        if isinstance(state, Waiting):  # the time is over or the entry has ended; the round may still meet now
            in_time = member.lease.check_deadline()  # else the process was stopped for too long

            def step(rounds: Rounds) -> Rounds | None:
                if not isinstance(member.round_state(rounds), Waiting):
                    return None
                if self._drop_dead:
                    return rounds_of.withdraw(rounds, member.id)
                return rounds_of.break_(rounds, self._why_late() if in_time else DIED)

            state = member.round_state(await self._change(step))
            if in_time and not isinstance(state, Met):
                raise self._timed_out(start, "the others were not there")
        if not isinstance(state, Met):
            raise self._ended(state, member)
        member.index = state.index

    async def _until_decided(self, member: Member, until: float, look_at: float) -> Met | Waiting | Over:
        """Wait until the others have arrived, or departed; return `Waiting` when the time or the entry ends first."""
        pace, written = Pace(), (0, 0.0)
        while True:
            patience = max(0.0, min(self._options.terms.lease, until - self._runtime.now()))
            seen = await self._journal.read(patience)
            state = member.round_state(seen.state)
            now, end = self._runtime.now(), until if member.departed else min(until, member.lease.deadline)
            if not isinstance(state, Waiting) or now >= end or not (member.departed or member.lease.check_deadline()):
                return state
            written = written if written[0] == seen.version else (seen.version, now)
            if now >= look_at:
                await self._look_for_dead(seen, touch=now - written[1] > REWRITE_AFTER)
                look_at = now + CHECK_EVERY * (1 + (self._runtime.jitter() if member.departed else state.place))
                continue
            await self._journal.changed(seen.version, min(end, look_at) - now, pace)
            self._engine.refuse_closed()

    # --- leaving ------------------------------------------------------------------------------------------------

    async def leave(self, member: Member | None, limit: float) -> None:
        """Depart, and wait until all members have departed, for at most ``limit`` seconds."""
        if member is None:
            raise self._error(
                NotHeld,
                f"the calling thread or task is not inside barrier {self._name!r}; where another one entered (as "
                "asyncio.wait_for does on Python 3.11, in a task of its own), only that one can leave: pass timeout=",
            )
        start = self._runtime.now()
        try:
            await self._depart(member)
            await self._until_left(member, start, start + limit)
        except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
            member.handle = None
            raise
        except BaseException:
            await self._release_entry(member)
            raise
        await self._release_entry(member)

    async def _depart(self, member: Member) -> None:
        if not self._engine.check_owner(member.lease):
            raise member.lease.error()

        def step(rounds: Rounds) -> Rounds | None:
            if member.id in rounds.inside:
                return rounds_of.depart(rounds, member.id)
            raise self._ended(rounds_of.inside_state(rounds, member.round), member)

        await self._change(step)
        member.departed = True

    async def _until_left(self, member: Member, start: float, until: float) -> None:
        state = await self._until_decided(member, until, look_at=0.0)
        if isinstance(state, Waiting):
            raise await self._late(start, "others are still inside")
        if isinstance(state, Over):
            raise self._ended(state, member)

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
            if member.round and self._engine.check_owner(member.lease):  # else a fork copied it from the parent
                await self._change(step)
        except (LeaseholdError, RuntimeError) as error:  # the others detect that its entry has ended
            if not (self._engine.closed or isinstance(error, LeaseholdError)):
                raise
        finally:
            await self._release_entry(member)

    async def _release_entry(self, member: Member) -> None:
        try:
            await release(self._engine, member.lease)
        except LeaseLost:  # the rounds have recorded the outcome already
            pass

    # --- the rounds ---------------------------------------------------------------------------------------------

    async def rounds(self) -> Rounds:
        """Return the present rounds."""
        return self._mine((await self._journal.read()).state)

    async def abort(self, why: str) -> None:
        """Break the barrier."""
        await self._change(lambda rounds: None if self._mine(rounds).broken else rounds_of.break_(rounds, why))

    async def reset(self) -> None:
        """Reset the barrier, also with another number of parties than before."""

        def step(rounds: Rounds | None) -> Rounds | None:
            if rounds is None:
                return None
            fresh = rounds_of.reset(rounds, f"{self._engine.owner} reset it")
            return fresh._replace(parties=self.parties, drop_dead=int(self._drop_dead))

        await self._journal.change(step)

    async def _change(self, step: Callable[[Rounds], Rounds | None]) -> Rounds:
        """Make a change exactly once, through an outage, too: there is an entry already, and others wait.

        A reset may have changed the parties. Then the round of a member is over, which is the error that it gets.
        """
        new = self._mine(None)
        seen = await self._journal.change(lambda rounds: step(rounds or new), self._engine.response_timeout)
        return seen.state or new

    async def _look_for_dead(self, seen: Seen[Rounds], *, touch: bool = False) -> None:
        """Remove those members of the rounds ``seen`` that have no entry; with ``touch`` write in any case."""
        members = () if seen.state is None else seen.state.members()
        if not members:
            return
        try:
            views = await views_of(self._engine.store, self._queue, self._engine.response_timeout)
        except StoreUnavailable as error:  # the next request detects whether the store is down
            if error.lasting:
                raise
            return
        alive = {entry.ticket.id[:SHORT] for view in views for entry in view.holders}
        dead = [member for member in members if member not in alive]
        if dead:
            await self._change(lambda rounds: rounds_of.drop_dead_members(rounds, dead, DIED))
        elif touch:
            await self._change(lambda rounds: rounds)

    def _mine(self, rounds: Rounds | None) -> Rounds:
        if rounds is None:
            return Rounds(self.parties, int(self._drop_dead))
        if (rounds.parties, bool(rounds.drop_dead)) != (self.parties, self._drop_dead):
            raise self._error(
                NameInUse,
                f"the barrier {self._name!r} has {rounds.parties} parties and drop_dead={bool(rounds.drop_dead)} where "
                f"others use it, not {self.parties} and {self._drop_dead}; use those, another name, or reset it",
            )
        return rounds

    # --- timeouts and errors ------------------------------------------------------------------------------------

    def _limit(self, timeout: Seconds | None) -> float:
        limit = self._options.timeout if timeout is None else _validate.timeout(timeout)
        return float("inf") if limit is None else limit

    async def _late(self, start: float, what: str) -> LeaseholdError:
        """Return the error of a wait that timed out; break the barrier, unless ``drop_dead``."""
        if not self._drop_dead:
            await self.abort(self._why_late())
        return self._timed_out(start, what)

    def _why_late(self) -> str:
        return f"{self._engine.owner} waited for longer than its timeout"

    def _timed_out(self, start: float, what: str) -> LeaseholdError:
        waited = self._runtime.now() - start
        kind = AcquireTimeout if self._drop_dead else BrokenBarrier
        return self._error(kind, f"barrier {self._name!r}: {what} after {waited:.3g} s", waited=waited)

    def _ended(self, state: Met | Waiting | Over, member: Member) -> LeaseholdError:
        return self._broken(state.why) if isinstance(state, Over) and state.why else member.lease.error()

    def _broken(self, why: str) -> BrokenBarrier:
        return self._error(BrokenBarrier, f"the barrier {self._name!r} is broken: {why}")
