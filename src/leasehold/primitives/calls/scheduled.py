"""A job that runs once per tick, whatever the number of instances: `AsyncScheduled` and its sync facade `Scheduled`.

Theory of operation
-------------------
Every instance has a timer and calls `run` at each tick. The instance that gets the lock at once reads the *stamp*, a
cell that expires ``at_least`` seconds after it was written. If there is a stamp, this tick was run. If not, the
instance writes one *before* the job begins, and runs it. So no tick runs twice: not after a quick job, not after a
crash, and not when the clocks of the instances differ by less than ``at_least``. The store's clock decides all times.

The lease is short and renewed: a dead instance does not block the next tick. Renewal stops so that the lease ends
``at_most`` seconds after the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._runtimes.base import call_user_code, resolved, run_sync
from leasehold._validate import Seconds
from leasehold.primitives.bases import AsyncNamed, NamedFacade, refuse_coroutines
from leasehold.primitives.locks.lock import guard
from leasehold.primitives.locks.options import DEFAULT_LEASE
from leasehold.primitives.values.register import Body, Register
from leasehold.primitives.values.versioned import LONGEST_TTL


class AsyncScheduled(AsyncNamed):
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

    async def run(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)``, unless another instance does this tick or has done it. Never waits for others.

        What the job returns is dropped. If it raises, the caller gets the error, and the tick counts as run.

        Returns:
            Whether it ran here.

        Raises:
            LeaseLost: it took longer than ``at_most``, or the store could not be reached: another may run at the same
                time.
            StoreUnavailable: no answer before the job began; it did not run here.

        """
        hold = await self._lock.acquire(blocking=False)
        if hold is None:
            return False
        async with hold:
            if (await self._stamp.read()).version:
                return False
            stamped = await self._stamp.write(Body.of(hold.owner), ttl=self._at_least, if_version=0, fence=hold.token)
            if not stamped.changed:  # the lease expired before the write, and another took the tick
                return False
            hold.raise_if_lost()
            await resolved(call_user_code(work, *args, **kwargs))
        return True


class Scheduled(NamedFacade[AsyncScheduled]):
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

    def run(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
        """Do ``work(*args, **kwargs)`` unless another instance does this tick or has done it. Never waits for others.

        What the job returns is dropped. If it raises, the caller gets the error, and the tick counts as run.

        Returns:
            Whether it ran here.

        Raises:
            LeaseLost: it took longer than ``at_most``, or the store could not be reached: another may run at the same
                time.
            StoreUnavailable: no answer before the job began; it did not run here.

        """
        refuse_coroutines(work)
        return run_sync(self._core.run(work, *args, **kwargs))
