"""The writes of a guard: each is made at most once, in order, and only while a ticket holds its lock.

A request without a response may still arrive, as from a member that was stopped, after it was repeated at another one.
So a transaction also compares how many writes there were under this hold, and writes its own number to a key under the
lock's lease. A copy that arrives later finds another count, and does nothing. The branch that is not taken reads both
keys. So the response to a repetition tells whether an earlier copy was carried out.

All guards of a hold share the count, and send one write after the other.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from leasehold._runtimes.base import Runtime
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.etcd.keys import Json, found, only, put, ranged, revision_of, txn, unb64, version_is

BUSY = "another guarded write under this hold has no response yet; this one was not sent"


class GuardedWrites:
    """The guarded writes under one hold. ``key`` has the number of the last one; it ends with ``lease``."""

    def __init__(self, runtime: Runtime, key: str, lease: int) -> None:
        self.key = key
        self._lease = lease
        self._turns = KeyedLock(runtime, BUSY)
        self._begun = 0  # writes that were begun, whatever became of them
        self._count = 0  # writes that were made, as far as is known: the version of the key

    def turn(self, until: float) -> AbstractAsyncContextManager[None]:
        """Wait for the write before this one."""
        return self._turns.hold(self.key, until)

    def begin(self) -> int:
        """Return the number of the next write."""
        self._begun += 1
        return self._begun

    def body(self, number: int, held: Json, operation: Json) -> Json:
        """Build the transaction of a write; ``held`` compares the lock's key."""
        compare = [held, version_is(only(self.key), self._count)]
        success = [operation, put(self.key, b"%d" % number, self._lease)]
        return txn(compare, success, [ranged({"key": held["key"]}), ranged(only(self.key))])

    def revision(self, number: int, response: Json) -> int:
        """Return the revision at which a write was made; 0 if it was not, and can only be by another transaction."""
        if response.get("succeeded"):
            self._count += 1
            return revision_of(response)
        counted = found(response, 1)
        self._count = int(counted[0]["version"]) if counted else 0
        return int(counted[0]["mod_revision"]) if counted and unb64(counted[0]["value"]) == b"%d" % number else 0
