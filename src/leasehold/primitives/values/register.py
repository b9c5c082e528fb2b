"""A register: a cell for a user's value, whose writes can be distinguished.

A write whose reply was lost cannot simply be sent again: another client's write may have followed it. So every write
carries a write id of 64 random bits with its value. A conditional write is repeated with the same id. If the repetition
finds that the version grew by one, the write id in the cell shows whose write that was. If it grew by more, the outcome
is unknown, and the caller gets an error that says so.

A store may let a value live for too long (`Capabilities.restarts`). Where that matters, the last bytes of the write id
are when the value ends, by the writer's wall clock; from then on it counts as missing. Clients of before see an id as
any other, and theirs are rarely past.

Values are what JSON can express, and bytes, which are kept as they are.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._engine.retry import asked
from leasehold._model import CELL_LIMIT, Cell, Change
from leasehold.errors import LeaseLost, NameInUse, StoreUnavailable, Unsupported
from leasehold.primitives.bases import AsyncPrimitive

WRITE_ID_SIZE = 8
"""Bytes that identify a write."""

END_SIZE = 5
"""Bytes of a write id that are the end of the value, in seconds since 1970."""

END_LATE = 2
"""Seconds that are added to that end, as wall clocks differ a little."""

SHORTEST_TTL = 0.001
"""Seconds for which a value is kept at least, however late it was written."""

VALUE_LIMIT = CELL_LIMIT - WRITE_ID_SIZE - 1
"""The largest size of a value in bytes, as JSON or as raw bytes."""


class Form(enum.Enum):
    """How a value is encoded: the first byte of what is stored."""

    JSON = b"j"
    BYTES = b"b"
    UNSTORABLE = b"x"  # there was a value that could not be kept; the reason is stored instead


@dataclass(frozen=True, slots=True)
class Record:
    """A register as it was read.

    Attributes:
        value: the value; None where there is none.
        version: 0 where there is no value; each write adds one.
        changed: whether the write that returned this record was made.
        unstorable: why there is a version but no value.
    """

    value: Any = None
    version: int = 0
    changed: bool = False
    unstorable: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """A value as it is stored, without its write id."""

    form: Form
    content: bytes

    @classmethod
    def of(cls, value: object) -> Body:
        """Encode a value.

        Raises:
            TypeError: JSON cannot express it.
            ValueError: it is too large, or has a number that is infinite or not a number.
        """
        if isinstance(value, bytes | bytearray):
            form, content = Form.BYTES, bytes(value)
        else:
            form, content = Form.JSON, _json(value)
        if len(content) > VALUE_LIMIT:
            raise ValueError(
                f"the value has {len(content)} bytes, at most {VALUE_LIMIT} are kept; keep a reference instead"
            )
        return cls(form, content)

    def value(self) -> Any:
        """Decode the value: what every reader of the register gets."""
        return json.loads(self.content) if self.form is Form.JSON else self.content


def _json(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the value is neither bytes nor can JSON express it: {error}") from None


class StoredCell(AsyncPrimitive):
    """One cell of the store. ``kind`` separates the names of different primitives."""

    def __init__(self, engine: Engine, kind: str, name: str) -> None:
        can = engine.store.capabilities
        if not (can.cells and can.fencing):
            instead = can.why_not or "use another store"
            raise Unsupported(f"{engine.store!r} keeps no values with versions; {instead}")
        self._engine = engine
        self._name = _validate.name(name)
        self._cell = _validate.name(f"{kind}/{name}", f"name with {kind}/ before it")  # a store keeps no longer one

    def _ask(self, change: Change, within: float) -> Coroutine[Any, Any, Cell]:
        self._engine.refuse_closed()  # also in the middle of a call: the store would only report an outage
        within = min(within, self._engine.response_timeout)
        return asked(self._engine.store.compare_and_set(self._cell, change, within=within))

    async def _request(self, change: Change, patience: float | None = None) -> tuple[Cell, bool]:
        """Repeat a request until it has an answer; with ``patience``, through an outage of so many seconds."""
        within = max(patience or 0.0, self._engine.response_timeout)
        return await self._engine.repeat(
            lambda left: self._ask(change, left), within, through_outage=patience is not None
        )

    def _unknown(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"the reply to {why}; look again", unknown=True, name=self._name)

    def _foreign(self) -> NameInUse:
        return NameInUse(f"the cell {self._cell!r} holds something else", name=self._name)


class Register(StoredCell):
    """A cell for a user's value; with ``ends`` it does not live for too long."""

    def __init__(self, engine: Engine, kind: str, name: str, *, ends: bool = False) -> None:
        super().__init__(engine, kind, name)
        self._ends = ends and engine.store.capabilities.restarts

    async def read(self) -> Record:
        """Return the value."""
        cell, _ = await self._request(Change())
        return self._record(cell)

    async def write(
        self, body: Body, *, ttl: float, if_version: int | None = None, fence: int | None = None, only: bool = False
    ) -> Record:
        """Write if the conditions hold; return whether it was done, and the present value.

        ``only``: the holder of ``fence`` writes nothing else here. So the write may be repeated, like a conditional
        one: a first copy that arrives late cannot replace anything newer.

        Raises:
            LeaseLost: a holder with a token higher than ``fence`` has written.
            StoreUnavailable: no answer; with ``unknown`` the value may have been written.
        """
        write_id = self._engine.runtime.random_bytes(WRITE_ID_SIZE)
        if self._ends:
            write_id = write_id[:-END_SIZE] + (self._wall() + math.ceil(ttl) + END_LATE).to_bytes(END_SIZE)
        change = Change(body.form.value + write_id + body.content, if_version, fence, ttl)
        until = self._engine.runtime.now() + ttl
        cell, repeated = await self._send(change, write_id, until, repeatable=only or if_version is not None)
        ours = cell.changed or (cell.value is not None and cell.value[1 : WRITE_ID_SIZE + 1] == write_id)
        if ours:
            return Record(body.value(), cell.version, changed=True)
        if fence is not None and fence < cell.fence:
            why = f"the write to {self._name!r} came too late: it has token {fence}, and {cell.fence} has written"
            raise self._error(LeaseLost, why, token=fence)
        if repeated and if_version is not None and cell.version > if_version + 1:
            raise self._overtaken()
        return self._record(cell)

    async def _send(self, change: Change, write_id: bytes, until: float, *, repeatable: bool) -> tuple[Cell, bool]:
        def ask(within: float) -> Coroutine[Any, Any, Cell]:
            left = until - self._engine.runtime.now()  # a repetition does not extend the value's time to live
            return self._ask(replace(change, ttl=max(left, SHORTEST_TTL)), within)

        if repeatable:
            # Repeated after a refusal, too: the work before the write cannot be undone, so it is worth recording.
            return await self._engine.repeat(
                ask, self._engine.response_timeout, through_outage=change.fence is not None
            )
        try:
            return await ask(self._engine.response_timeout), False
        except StoreUnavailable as error:
            if not error.unknown:
                raise
        cell, _ = await self._request(Change())
        if cell.value is None or cell.value[1 : WRITE_ID_SIZE + 1] != write_id:
            raise self._overtaken()  # not there, or no longer, or not yet
        return cell, True

    def _overtaken(self) -> StoreUnavailable:
        return self._unknown(f"the write to {self._name!r} was lost, and others may have written since")

    def _wall(self) -> int:
        return self._engine.runtime.wall_us() // 1_000_000

    def _record(self, cell: Cell) -> Record:
        if cell.value is None:
            return Record()
        try:
            body = Body(Form(cell.value[:1]), cell.value[WRITE_ID_SIZE + 1 :])
        except ValueError:
            raise self._foreign() from None
        write_id = cell.value[1 : WRITE_ID_SIZE + 1]
        if self._ends and int.from_bytes(write_id[-END_SIZE:]) <= self._wall():
            return Record()
        if body.form is Form.UNSTORABLE:
            return Record(None, cell.version, unstorable=body.content.decode())
        return Record(body.value(), cell.version)
