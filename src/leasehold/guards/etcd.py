"""A fence for what is kept in etcd: writes that etcd itself makes only while the lock is held.

Theory of operation
-------------------
The lock is a key of etcd, made by one revision, which is the hold's token; that key cannot be made at that revision
again. So a transaction that compares the key's revision with the token, and then writes, writes only if the lock was
held at that very moment: no clock, no lease and no pause matters. It is the check that etcd's own documentation asks
for, since a lock alone protects nothing.

`comparison` is for transactions of your own; `EtcdGuard` and `AsyncEtcdGuard` send the simple ones. Those are also made
at most once, in order: see ``stores/etcd/guarded.py``.

Example:
    ```python
    from leasehold import Client
    from leasehold.guards.etcd import EtcdGuard

    with Client.from_url("etcd://localhost:2379") as locks:
        with locks.lock("stock:42") as hold:
            EtcdGuard(hold).put("stock/42", b"17")  # LeaseLost if another may have the lock by now
    ```
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from leasehold._engine.engine import Engine
from leasehold._model import Kind
from leasehold._runtimes.base import run_sync
from leasehold.errors import LeaseLost, NotHeld, StoreUnavailable
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.stores.etcd.guarded import GuardedWrites
from leasehold.stores.etcd.keys import Json, b64, created, deleted, found, only, written
from leasehold.stores.etcd.store import EtcdStore


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison that makes a transaction fail once the lock is not held.

    Attributes:
        key: the lock's key.
        revision: what its revision must be: the hold's token.
        target: which revision: ``CREATE`` for a lock, as Go's ``Mutex.IsOwner`` compares; ``MOD`` for a shared one.
    """

    key: str
    revision: int
    target: str

    def json(self) -> Json:
        """Return it as a member of ``compare`` in a transaction of the HTTP/JSON gateway."""
        where = only(self.key)
        return created(where, self.revision) if self.target == "CREATE" else written(where, self.revision)

    def holds(self, kvs: list[Json]) -> bool:
        """Return whether it was true when these keys were read."""
        field = "create_revision" if self.target == "CREATE" else "mod_revision"
        return [int(kv[field]) for kv in kvs] == [self.revision]


def comparison(hold: Hold | AsyncHold) -> Comparison:
    """Return the comparison for a transaction of your own.

    Raises:
        TypeError: it is not a hold of one lock on etcd.
        LeaseLost: it was lost.
        NotHeld: it was released.
    """
    return _guard(hold)[0]


def _guard(hold: Hold | AsyncHold) -> tuple[Comparison, GuardedWrites]:
    core = _core(hold)
    store, leases = core._engine.store, core._leases()
    if not isinstance(store, EtcdStore) or len(leases) != 1:
        raise TypeError(f"only a hold of one lock on etcd can be compared there, not {hold!r}")
    core.raise_if_lost()
    guard = store.guard_of(leases[0].ticket.id)
    if guard is None:
        raise leases[0].error()
    key, kind, writes = guard
    return Comparison(key, core.token, "CREATE" if kind is Kind.MUTEX else "MOD"), writes


class AsyncEtcdGuard:
    """Writes to your keys in the same etcd that are made only while the lock is held.

    Args:
        hold: of a lock of an `AsyncClient`.
    """

    def __init__(self, hold: AsyncHold) -> None:
        self._hold = hold
        self._compare, self._writes = _guard(hold)

    @property
    def comparison(self) -> Comparison:
        """The comparison that each write contains."""
        return self._compare

    async def put(self, key: str | bytes, value: bytes, *, lease: int = 0) -> int:
        """Write a key; return the revision at which it was written.

        Args:
            key: any.
            value: what to set it to.
            lease: the ID of your own lease in etcd, with which the key ends; 0 for none.

        Raises:
            LeaseLost: the lock was not held any more; nothing was written, nor will be.
            StoreUnavailable: no response; with ``unknown`` it may have been written, or may be until your next write
                under this hold.
        """
        put = {"key": b64(key), "value": b64(value), "lease": str(lease)}
        return await self._send({"request_put": put})

    async def delete(self, key: str | bytes) -> int:
        """Delete a key, if it is there; return the revision after that. Errors as `put`."""
        return await self._send(deleted({"key": b64(key)}))

    async def _send(self, operation: Json) -> int:
        engine: Engine = self._hold._engine
        engine.ready()
        store = engine.store
        assert isinstance(store, EtcdStore)  # `comparison` has checked it
        runtime, writes, held = engine.runtime, self._writes, self._compare.json()
        until = runtime.now() + engine.response_timeout
        async with writes.turn(until):
            number = writes.begin()
            while True:
                body = writes.body(number, held, operation)

                def ask(within: float, body: Json = body) -> Coroutine[Any, Any, Json]:
                    return store.send("/v3/kv/txn", body, within=within)

                response, repeated = await engine.repeat(ask, until - runtime.now())
                if revision := writes.revision(number, response):
                    return revision
                if not self._compare.holds(found(response, 0)):
                    if repeated and not found(response, 1):  # it ended with the lock's lease
                        raise self._unknown() from self._refused()
                    raise self._refused()
                # An earlier write, whose response did not come, was made meanwhile: now the count is known.

    def _unknown(self) -> StoreUnavailable:
        what = f"a guarded write had no response, and then the lock {self._hold.name!r} was lost: it may have been made"
        return StoreUnavailable(what, name=self._hold.name, unknown=True)

    def _refused(self) -> LeaseLost | NotHeld:
        try:
            self._hold.raise_if_lost()
        except (LeaseLost, NotHeld) as error:
            return error
        return LeaseLost(
            f"the write was refused: the lock {self._hold.name!r} is not held any more (expired, broken or deleted)",
            name=self._hold.name,
            owner=self._hold.owner,
            token=self._hold.token,
        )


class EtcdGuard:
    """Writes to your keys in the same etcd that are made only while the lock is held. See `AsyncEtcdGuard`."""

    def __init__(self, hold: Hold) -> None:
        self._core = AsyncEtcdGuard(_core(hold))

    @property
    def comparison(self) -> Comparison:
        """The comparison that each write contains."""
        return self._core.comparison

    def put(self, key: str | bytes, value: bytes, *, lease: int = 0) -> int:
        """Write a key; return the revision at which it was written. As `AsyncEtcdGuard.put`."""
        return run_sync(self._core.put(key, value, lease=lease))

    def delete(self, key: str | bytes) -> int:
        """Delete a key, if it is there; return the revision after that. As `AsyncEtcdGuard.delete`."""
        return run_sync(self._core.delete(key))


def _core(hold: Hold | AsyncHold) -> AsyncHold:
    core = hold if isinstance(hold, AsyncHold) else getattr(hold, "_core", None)
    if not isinstance(core, AsyncHold):
        raise TypeError(f"a guard is made of a hold, not of {type(hold).__name__}")
    return core
