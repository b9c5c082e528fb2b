"""The stored record of a barrier: its rounds in a journal, and the search for dead members."""

from __future__ import annotations

from leasehold import _validate
from leasehold._engine.cell_wait import Pace
from leasehold._engine.engine import Engine
from leasehold.errors import BrokenBarrier, NameInUse, StoreUnavailable
from leasehold.primitives.coordination import barrier_rounds as rounds_of
from leasehold.primitives.coordination.barrier_rounds import CODEC, SHORT, Rounds, Step
from leasehold.primitives.coordination.journal import Journal, Seen

LIFE = 7 * 86_400.0
"""Seconds after the last change at which the rounds expire. Waiters write now and then."""

DIED = "a member died, or was stopped for longer than its lease"


class Book:
    """The rounds of one barrier in one client.

    Attributes:
        queue: the name at which members have their entries.
        parties: how many meet.
        drop_dead: whether dead members are dropped.

    """

    def __init__(self, engine: Engine, name: str, parties: int, *, drop_dead: bool) -> None:
        self._engine = engine
        self._journal: Journal[Rounds] = Journal(engine, "barrier", name, CODEC, LIFE)
        self._name = name
        self.queue = _validate.name(f"barrier/{_validate.name(name)}")
        self.parties = parties
        self.drop_dead = drop_dead

    async def look(self) -> Rounds:
        """Return the present rounds."""
        return self._mine((await self._journal.read()).state)

    async def read(self, patience: float | None = None) -> Seen[Rounds]:
        """Return the rounds and their version; as `Journal.read`."""
        return await self._journal.read(patience)

    async def changed(self, version: int, timeout: float, pace: Pace) -> None:
        """Sleep until they may have another version, or the client is closed; as `Journal.changed`."""
        await self._journal.changed(version, timeout, pace)
        self._engine.refuse_closed()

    async def change(self, step: Step) -> Rounds:
        """Make a change exactly once, through an outage, too: there is an entry already, and others wait."""
        patience = self._engine.response_timeout
        seen = await self._journal.change(lambda rounds: step(self._mine(rounds)), patience)
        return self._mine(seen.state)

    async def abort(self, why: str) -> None:
        """Break the barrier."""
        await self.change(lambda rounds: None if rounds.broken else rounds_of.break_(rounds, why))

    async def reset(self) -> None:
        """Reset the barrier, also with another number of parties than before."""
        fresh, why = self._mine(None), f"{self._engine.owner} reset it"

        def step(rounds: Rounds | None) -> Rounds | None:
            return None if rounds is None else rounds_of.reset(rounds, why, like=fresh)

        await self._journal.change(step)

    async def look_for_dead(self, seen: Seen[Rounds], *, touch: bool = False) -> None:
        """Remove those members of the rounds ``seen`` that have no entry; with ``touch`` write in any case."""
        members = () if seen.state is None else seen.state.members()
        if not members:
            return
        try:
            views = await self._engine.store.inspect(self.queue, exact=True)
        except StoreUnavailable as error:  # the next request detects whether the store is down
            if error.lasting:
                raise
            return
        seated = {entry.ticket.id[:SHORT] for view in views for entry in view.holders}
        dead = [member for member in members if member not in seated]
        if dead:
            await self.change(lambda rounds: rounds_of.bury(rounds, dead, DIED))
        elif touch:
            await self.change(lambda rounds: rounds)

    def broken(self, why: str) -> BrokenBarrier:
        """Make the error of a broken barrier."""
        return BrokenBarrier(
            f"the barrier {self._name!r} is broken: {why}", name=self._name, owner=str(self._engine.owner)
        )

    def _mine(self, rounds: Rounds | None) -> Rounds:
        if rounds is None:
            return Rounds(self.parties, self.drop_dead)
        if (rounds.parties, rounds.drop_dead) != (self.parties, self.drop_dead):
            raise NameInUse(
                f"the barrier {self._name!r} has {rounds.parties} parties and drop_dead={rounds.drop_dead} where "
                f"others use it, not {self.parties} and {self.drop_dead}; use those, another name, or reset it",
                name=self._name,
                owner=str(self._engine.owner),
            )
        return rounds
