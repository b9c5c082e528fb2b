"""What threads and tasks acquired through one lock object and have not released: for its ``release`` and ``owned``.

A lock object keeps a hold that `acquire` returned, since its user may call ``lock.release()`` and never look at the
hold. It does so for the thread or task that acquired, and no longer than that one lives: nobody else may release it
through the lock object. The hold of a ``with`` block belongs to the block (`leasehold._runtimes.blocks`); it is only
listed here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from leasehold._runtimes.base import Caller


class Kept:
    """The holds of one lock object, in the order in which they were acquired.

    Attributes:
        owned: the holds that it keeps alive, by their id. A public ``acquire`` puts its hold there in the statement
            before its ``return``. Python runs no signal handler between the two: so whoever gets an exception out of
            ``acquire`` has left nothing behind.

    """

    __slots__ = ("__weakref__", "_listed", "owned", "ref")

    def __init__(self) -> None:
        self._listed: dict[weakref.ref[Any], Caller] = {}
        self.owned: dict[int, Any] = {}
        self.ref = weakref.ref(self)

    def add(self, caller: Caller, hold: Any) -> None:
        """List a hold of a thread or task; it is not kept alive by that."""
        self._listed[weakref.ref(hold)] = caller

    def last(self, caller: Caller) -> Any:
        """Return the hold that a thread or task acquired last and has not released."""
        return next(self.of(caller), None)

    def of(self, caller: Caller) -> Iterator[Any]:
        """Yield the holds of a thread or task, the last one first."""
        for ref, owner in reversed(list(self._listed.items())):
            hold = ref()
            # The key of a thread or task that ended is given to another.
            if hold is not None and (owner is caller or (owner.key == caller.key and owner.alive())):
                yield hold

    def remove(self, hold: Any) -> None:
        """Take a hold off the list, and with it those that nobody has any more."""
        self.owned.pop(id(hold), None)
        self._listed.pop(weakref.ref(hold), None)
        if self._listed:
            for ref in list(self._listed):
                if ref() is None:
                    self._listed.pop(ref, None)

    def drop_ended_callers(self) -> None:
        """Keep no longer what a thread or task acquired that has ended."""
        for ref, caller in list(self._listed.items()):
            hold = ref()
            if hold is None or not caller.alive():
                self._listed.pop(ref, None)
                self.owned.pop(id(hold), None)
