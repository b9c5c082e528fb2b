"""A job that runs once per tick, whatever the number of instances: `AsyncScheduled` and its sync facade `Scheduled`.

Theory of operation
-------------------
Every instance has a timer and calls `run` at each tick. The *stamp*, a cell, says what was run:

1. With a ``tick``: read the stamp. If this tick, or a later one, was run: return False.
2. Acquire the lock at once, or return False: another instance runs the job now.
3. Read the stamp under the lock, and decide again.
4. Write the stamp, if it is still as it was read, fenced by the lock's token. Only then the tick is ours.
5. Run the job, and release the lock.

So no tick runs twice, and a tick may run nowhere: it is *at most once*. If the process dies or gets no reply

* in 1 to 3, nothing has changed: the next caller may run the tick, after the lease at the latest;
* in 4, the tick counts as run if the write arrived. A lost reply is asked for again, with the id of the write; if
  the outcome stays unknown, the job does not run here. A write that arrives after the lease has ended changes nothing:
  a successor has written with a higher token, and so another version;
* in 5, the tick counts as run, as it does when the job raises.

What the stamp says depends on what `run` gets:

* *A tick*: the stamp holds the last tick that was run, for ``ttl`` seconds. Ticks are ordered, and one that is not
  newer is refused, however late: an instance that begins 12:00 at 12:06, after others ran 12:00 and 12:05, runs
  nothing. One that begins 12:00 at 12:04, before any other ran it, runs it, and 12:05 runs after it. No clock decides.
* *None*: the stamp expires ``at_least`` seconds after it was written, by the store's clock. A run is refused while
  there is one. An instance that is later than ``at_least`` runs the tick a second time.

A run with a tick after one without is refused until that stamp expires. The stamp does not decide about one
without a tick after one with a tick, nor about ticks of different kinds: these raise.

The lease is short and renewed: a dead instance does not block the next tick. Renewal stops so that the lease ends
``at_most`` seconds after the start; a third of the lease later at most if renewals were late, or came early
with those of other locks.

A store that carries nothing but such runs (`Capabilities.only_runs`) keeps no stamps: it keeps the name taken for
``at_least`` after the start, whatever happens. There are no ticks then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, isfinite
from typing import Any, TypedDict, Unpack

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.watchdog.timers import RENEWALS_PER_LEASE
from leasehold._model import LockMode, NotAcquired
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._validate import Seconds
from leasehold.errors import NameInUse, Unsupported
from leasehold.primitives.bases import (
    AsyncNamed,
    NamedFacade,
    refuse_coroutines,
    refuse_generators,
    refuse_returned_generator,
    require_coroutine_function,
    require_function,
)
from leasehold.primitives.locks.guard import guard
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.options import DEFAULT_LEASE, TICK_TTL, Options
from leasehold.primitives.values.register import Body, Record, Register
from leasehold.primitives.values.versioned import LONGEST_TTL

Tick = datetime | float | str
"""The time for which a run is scheduled, or a number or text that grows with it."""

TickForm = tuple[str, str | float]
"""The kind of a tick, and its normal form. Forms of one kind compare as their ticks do."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLY = 1_000_000
"""Microseconds that a timer may be early at most, as it uses another clock."""


ROOM = 0.9
"""How late the last renewal of a run may be sent, as a part of the time between two renewals."""


class Renewing(TypedDict):
    """How the lock of a run is renewed."""

    lease: float
    renew: bool
    max_hold: float | None


def _renewing(longest: float) -> Renewing:
    """Return options with which a lock is held for so many seconds, whatever its lease is.

    A lease is renewed at each third, so its length is chosen to make ``longest`` a whole number of thirds. The last
    renewal is sent three of them before the end. A renewal that had to be repeated makes all later ones late. So there
    is room after the last, but not for one more.
    """
    thirds = max(RENEWALS_PER_LEASE, ceil(longest * RENEWALS_PER_LEASE / DEFAULT_LEASE))
    third, renewals = longest / thirds, thirds - RENEWALS_PER_LEASE
    if not renewals:
        return {"lease": longest, "renew": False, "max_hold": None}
    return {"lease": third * RENEWALS_PER_LEASE, "renew": True, "max_hold": third * (renewals + ROOM)}


def form_of(tick: Tick) -> TickForm:
    """Return the kind and the normal form of a tick.

    Aware datetimes are the same tick if they are the same instant. Naive ones are taken as they are, and texts are
    compared character by character.

    Raises:
        TypeError: it is neither a datetime, nor a number, nor a str.
        ValueError: it is infinite, or not a number.
    """
    if isinstance(tick, datetime):
        aware = tick.utcoffset() is not None
        plain = (tick.astimezone(UTC) if aware else tick).replace(tzinfo=None)
        return "aware datetimes" if aware else "naive datetimes", plain.isoformat(timespec="microseconds")
    if isinstance(tick, str):
        return "texts", tick
    if isinstance(tick, bool) or not isinstance(tick, int | float):
        raise TypeError(f"tick must be a datetime, a number or a str, not {type(tick).__name__}")
    if isinstance(tick, float) and not isfinite(tick):
        raise ValueError(f"tick must be a finite number, not {tick}")
    return "numbers", tick


def tick_of(interval: Seconds, now: datetime | float | None = None) -> datetime:
    """Return the tick to which a time belongs, where ticks are ``interval`` apart: what a late instance passes, too.

    Ticks are counted from 1970 in UTC, so all instances count alike: of 300 s they are 12:00, 12:05 and so on, of a day
    midnight in UTC. Timers may be a little early: the last second before a tick (the last tenth of a shorter interval
    than 10 s) belongs to it already.

    Args:
        interval: seconds between two ticks, or a `timedelta`.
        now: an aware datetime, or seconds since 1970; None for the present time.

    Raises:
        TypeError, ValueError: a value is out of its bounds, or ``now`` has no time zone.
    """
    length = max(1, round(_validate.above_zero(interval, "interval") * 1e6))
    if now is None:
        now = datetime.now(UTC)
    if not isinstance(now, datetime):
        at = round(_validate.seconds(now, "now") * 1e6)
    elif now.utcoffset() is None:
        raise ValueError(f"now must have a time zone, and {now!r} has none; write datetime.now(UTC)")
    else:
        at = (now - EPOCH) // timedelta(microseconds=1)
    return EPOCH + timedelta(microseconds=(at + min(EARLY, length // 10)) // length * length)


class AsyncScheduled(AsyncNamed):
    """A job of which each tick runs in one instance only.

    Example:
        ```python
        async def send_mails():
            print("sent")

        job = client.scheduled("mail", at_most=600)
        if not await job.run(send_mails, tick=tick_of(300)):
            print("another instance does it")

        @client.scheduled("report", at_most=600)
        async def report(tick):
            print("of", tick)

        await report(tick=tick_of(300))
        ```
    """

    def __init__(
        self, engine: Engine, name: str, *, at_least: Seconds | None, at_most: Seconds, ttl: Seconds = TICK_TTL
    ) -> None:
        self._engine = engine
        self._at_least = None if at_least is None else _validate.above_zero(at_least, "at_least", LONGEST_TTL)
        self._ttl = _validate.above_zero(ttl, "ttl", LONGEST_TTL)
        longest = _validate.above_zero(at_most, "at_most")
        if longest < _validate.SHORTEST_LEASE:
            raise ValueError(f"at_most must be {_validate.SHORTEST_LEASE} s or more, it is {longest}")
        renewing = _renewing(longest)
        self._name = name
        if engine.store.capabilities.only_runs:
            self._stamp, self._lock = None, self._run_lock(**renewing)
        else:
            self._stamp, self._lock = Register(engine, "scheduled", name), guard(engine, "scheduled", name, **renewing)

    def _run_lock(self, **renewing: Unpack[Renewing]) -> AsyncLock:
        if self._at_least is None:
            raise ValueError(f"{self._name!r} needs at_least=, since {self._engine.store!r} keeps no ticks")
        options = Options.checked(self._engine, LockMode(), at_least=self._at_least, **renewing)
        return AsyncLock(self._engine, _validate.name(self._name), options, "warn")

    def __call__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, bool]]:
        """Return the function as a job: a call with ``tick=`` runs it once per tick, and returns what `run` does.

        Raises:
            TypeError: it is no coroutine function.
        """
        require_coroutine_function(function)

        @functools.wraps(function)
        async def once_per_tick(*args: Any, tick: Tick | None = None, **kwargs: Any) -> bool:
            return await self.run(function, *args, tick=tick, **kwargs)

        return once_per_tick

    async def run(self, work: Callable[..., Any], /, *args: Any, tick: Tick | None = None, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)``, unless another instance does this tick or has done it. Never waits for others.

        What the job returns is dropped. If it raises, the caller gets the error, and the tick counts as run.

        Args:
            work: the job.
            args: its arguments.
            tick: the time for which it is scheduled (`tick_of` for an interval), the same in each instance; or a number
                or text that grows. It is run once, and not after a later one. The job gets it if it has a parameter
                ``tick``. Without it a tick is what begins within ``at_least``.
            kwargs: its arguments.

        Returns:
            Whether it ran here.

        Raises:
            LeaseLost: it took longer than ``at_most``, or the store could not be reached: another may run at the same
                time.
            NameInUse: the last run had a tick, and this one has none or one of another kind.
            StoreUnavailable: no answer before the job began; it did not run here.
            Unsupported: there is a ``tick``, and the store keeps none.
            ValueError: there is neither a ``tick`` nor ``at_least``.
            TypeError: the job is a generator function; one that returns a generator counts as run.
        """
        refuse_generators(work)
        self._engine.ready()
        if self._stamp is None:
            return await self._run_unstamped(work, args, kwargs, tick)
        form = None if tick is None else form_of(tick)
        ttl = self._at_least if form is None else self._ttl
        if ttl is None:
            raise ValueError(f"{self._name!r} needs tick= in each run, or at_least= where it is made")
        stamp = Body.of(str(self._engine.owner) if form is None else {"tick": form, "by": str(self._engine.owner)})
        if form is not None:
            if self._was_run(await self._stamp.read(), form):
                return False
            if _takes_tick(work):
                kwargs["tick"] = tick
        hold = await self._lock._acquire(False, None)  # it belongs to this call: see `HoldList.owned`
        if isinstance(hold, NotAcquired):
            return False
        async with hold:
            seen = await self._stamp.read()
            if self._was_run(seen, form):
                return False
            stamped = await self._stamp.write(stamp, ttl=ttl, if_version=seen.version, fence=hold.token)
            if not stamped.changed:  # the lease expired before the write, and another took the tick
                return False
            hold.raise_if_lost()
            refuse_returned_generator(await resolved(call_user_code(work, *args, **kwargs)), work)
        return True

    async def _run_unstamped(
        self, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], tick: Tick | None
    ) -> bool:
        if tick is not None:
            raise Unsupported(f"{self._engine.store!r} keeps no ticks; {self._engine.store.capabilities.why_not}")
        hold = await self._lock._acquire(False, None)  # it belongs to this call: see `HoldList.owned`
        if isinstance(hold, NotAcquired):
            return False
        async with hold:
            refuse_returned_generator(await resolved(call_user_code(work, *args, **kwargs)), work)
        return True

    def _was_run(self, seen: Record, form: TickForm | None) -> bool:
        stored: Any = seen.value
        if not seen.version or isinstance(stored, str):  # the stamp of a run without a tick is a text
            return seen.version > 0
        kind, last = stored["tick"]
        if form is None or form[0] != kind:
            ours = "has none" if form is None else f"is one of {form[0]}"
            raise self._error(
                NameInUse,
                f"the ticks of {self._name!r} are {kind}, the last is {last!r}, and this one {ours}; pass ticks of one "
                "kind in every instance, or change the name, too",
            )
        return form <= (kind, last)


def _takes_tick(work: Callable[..., Any]) -> bool:
    try:
        return "tick" in inspect.signature(work).parameters
    except (TypeError, ValueError):  # a builtin
        return False


class Scheduled(NamedFacade[AsyncScheduled]):
    """A job of which each tick runs in one instance only.

    Example:
        ```python
        def send_mails():
            print("sent")

        job = client.scheduled("mail", at_most=600)
        if not job.run(send_mails, tick=tick_of(300)):
            print("another instance does it")

        @client.scheduled("report", at_most=600)
        def report(tick):
            print("of", tick)

        report(tick=tick_of(300))
        ```
    """

    def __call__(self, function: Callable[..., Any]) -> Callable[..., bool]:
        """Return the function as a job: a call with ``tick=`` runs it once per tick, and returns what `run` does.

        Raises:
            TypeError: it is a coroutine function, or a generator.
        """
        require_function(function)
        refuse_coroutines(function)

        @functools.wraps(function)
        def once_per_tick(*args: Any, tick: Tick | None = None, **kwargs: Any) -> bool:
            return self.run(function, *args, tick=tick, **kwargs)

        return once_per_tick

    def run(self, work: Callable[..., Any], /, *args: Any, tick: Tick | None = None, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)`` unless another instance does this tick or has done it. Never waits for others.

        What the job returns is dropped. If it raises, the caller gets the error, and the tick counts as run.
        Arguments, and what it raises: as `AsyncScheduled.run`.

        Returns:
            Whether it ran here.
        """
        refuse_coroutines(work)
        return run_sync(self._core.run(work, *args, tick=tick, **kwargs))
