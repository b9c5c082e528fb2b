"""A journal: a small state that many clients change, each change exactly once, whatever replies are lost.

Theory of operation
-------------------
The state is one cell, changed by compare-and-set: read, decide, write if nobody wrote meanwhile, else again. Every
change has an id of 64 random bits, chosen before the first request, and the cell keeps the ids of the last `KEPT`
changes beside the state. So whoever lost the reply to a write repeats it with the same version and the same id, and
then looks for the id: there, the change was made, by whichever copy; not there although the version moved on, it was
not made and never will be, since the version that every copy names is gone; then it is decided anew, with the same id.
Only if more than `KEPT` changes of others came in between can nobody say, and the caller is told.

The memory of ids is bounded, and so is the state's life: a cell that nobody writes is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leasehold import _validate
from leasehold._engine import cell_wait
from leasehold._engine.cell_wait import Pace
from leasehold._engine.engine import Engine
from leasehold._model import Cell, Change
from leasehold.errors import NameInUse, StoreUnavailable, Unsupported

S = TypeVar("S")

FORM = b"s"
"""The first byte of what is stored."""

ID = 8
"""Bytes of a change's id."""

KEPT = 256
"""Ids that are kept."""

FIRST_PAUSE = 0.004
"""Seconds before a change is tried again that another overtook, at most; each further pause may be twice as long."""

LONGEST_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Seen(Generic[S]):
    """The state as it was seen; None if there is none. ``version`` is 0 then, else one more for each change."""

    state: S | None
    version: int


@dataclass(frozen=True, slots=True)
class Spelling(Generic[S]):
    """How a state becomes what JSON can spell, and back."""

    spell: Callable[[S], object]
    read: Callable[[Any], S]


class Journal(Generic[S]):
    """One state. ``kind`` keeps the names of different primitives apart."""

    def __init__(self, engine: Engine, kind: str, name: str, spelling: Spelling[S], ttl: float) -> None:
        can = engine.store.capabilities
        if not (can.cells and can.fencing):
            raise Unsupported(f"{engine.store!r} keeps no values with versions; use another store")
        self._engine = engine
        self._spelling = spelling
        self._ttl = ttl
        self._name = _validate.name(name)
        self._cell = _validate.name(f"{kind}/{name}")

    async def read(self, patience: float | None = None) -> Seen[S]:
        """Look at the state; with ``patience`` ride over an outage of so many seconds."""
        within = self._engine.response_timeout if patience is None else max(patience, self._engine.response_timeout)
        cell, _ = await self._engine.repeat(lambda _: self._ask(Change()), within, through_outage=patience is not None)
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
        await cell_wait.changed(self._engine, self._cell, version, timeout=timeout, pace=pace)

    async def _change(self, decide: Callable[[S | None], S | None], patience: float | None) -> Seen[S]:
        within = self._engine.response_timeout if patience is None else max(patience, self._engine.response_timeout)
        runtime, pause = self._engine.runtime, FIRST_PAUSE
        own = runtime.random_bytes(ID)
        cell, _ = await self._engine.repeat(lambda _: self._ask(Change()), within, through_outage=patience is not None)
        while True:
            wanted = decide(self._seen(cell).state)
            if wanted is None:
                return self._seen(cell)
            before = cell.version
            change = Change(self._spelled(wanted, own, cell), if_version=before, ttl=self._ttl)
            cell, repeated = await self._send(change, within, through_outage=patience is not None)
            if cell.changed or own in _ids(cell.value):
                return Seen(wanted, cell.version) if cell.changed else self._seen(cell)
            if repeated and cell.version > before + KEPT:
                raise self._unknown()
            await runtime.sleep(pause * runtime.jitter())  # those who met once do not meet again
            pause = min(2 * pause, LONGEST_PAUSE)
            cell, _ = await self._engine.repeat(lambda _: self._ask(Change()), within, through_outage=True)

    async def _send(self, change: Change, within: float, *, through_outage: bool) -> tuple[Cell, bool]:
        return await self._engine.repeat(lambda _: self._ask(change), within, through_outage=through_outage)

    def _ask(self, change: Change) -> Coroutine[Any, Any, Cell]:
        return self._engine.store.compare_and_set(self._cell, change)

    def _spelled(self, state: S, own: bytes, cell: Cell) -> bytes:
        ids = [own, *_ids(cell.value)][:KEPT]
        text = json.dumps(self._spelling.spell(state), separators=(",", ":")).encode()
        return b"".join((FORM, len(ids).to_bytes(2, "big"), *ids, text))

    def _seen(self, cell: Cell) -> Seen[S]:
        if cell.value is None:
            return Seen(None, cell.version)
        try:
            if cell.value[:1] != FORM:
                raise ValueError("another form")
            body = cell.value[3 + ID * int.from_bytes(cell.value[1:3], "big") :]
            return Seen(self._spelling.read(json.loads(body)), cell.version)
        except (ValueError, TypeError, KeyError, IndexError):
            raise NameInUse(f"the cell {self._cell!r} holds something else", name=self._name) from None

    def _unknown(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the reply to a change of {self._name!r} was lost, and too many others followed to tell; look again",
            unknown=True,
            name=self._name,
        )


def _ids(value: bytes | None) -> list[bytes]:
    if not value or value[:1] != FORM:
        return []
    end = 3 + ID * int.from_bytes(value[1:3], "big")
    return [value[at : at + ID] for at in range(3, end, ID)]
