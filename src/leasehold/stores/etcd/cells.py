"""Cells on etcd: two keys under one lease for the cell's life, the value and a note of its fence and its life.

The version of a cell is etcd's own count of writes to the value. A change reads the note, decides, and writes if the
note is still the same and the version is the one asked for; so writers without a fence do not hinder each other.

A lease is used again for the next write with the same life, renewed. One that a write with another life has replaced is
left to end by itself, and not revoked: another client may be about to write under it.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.errors import StoreUnavailable
from leasehold.model import Cell, Change
from leasehold.runtimes.base import Runtime
from leasehold.stores.cells import EMPTY, apply_change, check_size
from leasehold.stores.etcd.keys import Json, absent, found, only, put, ranged, txn, unb64, version_is, written
from leasehold.stores.etcd.sessions import whole
from leasehold.wires.etcd.faults import Meaning, Refused
from leasehold.wires.etcd.gateway import Gateway

WITHIN = 5.0
"""Seconds that one change may take."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A cell as it stands, and its note: the revision of that, its lease, and how long the lease was granted for."""

    cell: Cell = EMPTY
    noted: int = 0
    lease: int = 0
    life: int = 0


class Cells:
    """The cells of one namespace."""

    def __init__(self, runtime: Runtime, gateway: Gateway) -> None:
        self._runtime = runtime
        self._gateway = gateway

    async def change(self, key: str, change: Change) -> Cell:
        """Make a conditional change of the cell whose keys begin with ``key``, or look."""
        check_size(change)
        until = self._runtime.now() + WITHIN
        if change.value is None:
            return apply_change((await self._read(key, until)).cell, change)
        # A lease that was granted for nothing would live as long as the value: so it is not cancelled half-way.
        return await self._runtime.shield(self._write(key, change, until))

    async def _write(self, key: str, change: Change, until: float) -> Cell:
        lease, granted = 0, False
        try:
            while True:
                stored = await self._read(key, until)
                after = apply_change(stored.cell, change)
                if not after.changed:
                    return after
                if granted and stored.lease and stored.life == whole(change.life):
                    await self._revoke(lease)  # another made the cell meanwhile: all use one lease, or the note
                    lease, granted = 0, False  # would change with each write and hinder all others
                if not lease:
                    lease, granted = await self._lease(change, stored, until)
                version = await self._put(key, change, stored, after, lease, until)
                if version:
                    granted = False  # it has a use
                    return Cell(after.value, version, after.fence, changed=True)
                if version is None:
                    lease = 0
        except StoreUnavailable as error:
            granted = granted and not error.unknown
            raise
        finally:
            if granted and lease:
                await self._revoke(lease)

    async def _read(self, key: str, until: float) -> Stored:
        said = await self._ask(
            "/v3/kv/txn", txn([], [ranged(only(f"{key}/value")), ranged(only(f"{key}/note"))]), until
        )
        value, note = found(said, 0), found(said, 1)
        if not value or not note:
            return Stored(noted=int(note[0]["mod_revision"]) if note else 0)
        fence, _, life = unb64(note[0].get("value", "")).partition(b" ")
        if not fence.isdigit() or not life.isdigit():
            raise StoreUnavailable(f"the key {key}/note of etcd holds something else; look for who writes there")
        cell = Cell(unb64(value[0].get("value", "")), int(value[0]["version"]), int(fence))
        return Stored(cell, int(note[0]["mod_revision"]), int(note[0].get("lease", 0)), int(life))

    async def _put(self, key: str, change: Change, stored: Stored, after: Cell, lease: int, until: float) -> int | None:
        """Write; return the new version, 0 if somebody was faster, None if the lease has ended."""
        note, value, life = f"{key}/note", f"{key}/value", whole(change.life)
        compare = [written(only(note), stored.noted) if stored.noted else absent(only(note))]
        if change.if_version is not None:
            compare.append(version_is(only(value), change.if_version))
        writes = [put(value, after.value or b"", lease), ranged(only(value), keys_only=True)]
        if (after.fence, life, lease) != (stored.cell.fence, stored.life, stored.lease):
            writes.append(put(note, b"%d %d" % (after.fence, life), lease))
        try:
            said = await self._ask("/v3/kv/txn", txn(compare, writes), until)
        except Refused as refused:
            if refused.meaning is Meaning.LEASE:
                return None
            raise
        return int(found(said, 1)[0]["version"]) if said.get("succeeded") else 0

    async def _lease(self, change: Change, stored: Stored, until: float) -> tuple[int, bool]:
        """Return a lease that begins now, and whether it is a new one and not the cell's own."""
        life = whole(change.life)
        if stored.lease and stored.life == life:
            said = await self._ask("/v3/lease/keepalive", {"ID": str(stored.lease)}, until)
            if int(said.get("TTL", 0)) > 0:
                return stored.lease, False
        said = await self._ask("/v3/lease/grant", {"TTL": str(life)}, until)
        return int(said["ID"]), True

    async def _revoke(self, lease: int) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)}, within=1.0)
        except (Refused, StoreUnavailable):
            pass  # it ends by itself

    async def _ask(self, path: str, body: Json, until: float) -> Json:
        return await self._gateway.call(path, body, within=max(until - self._runtime.now(), 0.001))
