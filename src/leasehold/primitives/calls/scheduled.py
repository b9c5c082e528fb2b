"""A job that runs once per tick, whatever the number of instances: `AsyncScheduled` and its sync facade `Scheduled`.

Theory of operation
-------------------
Every instance has a timer and calls `run` at each tick. Whoever gets the lock at once looks at the *stamp*, a cell that
the store forgets ``at_least`` seconds after it was written. If there is one, this tick was taken. If not, it writes
one *before* the job begins, and runs it. So neither a quick job, nor a crash, nor clocks of instances that differ by
less than ``at_least`` make a tick run twice. The store counts all times.

The lock is short and renewed: a dead instance does not block the next tick. It is renewed for so long that it ends
``at_most`` seconds after the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._runtimes.base import outside, ready, run_sync
from leasehold._validate import Seconds
from leasehold.primitives.calls.callables import refuse_coroutines
from leasehold.primitives.locks.inner_lock import guard
from leasehold.primitives.locks.options import DEFAULT_LEASE
from leasehold.primitives.values.register import Body, Register
from leasehold.primitives.values.versioned import LONGEST_TTL


class AsyncScheduled:
    """A job of which each tick runs in one instance only.

    Example:
        ```python
        async def send_mails():
            print("sent")

        job = client.scheduled("mail", at_least=60, at_most=600)
        if not await job.run(send_mails):
            print("another instance does it")
        ```

    """

    def __init__(self, engine: Engine, name: str, *, at_least: Seconds, at_most: Seconds) -> None:
        self._engine = engine
        self._at_least = _validate.above_zero(at_least, "at_least", LONGEST_TTL)
        longest = _validate.above_zero(at_most, "at_most")
        if longest < _validate.SHORTEST_LEASE:
            raise ValueError(f"at_most must be {_validate.SHORTEST_LEASE} s or more, it is {longest}")
        lease = min(longest, DEFAULT_LEASE)
        renewed = longest - lease
        self._lock = guard(
            engine, "scheduled", name, lease=lease, renew=renewed > 0, max_hold=renewed if renewed > 0 else None
        )
        self._stamp = Register(engine, "scheduled", name)
        self._name = name

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    async def run(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)``, unless another instance does this tick or has done it. Never waits for others.

        What the job returns is dropped; what it raises is raised, and the tick counts as run.

        Returns:
            Whether it ran here.

        Raises:
            LeaseLost: it took longer than ``at_most``, or the store could not be reached: another may run beside it.
            StoreUnavailable: no answer before the job began; it did not run here.

        """
        hold = await self._lock.acquire(blocking=False)
        if hold is None:
            return False
        async with hold:
            if (await self._stamp.read()).version:
                return False
            stamped = await self._stamp.write(Body.of(hold.owner), ttl=self._at_least, if_version=0, fence=hold.token)
            if not stamped.changed:  # the lease ran out before the write, and another took the tick
                return False
            hold.raise_if_lost()
            await ready(outside(work, *args, **kwargs))
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Scheduled:
    """A job of which each tick runs in one instance only.

    Example:
        ```python
        def send_mails():
            print("sent")

        job = client.scheduled("mail", at_least=60, at_most=600)
        if not job.run(send_mails):
            print("another instance does it")
        ```

    """

    def __init__(self, core: AsyncScheduled) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The job's name."""
        return self._core.name

    def run(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)`` unless another does this tick; return whether it ran here."""
        refuse_coroutines(work)
        return run_sync(self._core.run(work, *args, **kwargs))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
