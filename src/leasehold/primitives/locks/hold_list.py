"""The holds that were acquired through one lock object: its ``release`` and ``owned`` find them here."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, cast

from leasehold._runtimes.base import Caller


class HoldList:
    """The holds that threads and tasks acquired through one lock object and have not released, in that order.

    The lock's ``release`` and ``owned`` need them. A lock object keeps a hold that `acquire` returned alive, since its
    user may drop the hold and call ``lock.release()``. It does so for the thread or task that acquired, and only while
    that one runs: nobody else may release it through the lock object. The hold of a ``with`` block belongs to the block
    (`leasehold._runtimes.blocks`); here it is only listed.

    Attributes:
        listed: all of them, by weak references.
        owned: the holds that it keeps alive. A public ``acquire`` puts its hold there in the statement before its
            ``return``. Python runs no signal handler between the two, if that statement is no call. So an ``acquire``
            that raises has left nothing behind.
    """

    __slots__ = ("__weakref__", "listed", "owned", "ref")

    def __init__(self) -> None:
        self.listed: list[Listed] = []  # most have one entry, for which a dictionary would take twice as much
        self.owned: list[Any] = []
        self.ref = weakref.ref(self)

    def add(self, caller: Caller, hold: Any) -> None:
        """List a hold of a thread or task, without keeping it alive."""
        listed = Listed(hold)
        listed.caller = caller
        self.listed.append(listed)

    def last(self, caller: Caller) -> Any:
        """Return the hold that a thread or task acquired last and has not released."""
        for listed in reversed(self.listed[:]):
            hold, owner = listed(), listed.caller
            # Python reuses the key of a thread or task that has ended.
            if hold is not None and (owner is caller or (owner.key == caller.key and owner.alive())):
                return hold
        return None

    def remove(self, hold: Any) -> None:
        """Remove a hold from the list, and those that nobody refers to any more."""
        try:
            if self.owned:
                self.owned.remove(hold)
        except ValueError:  # it is the hold of a block
            pass
        for listed in self.listed[:]:
            one = listed()
            if one is hold or one is None:
                try:
                    self.listed.remove(listed)
                except ValueError:  # another thread has removed it
                    pass

    def lists(self, lease: object, caller: Caller) -> bool:
        """Return whether a hold of a thread or task is, or includes, this lease."""
        mine = [(listed(), listed.caller) for listed in self.listed[:] if listed.caller.key == caller.key]
        return any(hold is not None and lease in hold._leases() and owner.alive() for hold, owner in mine)

    def drop_ended_callers(self) -> None:
        """Drop the holds of threads and tasks that have ended."""
        for listed in self.listed[:]:
            hold = listed()
            if hold is None or not listed.caller.alive():
                with suppress(ValueError):  # another thread may have removed it
                    self.listed.remove(listed)
                with suppress(ValueError):
                    self.owned.remove(hold)


class Listed(weakref.ref[Any]):
    """A hold, without keeping it alive, and who acquired it."""

    __slots__ = ("caller",)

    caller: Caller


NOTHING_HELD = HoldList()
"""What a lock object has until its first hold: many may wait at a time without one. Nothing can be put there."""

NOTHING_HELD.listed = NOTHING_HELD.owned = cast(Any, ())
