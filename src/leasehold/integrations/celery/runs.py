"""When each entry of a schedule ran last, in the store, where every node of beat reads it: `RunBook`.

Theory of operation
-------------------
Each entry has a cell with its last run: when, how often, the id of the message, and whether it was sent. A leader

1. *claims* a run: it writes the new time with ``sent`` false, if the cell is still as it was read, under its token;
2. sends the message, with the id that is in the cell;
3. *confirms*: it writes ``sent`` true.

So a later leader knows every run, whatever the former one kept in a file or a database. If a leader dies

* before 1 arrived: nothing has happened, and the entry is still due: the next leader sends it;
* between 1 and 3: it is unknown whether the message was sent. The next leader sends it again **with the same id**;
* after 3: it was sent.

That is *at least once*, and a message that was sent twice has one id. A former leader that wakes up cannot claim: its
token is older, and the version has changed.

An entry that leaves the schedule is forgotten, and its cell is written once more, with a short life: programs make
entries for a single run, with names of their own. If it is back in time, the cell gets its long life again: each day
django-celery-beat leaves out entries that are not due for hours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from leasehold import Client, Conflict, StoreUnavailable, VersionedCell
from leasehold.primitives.locks.options import VERSIONED_TTL

LONGEST = 300
"""Bytes of an entry's name that the name of its cell may have; longer ones are shown by their hash."""

GONE = "gone"
"""What the value of an entry has that left the schedule."""

GONE_TTL = 7 * 86_400.0
"""Seconds for which the cell of such an entry is kept."""

GONE_AT_ONCE = 20
"""How many such cells are written in one tick at most."""


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of an entry.

    Attributes:
        at: when it was due and claimed.
        count: how many there were.
        task_id: the id of its message; None for an entry that never ran, whose time is that of its first sight.
        sent: whether the message was sent for certain.
    """

    at: datetime
    count: int
    task_id: str | None
    sent: bool

    def as_value(self) -> dict[str, Any]:
        """Return what is stored."""
        return {"at": self.at.isoformat(), "count": self.count, "id": self.task_id, "sent": self.sent}

    @classmethod
    def of(cls, value: dict[str, Any]) -> Run:
        """Read what was stored."""
        return cls(datetime.fromisoformat(value["at"]), value["count"], value["id"], value["sent"])


class RunBook:
    """The last runs, as one leader reads and writes them.

    ``known`` are those that this process knows from before: they help where the store has lost its data.
    """

    def __init__(self, client: Client, name: str, token: int, known: dict[str, Run]) -> None:
        self._client = client
        self._name = name
        self._token = token
        self._known = known
        self._versions: dict[str, int] = {}  # of the cells that were read or written, and are not in doubt
        self._unconfirmed: dict[str, Run] = {}  # sent by this leader, which the store does not know yet
        self._gone: dict[str, tuple[Run, int]] = {}  # left the schedule, and still with a long life; with the version

    def last(self, entry: str) -> Run | None:
        """Return the last run of an entry; None if it is new.

        Raises:
            StoreUnavailable: the store did not answer.
            Conflict, LeaseLost: as `write`, for an entry that is back in the schedule.
        """
        if entry not in self._versions:
            cell = self._cell(entry)
            value, version = cell.get()
            stored = None if value is None else Run.of(value)
            if stored is not None and GONE in (value or {}):
                version = cell.put(stored.as_value(), if_version=version, fence=self._token)
            known = self._known.get(entry)
            if stored is not None and (known is None or stored.at >= known.at):
                self._known[entry] = stored
            self._versions[entry] = version
        run = self._known.get(entry)
        sent = self._unconfirmed.get(entry)
        return sent if run is not None and sent is not None and sent.task_id == run.task_id else run

    def write(self, entry: str, run: Run) -> None:
        """Write a run, if no other node has written since; `last` was called before.

        Raises:
            Conflict: another node has; or a write of ours, whose reply was lost, has arrived. Read again.
            LeaseLost: a later leader has.
            StoreUnavailable: the store did not answer. Read again.
        """
        version = self._versions.pop(entry, None)  # in doubt until there is an answer
        if version is None:
            self.last(entry)
            version = self._versions.pop(entry)
        self._versions[entry] = self._cell(entry).put(run.as_value(), if_version=version, fence=self._token)
        self._known[entry] = run
        self._unconfirmed.pop(entry, None)

    def confirm(self, entry: str, run: Run) -> None:
        """Write that a message was sent. Without an answer it is known here, and `settle` writes it later.

        Raises:
            LeaseLost: a later leader has written.
        """
        sent = replace(run, sent=True)
        try:
            self.write(entry, sent)
        except (Conflict, StoreUnavailable):
            self._unconfirmed[entry] = sent

    def keep_only(self, entries: Set[str]) -> None:
        """Forget all entries that are not among these; `settle` gives their cells a short life."""
        self._gone = {entry: left for entry, left in self._gone.items() if entry not in entries}
        for entry in self._known.keys() - entries:
            run, version = self._known.pop(entry), self._versions.pop(entry, None)
            run = self._unconfirmed.pop(entry, run)
            if version:  # else only a former lead of this process knew it, and a leader after that one forgot it
                self._gone[entry] = run, version

    def settle(self) -> None:
        """Write what is not confirmed yet, and give some of the cells whose entries are gone a short life.

        Raises:
            LeaseLost, StoreUnavailable: as `write`.
        """
        for entry, run in list(self._unconfirmed.items()):
            last = self.last(entry)
            if last is not None and last.task_id == run.task_id:
                self.write(entry, run)
            self._unconfirmed.pop(entry, None)
        for entry, (run, version) in list(self._gone.items())[:GONE_AT_ONCE]:
            value = {**run.as_value(), GONE: True}
            with suppress(Conflict):  # our own write, whose reply was lost
                self._cell(entry, GONE_TTL).put(value, if_version=version, fence=self._token)
            del self._gone[entry]

    def _cell(self, entry: str, ttl: float = VERSIONED_TTL) -> VersionedCell[Any]:
        short = entry if len(entry.encode()) <= LONGEST else hashlib.sha256(entry.encode()).hexdigest()
        return self._client.versioned(f"{self._name}/{short}", ttl=ttl)


def in_utc(at: datetime) -> datetime:
    """Return a time as an aware one; Celery takes naive ones as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def like(at: datetime, other: datetime) -> datetime:
    """Return a time in the zone of another, or naive as it is."""
    return at.replace(tzinfo=None) if other.tzinfo is None else at.astimezone(other.tzinfo)
