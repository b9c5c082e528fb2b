"""Cells on etcd: two keys under one lease for the cell's life, the value and a note of its fence and its life.

The version of a cell is etcd's own count of writes to the value. A change reads the note, decides, and writes if the
note is still the same and the version is the one asked for; so writers without a fence do not hinder each other.

A lease is used again for the next write with the same life, renewed; the write confirms the keep-alive, or another one
follows (``confirming.py``). A lease that a write with another life has replaced is
left to end by itself, and not revoked: another client may be about to write under it.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._model import Cell, Change
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.cells import EMPTY, apply_change, check_size
from leasehold.stores.etcd.confirming import KeepAlive, keep_alive, through_log
from leasehold.stores.etcd.connection.errors import Meaning, Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.keys import Json, Keys, absent, found, only, put, ranged, txn, unb64, version_is, written
from leasehold.stores.etcd.sessions import whole

WITHIN = 5.0
"""Seconds that one change may take."""

ATTEMPTS = 3
"""How often the lease of a value that was written is renewed until that is confirmed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A cell as it stands, and its note: the revision of that, its lease, and how long the lease was granted for."""

    cell: Cell = EMPTY
    noted: int = 0
    lease: int = 0
    ttl: int = 0


class Cells:
    """The cells of one namespace."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys

    async def change(self, key: str, change: Change) -> Cell:
        """Make a conditional change of the cell whose keys begin with ``key``, or look."""
        check_size(change)
        until = self._runtime.now() + WITHIN
        if change.value is None:
            return apply_change((await self._read(key, until)).cell, change)
        # A lease that was granted for nothing would live as long as the value: so it is not cancelled half-way.
        return await self._runtime.shield(self._write(key, change, until))

    async def _write(self, key: str, change: Change, until: float) -> Cell:
        lease, granted, kept = 0, False, None
        try:
            while True:
                stored = await self._read(key, until)
                after = apply_change(stored.cell, change)
                if not after.changed:
                    return after
                if granted and stored.lease and stored.ttl == whole(change.ttl):
                    await self._revoke(lease)  # another made the cell meanwhile: all use one lease, or the note
                    lease, granted = 0, False  # would change with each write and hinder all others
                if not lease:
                    lease, granted, kept = await self._lease(change, stored, until)
                said = await self._put(key, change, stored, after, lease, until)
                if said is None:
                    lease = 0
                elif said.get("succeeded"):
                    granted = False  # it has a use
                    if kept is not None and not kept.is_confirmed_by(said):
                        await self._renew(lease, until)
                    return Cell(after.value, int(found(said, 1)[0]["version"]), after.fence, changed=True)
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
        fence, _, ttl = unb64(note[0].get("value", "")).partition(b" ")
        if not fence.isdigit() or not ttl.isdigit():
            raise StoreUnavailable(f"the key {key}/note of etcd holds something else; look for who writes there")
        cell = Cell(unb64(value[0].get("value", "")), int(value[0]["version"]), int(fence))
        return Stored(cell, int(note[0]["mod_revision"]), int(note[0].get("lease", 0)), int(ttl))

    async def _put(
        self, key: str, change: Change, stored: Stored, after: Cell, lease: int, until: float
    ) -> Json | None:
        """Write unless somebody was faster; return the answer, None if the lease has ended."""
        note, value, ttl = f"{key}/note", f"{key}/value", whole(change.ttl)
        compare = [written(only(note), stored.noted) if stored.noted else absent(only(note))]
        if change.if_version is not None:
            compare.append(version_is(only(value), change.if_version))
        writes = [put(value, after.value or b"", lease), ranged(only(value), keys_only=True)]
        if (after.fence, ttl, lease) != (stored.cell.fence, stored.ttl, stored.lease):
            writes.append(put(note, b"%d %d" % (after.fence, ttl), lease))
        try:
            return await self._ask("/v3/kv/txn", txn(compare, writes), until)
        except Refused as refused:
            if refused.meaning is Meaning.LEASE:
                return None
            raise

    async def _lease(self, change: Change, stored: Stored, until: float) -> tuple[int, bool, KeepAlive | None]:
        """Return a lease that begins now, whether it is a new one, and what is to be confirmed if it is the cell's."""
        ttl = whole(change.ttl)
        if stored.lease and stored.ttl == ttl:
            kept = await keep_alive(self._runtime, self._gateway, stored.lease, until)
            if kept.length:
                return stored.lease, False, kept
        said = await self._ask("/v3/lease/grant", {"TTL": str(ttl)}, until)
        return int(said["ID"]), True, None

    async def _renew(self, lease: int, until: float) -> None:
        """Renew the lease of a value that was written, for its keep-alive may have come from a leader of the past."""
        for _ in range(ATTEMPTS):
            kept = await keep_alive(self._runtime, self._gateway, lease, until)
            if kept.length and kept.is_confirmed_by(await self._ask("/v3/kv/txn", through_log(self._keys), until)):
                return
        raise StoreUnavailable("etcd changes its leader, so the value may not live as long as it should", unknown=True)

    async def _revoke(self, lease: int) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)}, within=1.0)
        except (Refused, StoreUnavailable):
            pass  # it ends by itself

    async def _ask(self, path: str, body: Json, until: float) -> Json:
        return await self._gateway.call(path, body, within=max(until - self._runtime.now(), 0.001))
