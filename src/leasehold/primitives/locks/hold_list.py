"""The holds that were acquired through a lock object."""

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

    A hold may also be left to expire, by a lock that means "once in ten seconds". Then nothing removes it, and where
    its lease is not renewed, nothing looks for its caller. So a list that grows is swept, at lengths that double.

    Attributes:
        listed: all of them, by weak references.
        owned: those that it keeps alive. A public ``acquire`` adds its hold in the statement before its ``return``,
            between which Python runs no signal handler. So an ``acquire`` that raises has left nothing behind.
    """

    __slots__ = ("__weakref__", "listed", "owned", "ref")

    def __init__(self) -> None:
        self.listed: list[Listed] = []  # most have one entry, for which a dictionary would take twice as much
        self.owned: list[Any] = []
        self.ref = weakref.ref(self)

    def add(self, caller: Caller, hold: Any) -> None:
        """List a hold of a thread or task, without keeping it alive."""
        if len(self.listed) in SWEPT_AT:
            self.sweep()
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
        if self.owned:
            with suppress(ValueError):  # it is the hold of a block
                self.owned.remove(hold)
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
                self._drop(listed, hold)

    def sweep(self) -> None:
        """Drop the holds of callers that have ended, and of the others all that expired before a later acquire.

        The last hold of each thread or task stays: its ``release`` reports that it was lost.
        """
        later: set[int] = set()  # the keys of those that have acquired again
        for listed in reversed(self.listed[:]):
            hold, caller = listed(), listed.caller
            if hold is None or not caller.alive() or (caller.key in later and hold._has_ended()):
                self._drop(listed, hold)
            else:
                later.add(caller.key)

    def _drop(self, listed: Listed, hold: Any) -> None:
        with suppress(ValueError):  # it is the hold of a block, or another thread has removed it
            self.owned.remove(hold)
        with suppress(ValueError):
            self.listed.remove(listed)


SWEPT_AT = frozenset(2**power for power in range(4, 31))
"""The lengths at which a list is swept before it grows: it is at most twice as long as it must be, or a few entries."""


class Listed(weakref.ref[Any]):
    """A hold, without keeping it alive, and who acquired it."""

    __slots__ = ("caller",)

    caller: Caller


NOTHING_HELD = HoldList()
"""What a lock object has until its first hold: many may wait at a time without one. Nothing can be put there."""
NOTHING_HELD.listed = NOTHING_HELD.owned = cast(Any, ())
