"""Leader election, with a value that the leader shows: `AsyncElection` and its sync facade `Election`.

Theory of operation
-------------------
The leader holds the lock ``election/NAME``. Its ticket carries the candidate's value. So a leader and its value appear
in one step, and waiting candidates are visible with theirs. A leader that proclaims another value writes it, with its
token, into a cell that refuses lower tokens. A reader reads the lock first and then the cell:

* a cell with the leader's token has its value;
* a cell with a lower token belongs to a former leader, and is ignored;
* a cell with a higher token means that the leader has changed meanwhile: the reader reads both again.

So no reader sees a value of an older leader after one of a newer leader.

A leader learns of its loss from its own clock, before the store can grant the lock to another. The lock is released at
the end of the block that uses it, when the work has ended, not when a stop is requested.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, cast

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.lease import LeaseHandle
from leasehold._engine.retry import views_of
from leasehold._model import NotAcquired, QueueEntry
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._runtimes.blocks import opened
from leasehold._validate import Meta, Seconds
from leasehold.errors import LeaseLost, NotHeld, StoreUnavailable
from leasehold.primitives.bases import refuse_coroutines, refuse_generators, refuse_returned_generator
from leasehold.primitives.coordination.leadership import ELECTION, AsyncLeadership, Leadership
from leasehold.primitives.locks.hold import AsyncHold
from leasehold.primitives.locks.lock import AsyncLock, Mutex
from leasehold.primitives.locks.options import Cancellation, Options
from leasehold.primitives.values.register import Register

EVERY = 1.0
"""Seconds between two polls of an observer."""

LOOK_AGAIN = 0.25
"""Seconds between two attempts of `run` to reach a store that does not answer, at least; with jitter twice as long."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader.

    Attributes:
        value: the value that the leader shows: a text, a mapping or None. The leader wrote it: do not trust it.
        token: its fencing token: higher than that of every leader before.
        owner: ``host:pid:client``.
    """

    value: Any
    token: int
    owner: str


class AsyncElection(AsyncLock):
    """One leader at a time. A candidate campaigns, leads, and resigns at the end of its block.

    Example:
        ```python
        election = client.election("scheduler", value="http://10.0.0.7:8080")
        async with election as leadership:
            print("we lead, with token", leadership.token)
            await leadership.proclaim("http://10.0.0.7:9090")
            print(await election.leader())
        ```
    """

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        super().__init__(engine, name, options)
        self._be_shared()
        self._proclaimed = Register(engine, ELECTION, name.removeprefix(f"{ELECTION}/"))

    async def campaign(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncLeadership | None:
        """Wait until this candidate leads; the same as `acquire`.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes its own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread, task or signal handler.

        Returns:
            The leadership; None if another candidate led all that time, or the wait was cancelled.

        Raises:
            StoreUnavailable: the leader is unknown; with a timeout, raised at most two seconds after it.
            LeaseLost: the lead was granted after its deadline.
            NameInUse: the name ``election/NAME`` is in use as another primitive.
            Unsupported, ValueError, TypeError, RuntimeError: as `AsyncLock.acquire`.
        """
        return await self.acquire(blocking, timeout, cancel)

    async def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> AsyncLeadership | None:
        """Wait until this candidate leads; the same as `campaign`."""
        got = await super().acquire(blocking, timeout, cancel)
        assert got is None or isinstance(got, AsyncLeadership)
        return got

    async def resign(self) -> None:
        """End the lead that the calling task won last through this object; the same as `release`.

        Call it when the work has ended, or leave it to the end of the block.

        Raises:
            NotHeld: it does not lead.
            LeaseLost: the lead was lost before.
        """
        await self.release()

    async def proclaim(self, value: Meta | None) -> None:
        """Change the value of the leader, if the calling task leads; as `AsyncLeadership.proclaim`.

        Raises:
            NotHeld: it does not lead.
            LeaseLost: the lead was lost; the value is not published.
            StoreUnavailable: no answer; with ``unknown``, readers may see it nevertheless.
            ValueError, TypeError: the value is no text or mapping, or longer than 1 KiB as JSON.
        """
        hold = self._last(self._engine.runtime.me())
        if not isinstance(hold, AsyncLeadership):
            raise NotHeld(f"the calling thread or task does not lead in {self.name!r}", name=self.name)
        await hold.proclaim(value)

    async def leader(self) -> Leader | None:
        """Return the present leader, with value and token; None if there is none.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return await self._leader()

    def observe(self, every: Seconds = EVERY) -> AsyncIterator[Leader | None]:
        """Yield the present leader, and again at each change of leader or value; None if there is none.

        It reads once in ``every`` seconds. A leader between two reads may be missed, but never the last one, and no
        earlier leader follows a later one. An outage of the store after the first read is waited out. It ends when the
        client is closed.

        Raises:
            StoreUnavailable: there was no answer to the first look.
        """
        return self._observe(_validate.above_zero(every, "every"))

    async def _observe(self, pause: float) -> AsyncIterator[Leader | None]:
        seen = await self.leader()
        yield seen
        while not self._engine.closed:
            await self._sleep(pause)
            found = await self._look(seen)
            if found != seen:
                seen = found
                yield seen

    async def _sleep(self, pause: float) -> None:
        """Sleep, or for less if the client is closed meanwhile."""
        runtime = self._engine.runtime
        until = runtime.now() + pause
        while not self._engine.closed and (left := until - runtime.now()) > 0:
            await runtime.sleep(min(left, EVERY))

    async def run(self, work: Callable[[AsyncLeadership], Any]) -> Any:
        """Campaign, call ``work(leadership)`` while leading, resign when it ends; return what it returned.

        If the lead is lost the work is cut short as any block is, and called again when this candidate leads again: so
        it is always called by a leader, and ends by itself only. An outage of the store is waited out once this
        candidate has led.

        Raises:
            AcquireTimeout: another candidate led for the election's whole ``timeout``.
            StoreUnavailable: there was no answer at the first campaign.
            TypeError: the work is a generator, or returned one: its body would run without the lead.
        """
        refuse_generators(work)
        led = False
        while True:
            leadership = await self._elected(patient=led)
            led = True
            try:
                async with leadership:
                    return refuse_returned_generator(await resolved(call_user_code(work, leadership)), work)
            except LeaseLost:
                if not leadership.lost:  # it is about a lock that the work uses
                    raise

    def __aenter__(self) -> Coroutine[Any, Any, AsyncLeadership]:
        return cast("Coroutine[Any, Any, AsyncLeadership]", self._enter(opened(self)))

    async def _elected(self, *, patient: bool) -> AsyncLeadership:
        while True:
            try:
                got = await self._acquire(True, None)
            except (StoreUnavailable, LeaseLost) as error:
                if not patient or (isinstance(error, StoreUnavailable) and error.lasting):
                    raise
                await self._engine.runtime.sleep(LOOK_AGAIN * (1 + self._engine.runtime.jitter()))
                continue
            if isinstance(got, NotAcquired):
                raise self._timed_out(got)
            assert isinstance(got, AsyncLeadership)
            return got

    def _taken(self, got: Any) -> AsyncHold:
        handle: LeaseHandle = got
        leadership = AsyncLeadership(self._engine, handle.lease, self._hold_list.ref, self._proclaimed)
        handle.lease.lock_object = self._hold_list.ref
        self._hold_list.add(self._engine.runtime.me(), leadership)
        return leadership

    async def _look(self, seen: Leader | None) -> Leader | None:
        """Look; without an answer, what was seen stays."""
        try:
            found = None if self._engine.closed else await self._leader()
        except (StoreUnavailable, RuntimeError) as error:
            if not self._engine.closed and (not isinstance(error, StoreUnavailable) or error.lasting):
                raise
            return seen
        return seen if self._engine.closed else found

    async def _leader(self) -> Leader | None:
        token = 0
        while True:
            entry = await self._entry()
            if entry is None or entry.token is None:
                return None
            said, value = (await self._proclaimed.read()).value or (0, None)
            if said <= entry.token or entry.token == token:
                break
            token = entry.token  # the lead has changed since; if not, the store's tokens began anew
        if said != entry.token:
            meta = entry.ticket.terms.meta
            value = json.loads(meta) if meta else None
        return Leader(value, entry.token, str(entry.ticket.terms.owner))

    async def _entry(self) -> QueueEntry | None:
        views = await views_of(self._engine.store, self.name, self._engine.response_timeout)
        return next((entry for view in views for entry in view.holders), None)


class Election(Mutex):
    """One leader at a time. A candidate campaigns, leads, and resigns at the end of its block.

    Example:
        ```python
        election = client.election("scheduler", value="http://10.0.0.7:8080")
        with election as leadership:
            print("we lead, with token", leadership.token)
            leadership.proclaim("http://10.0.0.7:9090")
            print(election.leader())
        ```
    """

    _core: AsyncElection

    def campaign(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> Leadership | None:
        """Wait until this candidate leads; the same as `acquire`. As `AsyncElection.campaign`.

        Args:
            blocking: False tries once and never waits.
            timeout: seconds to wait at most; None takes its own ``timeout``, -1 waits for ever, 0 tries once.
            cancel: ends the wait from another thread or signal handler.

        Returns:
            The leadership; None if another candidate led all that time, or the wait was cancelled.
        """
        return self.acquire(blocking, timeout, cancel)

    def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None, cancel: Cancellation | None = None
    ) -> Leadership | None:
        """Wait until this candidate leads; the same as `campaign`."""
        return self._acquired(run_sync(self._core._acquire(blocking, timeout, cancel)), Leadership)

    def resign(self) -> None:
        """End the lead that the calling thread won last through this object; the same as `release`."""
        run_sync(self._core.resign())

    def proclaim(self, value: Meta | None) -> None:
        """Change the value of the leader, if the calling thread leads. As `AsyncElection.proclaim`."""
        run_sync(self._core.proclaim(value))

    def leader(self) -> Leader | None:
        """Return the present leader, with value and token; None if there is none. As `AsyncElection.leader`."""
        return run_sync(self._core.leader())

    def observe(self, every: Seconds = EVERY) -> Iterator[Leader | None]:
        """Yield the present leader, and again at each change of leader or value. As `AsyncElection.observe`."""
        return _blocking(self._core.observe(every))

    def run(self, work: Callable[[Leadership], Any]) -> Any:
        """Campaign, call ``work(leadership)`` while leading, resign when it ends. As `AsyncElection.run`.

        A blocking work cannot be cut short when the lead is lost: let it call ``leadership.raise_if_lost()``.
        """
        refuse_coroutines(work)
        refuse_generators(work)
        return run_sync(self._core.run(lambda core: refuse_returned_generator(work(Leadership(core)), work)))

    def __enter__(self) -> Leadership:
        return Leadership(run_sync(self._core._enter(opened(self))))


def _blocking(stream: AsyncIterator[Leader | None]) -> Iterator[Leader | None]:
    async def following() -> Leader | None:
        return await anext(stream)

    while True:
        try:
            seen = run_sync(following())
        except StopAsyncIteration:
            return
        yield seen
