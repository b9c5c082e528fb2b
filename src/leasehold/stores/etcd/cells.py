"""Cells on etcd: two keys under one lease, the value and a note with its fence and its time to live.

The version of a cell is etcd's own count of writes to the value. A change reads the note, decides, and writes if the
note is still the same and the version is the requested one. A write without a fence leaves the note as it is, so such
writes do not make each other fail.

The next write with the same ttl renews the lease and uses it again. If the write does not confirm the keep-alive,
another keep-alive follows (``sessions.py``). A lease that a write with another ttl has replaced is not revoked, but
ends by itself: another client may be about to write under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from leasehold._model import Cell, Change
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.cells import EMPTY, apply_change, check_size
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.keys import Json, absent, found, only, put, ranged, txn, unb64, version_is, written
from leasehold.stores.etcd.sessions import Session, Sessions, new_id, whole

GRANT_PAUSE = 0.05
"""Seconds before a grant without an answer is repeated."""

REVOKE_WITHIN = 1.0
"""Seconds that the revocation of an unused lease may take."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored cell, the revision of its note, its lease, and the requested ttl of the lease."""

    cell: Cell = EMPTY
    noted: int = 0
    lease: int = 0
    ttl: int = 0


class Cells:
    """The cells of one namespace."""

    def __init__(self, runtime: Runtime, gateway: Gateway, sessions: Sessions) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._sessions = sessions

    async def change(self, key: str, change: Change, until: float) -> Cell:
        """Change or read the cell whose keys begin with ``key``."""
        check_size(change)
        if change.value is None:
            return apply_change((await self._read(key, until)).cell, change)
        # Shielded: a cancelled write would leave a granted lease behind until its ttl ends.
        return await self._runtime.shield(self._write(key, change, until))

    async def _write(self, key: str, change: Change, until: float) -> Cell:
        lease, renewal, unused = None, None, False  # unused: it is of this write, and nothing was written under it
        try:
            while True:
                stored = await self._read(key, until)
                after = apply_change(stored.cell, change)
                if not after.changed:
                    return after
                if lease is not None and unused and stored.lease and stored.ttl == lease.asked:
                    # Another client created the cell meanwhile. All use one lease: else the note would change with
                    # each write, and other writes would fail.
                    await self._revoke(lease)
                    lease, unused = None, False
                if lease is None or renewal is None:
                    ttl = whole(change.ttl)
                    lease = Session(stored.lease, ttl, float(ttl), -math.inf)
                    renewal = await self._sessions.renew(lease, until) if lease.id and stored.ttl == ttl else None
                    if renewal is None:
                        lease = Session(new_id(self._runtime), ttl, float(ttl), self._runtime.now())
                        renewal, unused = lease.result, True
                        await self._grant(lease, until)
                ours, unused = unused, False  # the request may use it, unless the response says otherwise
                try:
                    response = await self._put(key, change, stored, after, lease.id, until)
                except StoreUnavailable as error:
                    unused = ours and not error.unknown
                    raise
                if response is None:
                    lease = None
                elif response.get("succeeded"):
                    lease.confirm(renewal, response)
                    if not await self._sessions.settle(lease, renewal, until):
                        raise StoreUnavailable("the lease of the value has ended; write it again", unknown=True)
                    return Cell(after.value, int(found(response, 1)[0]["version"]), after.fence, changed=True)
                else:
                    unused = ours
        finally:
            if unused and lease is not None:
                await self._revoke(lease)

    async def _read(self, key: str, until: float) -> Stored:
        reads = [ranged(only(f"{key}/value")), ranged(only(f"{key}/note"))]
        response = await self._gateway.call("/v3/kv/txn", txn([], reads), until)
        value, note = found(response, 0), found(response, 1)
        cell = Cell(unb64(value[0].get("value", "")), int(value[0]["version"])) if value else EMPTY
        if not note:  # with a value: an operator removed the note alone, and with it the fence
            return Stored(cell)
        fence, _, ttl = unb64(note[0].get("value", "")).partition(b" ")
        if not fence.isdigit() or not ttl.isdigit():
            raise StoreUnavailable(
                f"the key {key}/note of etcd has a value that is not ours; find out which program writes it"
            )
        cell = replace(cell, fence=int(fence))  # also without a value, if that was removed alone
        return Stored(cell, int(note[0]["mod_revision"]), int(note[0].get("lease", 0)), int(ttl))

    async def _put(
        self, key: str, change: Change, stored: Stored, after: Cell, lease: int, until: float
    ) -> Json | None:
        """Write unless another client was faster; return the response, None if the lease has ended."""
        note, value, ttl = f"{key}/note", f"{key}/value", whole(change.ttl)
        compare = [written(only(note), stored.noted) if stored.noted else absent(only(note))]
        if change.if_version is not None:
            compare.append(version_is(only(value), change.if_version))
        writes = [put(value, after.value or b"", lease), ranged(only(value), keys_only=True)]
        if (after.fence, ttl, lease) != (stored.cell.fence, stored.ttl, stored.lease):
            writes.append(put(note, b"%d %d" % (after.fence, ttl), lease))
        try:
            return await self._gateway.call("/v3/kv/txn", txn(compare, writes), until)
        except Refused:
            return None

    async def _grant(self, lease: Session, until: float) -> None:
        """Grant a lease; the request is repeated while there is time, as nothing depends on it so far."""
        while True:
            try:
                await self._gateway.call("/v3/lease/grant", {"TTL": str(lease.asked), "ID": str(lease.id)}, until)
            except Refused:
                pass  # it was granted by a request without an answer
            except StoreUnavailable as error:
                if error.unknown and self._runtime.now() + GRANT_PAUSE < until:
                    await self._runtime.sleep(GRANT_PAUSE)
                    continue
                error.unknown = False  # nothing was written
                raise
            return

    async def _revoke(self, lease: Session) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease.id)}, self._runtime.now() + REVOKE_WITHIN)
        except (Refused, StoreUnavailable):
            pass  # it ends by itself
