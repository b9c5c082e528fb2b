"""The holds that threads and tasks acquired through one lock object and have not released.

The lock's ``release`` and ``owned`` need them. A lock object keeps a hold that `acquire` returned alive, since its user
may drop the hold and call ``lock.release()``. It does so for the thread or task that acquired, and only while that one
runs: nobody else may release it through the lock object. The hold of a ``with`` block belongs to the block
(`leasehold._runtimes.blocks`); here it is only listed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from leasehold._runtimes.base import Caller


class HoldList:
    """The holds of one lock object, in the order in which they were acquired.

    Attributes:
        owned: the holds that it keeps alive, by their id. A public ``acquire`` puts its hold there in the statement
            before its ``return``. Python runs no signal handler between the two. So an ``acquire`` that raises has
            left nothing behind.

    """

    __slots__ = ("__weakref__", "_listed", "owned", "ref")

    def __init__(self) -> None:
        self._listed: dict[weakref.ref[Any], Caller] = {}
        self.owned: dict[int, Any] = {}
        self.ref = weakref.ref(self)

    def add(self, caller: Caller, hold: Any) -> None:
        """List a hold of a thread or task, without keeping it alive."""
        self._listed[weakref.ref(hold)] = caller

    def last(self, caller: Caller) -> Any:
        """Return the hold that a thread or task acquired last and has not released."""
        return next(self.of(caller), None)

    def of(self, caller: Caller) -> Iterator[Any]:
        """Yield the holds of a thread or task, the last one first."""
        for ref, owner in reversed(list(self._listed.items())):
            hold = ref()
            # Python reuses the key of a thread or task that has ended.
            if hold is not None and (owner is caller or (owner.key == caller.key and owner.alive())):
                yield hold

    def remove(self, hold: Any) -> None:
        """Remove a hold from the list, and those that nobody refers to any more."""
        self.owned.pop(id(hold), None)
        self._listed.pop(weakref.ref(hold), None)
        if self._listed:
            for ref in list(self._listed):
                if ref() is None:
                    self._listed.pop(ref, None)

    def drop_ended_callers(self) -> None:
        """Drop the holds of threads and tasks that have ended."""
        for ref, caller in list(self._listed.items()):
            hold = ref()
            if hold is None or not caller.alive():
                self._listed.pop(ref, None)
                self.owned.pop(id(hold), None)
