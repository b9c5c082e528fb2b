"""A won election: `AsyncLeadership` and its sync facade `Leadership`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.lease import Lease
from leasehold._runtimes.base import run_sync
from leasehold._validate import Meta
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.primitives.locks.hold_list import HoldList
from leasehold.primitives.locks.options import VERSIONED_TTL
from leasehold.primitives.values.register import Body, Register

ELECTION = "election"
"""The prefix of the names of the lock and the cell of an election."""

PROCLAIMED_FOR = VERSIONED_TTL
"""Seconds for which a proclaimed value is kept; then the leader's first value counts again."""


class AsyncLeadership(AsyncHold):
    """The lead, until it is resigned or lost.

    Use it with ``async with``: the block is cancelled when the lead is lost, and `LeaseLost` is raised at its end.
    """

    __slots__ = ("_proclaimed", "_value")

    def __init__(
        self, engine: Engine, lease: Lease, hold_list: Callable[[], HoldList | None], proclaimed: Register
    ) -> None:
        super().__init__(engine, lease, None, hold_list)
        self._proclaimed = proclaimed  # the cell, which refuses tokens lower than that of its last writer
        meta = lease.ticket.terms.meta
        self._value: Any = json.loads(meta) if meta else None

    @property
    def value(self) -> Any:
        """The value of this leader."""
        return self._value

    async def proclaim(self, value: Meta | None) -> None:
        """Change the value of this leader.

        Args:
            value: a text or a mapping, up to 1 KiB as JSON.

        Raises:
            LeaseLost: the lead was lost; the value is not published.
            NotHeld: it was resigned.
            StoreUnavailable: no answer; with ``unknown``, readers may see it nevertheless.
            ValueError, TypeError: the value is no text or mapping, or longer than 1 KiB as JSON.
        """
        text = _validate.meta(value)
        decoded = json.loads(text) if text else None
        self._engine.runtime.before_blocking()
        self.raise_if_lost()
        body = Body.of([self.token, decoded])
        while not await self._write(body):
            self.raise_if_lost()
        self._value = decoded

    async def _write(self, body: Body) -> bool:
        """Write a value; return False if another client wrote meanwhile."""
        before = (await self._proclaimed.read()).version
        after = await self._proclaimed.write(body, ttl=PROCLAIMED_FOR, if_version=before, fence=self.token)
        return after.changed

    async def resign(self) -> bool:
        """End the lead; the same as `release`."""
        return await self.release()


class Leadership(Hold):
    """The lead, until it is resigned or lost.

    Use it with ``with``: it is resigned at the end, and `LeaseLost` is raised there if it was lost meanwhile.
    """

    __slots__ = ()

    _core: AsyncLeadership

    @property
    def value(self) -> Any:
        """The value of this leader."""
        return self._core.value

    def proclaim(self, value: Meta | None) -> None:
        """Change the value of this leader, as `AsyncLeadership.proclaim` does."""
        run_sync(self._core.proclaim(value))

    def resign(self) -> bool:
        """End the lead; the same as `release`."""
        return run_sync(self._core.resign())
