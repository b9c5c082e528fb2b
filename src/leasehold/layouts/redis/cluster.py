"""The store for locks in the format of another library on a Redis Cluster: a `LayoutStore` for each node.

All keys of a lock are in the slot of the lock's key, ours too: their braces have the part of that key that decides its
slot (`Layout.keys`). So the steps, redirections and waiters are those of `ClusterStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from leasehold._model import Cell, Change
from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.layouts.redis.layout import Layout, slot_tag
from leasehold.layouts.redis.store import LayoutStore
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.connection.base import MakeTransport
from leasehold.stores.redis.connection.settings import Settings


class ClusterLayoutStore(ClusterStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(
        self,
        runtime: Runtime,
        seeds: Sequence[Settings],
        namespace: str,
        *,
        layout: Layout,
        make: MakeTransport | None = None,
    ) -> None:
        """Make the store; ``make`` makes the transport to each node."""
        self.layout = layout
        super().__init__(runtime, seeds, namespace, make=make, open_node=partial(LayoutStore, layout=layout))
        self.capabilities = layout.capabilities

    def _slot(self, name: str) -> int:
        return keys.slot_of(b"{" + slot_tag(self.layout.lock_key(self._namespace, name)) + b"}")

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; leave out layout=, or use another store")

    def __repr__(self) -> str:
        return f"<ClusterLayoutStore {self.layout.name} {self._topology.where} namespace={self._namespace!r}>"
