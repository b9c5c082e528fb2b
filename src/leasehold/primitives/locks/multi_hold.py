"""Several locks that are held together: `AsyncMultiHold` and its sync facade `MultiHold`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease, OnLost
from leasehold._engine.lease_states import ENDED
from leasehold._engine.releases import ReleaseResult, release_all
from leasehold.errors import LeaseLost, NotHeld
from leasehold.primitives.bases import refuse_callback
from leasehold.primitives.locks.hold import AsyncHold, Hold, Leave
from leasehold.primitives.locks.hold_list import HoldList


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of the locks that are held together.

    Attributes:
        hold: the hold of a lock that counts its holds itself (re-entrant, reader, writer); the lock is released through
            it. None where the lease is held directly.
        reenters: whether the lease was held before, with options of its own.
    """

    engine: Engine
    lease: Lease
    hold: AsyncHold | None = None
    reenters: bool = False


class AsyncMultiHold(AsyncHold):
    """Several locks that are held together. The loss of one is the loss of all.

    Use it with ``async with``: the block is cancelled when one of them is lost, and `LeaseLost` is raised at its end,
    where the others are released.
    """

    __slots__ = ("_parts",)

    def __init__(
        self,
        engine: Engine,
        parts: tuple[Part, ...],
        handles: tuple[object, ...],
        leave: Leave,
        hold_list: Callable[[], HoldList | None],
    ) -> None:
        super().__init__(engine, parts[0].lease, leave, hold_list)
        self._handle = handles
        self._parts = parts

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they were acquired."""
        return tuple(part.lease.name for part in self._parts)

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each lock, by its name."""
        return {part.lease.name: part.lease.token for part in self._parts}

    @property
    def name(self) -> str:
        """The names, joined by `` + ``."""
        return " + ".join(self.names)

    @property
    def token(self) -> int:
        """The fencing token, if there is one name.

        Raises:
            ValueError: there are several, each with a token of its own: see `tokens`.
        """
        if len(self._parts) > 1:
            raise ValueError(f"{self.name!r} are several locks, each with a token of its own: see tokens")
        return self._lease.token

    @property
    def lost(self) -> bool:
        """Whether one of the leases has ended before it was released."""
        ended = self._any_ended()
        return self._was_lost if self._released else ended

    @property
    def held(self) -> bool:
        """Whether all are held now: none lost, and not released."""
        return not self._released and not self.lost

    @property
    def remaining(self) -> float:
        """The seconds for which all are certainly held, even if no renewal succeeds; 0 if one of them is not."""
        return 0.0 if self._released else min(part.lease.remaining() for part in self._parts)

    def raise_if_lost(self) -> None:
        """Return if all are held.

        Raises:
            LeaseLost: one was lost; the error names it.
            NotHeld: they were released.
        """
        ended = self._any_ended()  # before the flag: another thread may release just now
        if self._released and not self._was_lost:
            token = self._lease.token if len(self._parts) == 1 else None
            raise NotHeld(f"the locks {self.name!r} were released", name=self.name, owner=self.owner, token=token)
        if self._was_lost or ended:
            raise self._error()

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback(error)`` once when the first of them is lost; at once if one is lost already.

        The event loop calls it, outside any task: it must not block or await. All else is as in `AsyncHold.on_lost`.
        """
        refuse_callback(callback)
        first = [True]  # the thread that removes it calls: two leases may be lost at the same time

        def call_once(error: LeaseLost) -> None:
            try:
                first.pop()
            except IndexError:
                return
            callback(error)

        self._call_when_lost(call_once)
        for part in self._parts:
            part.engine.watchdog.prepare_callbacks()

    async def renew(self) -> None:
        """Set all leases to their full length now, as the watchdog does by itself unless ``renew=False``.

        Raises:
            LeaseLost: one has ended.
            RuntimeError: the ``max_hold`` of one is over; nothing was sent, and the hold goes on until its deadline.
            StoreUnavailable: a store did not confirm; the hold goes on until its deadline.
        """
        self._engine.runtime.before_blocking()
        self.raise_if_lost()
        await renew_all(self._parts)

    async def release(self) -> bool:
        """Release all; a further call sends nothing and returns True. As `AsyncHold.release`."""
        handles = [part.lease.handle() for part in self._parts]  # as in `AsyncHold.release`
        try:
            return await super().release()
        finally:
            del handles

    def _any_ended(self) -> bool:
        for part in self._parts:
            part.engine.check_owner(part.lease)
        return not all(part.lease.check_deadline() for part in self._parts)  # one may be released by its lock object

    def _leases(self) -> Sequence[Lease]:
        return [part.lease for part in self._parts]

    def _error(self) -> LeaseLost:
        return next((lease for lease in self._leases() if lease.state in ENDED or lease.why), self._lease).error()

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self.lost else "held"
        return f"<{type(self).__name__} {self.name!r} tokens={self.tokens} {state}>"


async def renew_all(parts: Sequence[Part]) -> None:
    """Set all leases to their full length, in one request to each store; nothing is sent if one may not be renewed."""
    for part in parts:
        part.engine.check_renewable(part.lease)
    for engine in dict.fromkeys(part.engine for part in parts):
        await engine.renew(*(part.lease for part in parts if part.engine is engine))


async def leave_parts(parts: Sequence[Part]) -> bool:
    """Release all, the last one first; return whether all were confirmed.

    If the release of one fails, the others are released all the same. The caller must shield this call.

    Raises:
        LeaseLost: one was lost before.
        BaseException: what a signal handler raised meanwhile, when all the others are released; the first of several.
    """
    confirmed = True
    lost: LeaseLost | None = None
    raised: BaseException | None = None
    silent = set[Engine]()  # whose store did not answer: what is left of their parts is not waited for
    try:
        for _, some in groupby(reversed(parts), lambda part: part.engine if part.hold is None else part):
            group = list(some)  # parts that are held directly, of one client; or one part with a hold of its own
            try:
                results = await _release(group, silent)
            except GeneratorExit:  # the event loop is closed: nothing can be awaited any more
                raise
            except BaseException as error:
                raised = error if raised is None else raised
                continue
            lost = lost or next((result for result in results if isinstance(result, LeaseLost)), None)
            confirmed = confirmed and all(results)
        if raised is not None:
            raise raised
        if lost is not None:
            raise lost
        return confirmed
    finally:
        del lost, raised  # an error that is kept keeps the frames of all callers alive


async def _release(group: Sequence[Part], silent: set[Engine]) -> Sequence[ReleaseResult]:
    engine, hold, leases = group[0].engine, group[0].hold, [part.lease for part in group]
    results: Sequence[ReleaseResult] = [False]
    until = engine.runtime.now() + engine.release_within
    try:
        if engine in silent:
            engine.unwaited.update(leases)
        results = await release_all(engine, leases) if hold is None else [await hold.release()]
        return results
    except LeaseLost as error:
        return [error]
    finally:
        engine.unwaited.difference_update(leases)
        if not all(results) and engine.runtime.now() >= until:
            silent.add(engine)


class MultiHold(Hold):
    """Several locks that are held together. The loss of one is the loss of all.

    Use it with ``with``: they are released at the end, and `LeaseLost` is raised there if one was lost meanwhile.
    """

    __slots__ = ()

    _core: AsyncMultiHold

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they were acquired."""
        return self._core.names

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each lock, by its name."""
        return self._core.tokens
