"""A journal: a small state that many clients change, each change exactly once, whatever replies are lost.

Theory of operation
-------------------
The state is one cell. A client changes it by compare-and-set: it reads, decides, writes if no other has written,
and else retries. Every change has an id of 64 random bits, chosen before the first request. Next to the state, the cell
stores the ids of the last `KEPT` changes. A client that lost the reply to a write repeats it with the same version and
the same id. Then it looks for the id:

* The id is there: one of the copies made the change.
* The id is not there, and the version has changed: the change was not made and never will be, since every copy names
  the old version. The client decides again, with the same id.
* More than `KEPT` changes of others came in between: the outcome is unknown, and the caller gets an error.

The number of ids is bounded, and so is the life of the state: a cell that is not written expires.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from leasehold._engine.engine import Engine
from leasehold._engine.retry import asked
from leasehold._model import Cell, Change
from leasehold.errors import StoreUnavailable
from leasehold.primitives.values.register import StoredCell
from leasehold.store_api import Watching

S = TypeVar("S", bound=tuple[Any, ...])

FORM = b"s"
"""The first byte of the stored value."""

ID = 8
"""Bytes of a change's id."""

KEPT = 256
"""Stored ids of changes."""

FIRST_PAUSE = 0.004
"""Longest pause in seconds before an overtaken change is retried; each further one may be twice as long."""

LONGEST_PAUSE = 0.1

FIRST_POLL = 0.005
"""Seconds before the first poll, where the store sends no notifications; later pauses are longer."""

LONGEST_POLL = 0.25
"""Seconds between two polls, at most: the longest delay of a wake-up without notifications."""

LOST_MESSAGE = 1.0
"""Seconds after which a waiter reads the cell without a notification: the cost of a lost one."""


class Pace:
    """How long to sleep between two polls."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = FIRST_POLL

    def next(self, jitter: float) -> float:
        """Return the next pause; it grows from poll to poll, and jitter spreads the waiters."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_POLL)
        return pause * (0.75 + jitter / 4)


@dataclass(frozen=True, slots=True)
class Seen(Generic[S]):
    """A state that was read; None if there is none. ``version`` is 0 then, else it grows by one with each change."""

    state: S | None
    version: int


class Journal(StoredCell, Generic[S]):
    """One state, a named tuple, stored as a JSON list. ``kind`` keeps the names of different primitives apart.

    ``read`` makes a state of what JSON decoded.
    """

    def __init__(self, engine: Engine, kind: str, name: str, read: Callable[[Any], S], ttl: float) -> None:
        super().__init__(engine, kind, name)
        self._decode = read
        self._ttl = ttl

    async def read(self, patience: float | None = None) -> Seen[S]:
        """Read the state; with ``patience``, tolerate an outage of so many seconds."""
        cell, _ = await self._request(Change(), patience)
        return self._seen(cell)

    async def change(self, decide: Callable[[S | None], S | None], patience: float | None = None) -> Seen[S]:
        """Change the state to what ``decide(state)`` returns, exactly once; None leaves it as it is.

        ``decide`` may be called several times, the last time with the state that was there just before. It goes on to
        its end even if the caller is cancelled, so that nothing half done is left.

        Returns:
            The state afterwards.

        Raises:
            StoreUnavailable: no answer; with ``unknown`` it may have been changed all the same.
        """
        return await self._engine.runtime.shield(self._change(decide, patience))

    async def changed(self, version: int, timeout: float, pace: Pace) -> None:
        """Sleep until the state may have another version, at most ``timeout`` seconds."""
        engine = self._engine
        if engine.store.capabilities.watches:
            try:
                store = cast(Watching, engine.store)
                return await asked(store.wait_for_cell(self._cell, version, timeout=min(timeout, LOST_MESSAGE)))
            except StoreUnavailable as error:  # the next read detects whether the store is down
                if error.lasting:
                    raise
        await engine.runtime.sleep(min(timeout, pace.next(engine.runtime.jitter())))

    async def _change(self, decide: Callable[[S | None], S | None], patience: float | None) -> Seen[S]:
        runtime, pause = self._engine.runtime, FIRST_PAUSE
        own = runtime.random_bytes(ID)
        cell, _ = await self._request(Change(), patience)
        while True:
            wanted = decide(self._seen(cell).state)
            if wanted is None:
                return self._seen(cell)
            before = cell.version
            change = Change(self._spelled(wanted, own, cell), if_version=before, ttl=self._ttl)
            cell, repeated = await self._request(change, patience)
            if cell.changed or own in _ids(cell.value):
                return Seen(wanted, cell.version) if cell.changed else self._seen(cell)
            if repeated and cell.version > before + KEPT:
                raise self._unknown(f"a change of {self._name!r} was lost, and too many others followed to tell")
            await runtime.sleep(pause * runtime.jitter())  # jitter: clients that collided do not collide again
            pause = min(2 * pause, LONGEST_PAUSE)
            cell, _ = await self._request(Change(), patience or 0.0)

    def _spelled(self, state: S, own: bytes, cell: Cell) -> bytes:
        ids = [own, *_ids(cell.value)][:KEPT]
        text = json.dumps(state, separators=(",", ":")).encode()
        return b"".join((FORM, len(ids).to_bytes(2, "big"), *ids, text))

    def _seen(self, cell: Cell) -> Seen[S]:
        if cell.value is None:
            return Seen(None, cell.version)
        try:
            if cell.value[:1] != FORM:
                raise ValueError("another form")
            body = cell.value[3 + ID * int.from_bytes(cell.value[1:3], "big") :]
            return Seen(self._decode(json.loads(body)), cell.version)
        except (ValueError, TypeError, KeyError, IndexError):
            raise self._foreign() from None


def _ids(value: bytes | None) -> list[bytes]:
    if not value or value[:1] != FORM:
        return []
    end = 3 + ID * int.from_bytes(value[1:3], "big")
    return [value[at : at + ID] for at in range(3, end, ID)]
