"""The mark of a task that is queued once: the id of the queued message of a name, in a cell of the store.

Theory of operation
-------------------
``apply_async`` writes the id of its message into the cell if that is empty, sends, and confirms. A caller that finds
an id there sends nothing, and gets the result of that id.

* A mark has a bounded life. Until it is confirmed it lives for `SENDING`: a sender that dies between the mark and the
  message blocks the name for so long. Then it lives for ``unique_for``: a lost message blocks the name for so long.
* Only its own id frees a mark. So a message that is delivered twice, or comes late, never frees the mark of another.
* A sender whose mark had no answer sends nothing. The mark may be there: what the same process sends next takes it.
* A message that is sent again by its own task (a retry) is never dropped. It takes the mark if it is free.
* A mark decides what is *queued*, never what *runs*: that is the lock's work. So a mark that ended too early costs a
  message too many, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from leasehold import Client, Conflict, LeaseholdError, StoreUnavailable, Versioned, VersionedCell
from leasehold._runtimes.log import Log

log = Log("leasehold.celery")

SENDING = 60.0
"""Seconds for which a mark lives whose message was not sent yet."""

_unsent: dict[str, float] = {}
"""Ids that this process has perhaps marked and did not send, and when: their marks stand for no message."""


class QueuedMark:
    """The mark of one name."""

    def __init__(self, client: Client, name: str, unique_for: float) -> None:
        self._claimed: VersionedCell[Any] = client.versioned(name, ttl=min(SENDING, unique_for))
        self._queued: VersionedCell[Any] = client.versioned(name, ttl=unique_for)
        self._name = name

    def claim(self, task_id: str) -> str | None:
        """Mark the name for a message that is not sent yet; return the id of another that is queued, None if none is.

        A message that was marked, and is sent again because its sending is unknown, does not count as another.

        Raises:
            StoreUnavailable: the mark is unknown; nothing should be sent.
        """
        while True:
            seen = self._claimed.get()
            other = _id(seen)
            if other is not None and other != task_id and other not in _unsent:
                return other
            try:
                self._claimed.put({"id": task_id}, if_version=seen.version)
            except Conflict:
                continue
            except StoreUnavailable:
                _remember(task_id)
                raise
            _unsent.pop(task_id, None)
            return None

    def confirm(self, task_id: str) -> None:
        """Prolong the mark of a message that was sent."""
        self._change(lambda holder: {"id": task_id} if holder == task_id else None)

    def keep(self, task_id: str) -> None:
        """Prolong the mark of a message that is sent again or begins to run; take it if it is free."""
        self._change(lambda holder: {"id": task_id} if holder in (task_id, None) else None)

    def free(self, task_id: str) -> None:
        """Free the name, if the mark is that of this message."""
        self._change(lambda holder: {} if holder == task_id else None)

    def _change(self, wanted: Callable[[str | None], dict[str, str] | None]) -> None:
        """Write what ``wanted`` returns for the present id, if it returns something. The store may fail: it is a mark.

        Without an answer the mark ends by its own life.
        """
        try:
            while True:
                seen = self._queued.get()
                value = wanted(_id(seen))
                if value is None:
                    return
                try:
                    self._queued.put(value, if_version=seen.version)
                except Conflict:
                    continue
                return
        except LeaseholdError as error:
            log.warning("the mark %r of a unique task was not changed, and ends by itself: %s", self._name, error)


def _remember(task_id: str) -> None:
    now = time.monotonic()
    for known, since in list(_unsent.items()):
        if now - since > 2 * SENDING:  # its mark has ended
            _unsent.pop(known, None)
    _unsent[task_id] = now


def _id(seen: Versioned[Any]) -> str | None:
    value: dict[str, str] = seen.value or {}  # empty where the mark was freed
    return value.get("id")
