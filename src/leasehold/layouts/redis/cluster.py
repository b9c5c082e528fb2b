"""The store for locks in the format of another library on a Redis Cluster: a `LayoutStore` for each node.

All keys of a lock are in the slot of the lock's key, ours too: their braces have the part of that key that decides its
slot (`Layout.keys`). So the steps, redirections and waiters are those of `ClusterStore`.

Theory of operation, where the other library notifies
-----------------------------------------------------
A channel is in the slot of its lock, and its messages reach the nodes of that shard alone. So a waiter follows it
at the node that has answered its claim. That the slot is no longer at this node is detected by:

* The node, when it learns that another has the slot: at the end of a migration, or of a failover that it survives. It
  takes the subscription back by a push. All that follow the channel claim again, and that is redirected.
* The node, when it is asked to subscribe. It refuses, and the waiter claims again.
* The client, when the node dies: the connection ends, and all waiters there claim again.
* The watchdog, where nothing of that is seen: the node hangs, is cut off, or answers a renewal with a redirection. Each
  renewal of a waiter, at a third of its lease, goes to the node where it waits.

While a slot migrates, its keys may have left the node, which still has the slot. A release is then carried out at the
importing node, and notifies there, not here. But a claim of ours would be refused there, since the lock's
key does not exist. So it is enough that the waiter claims when the slot follows. If its watchdog is redirected before,
and all keys exist there, it waits there: the importing node allows it to follow the channel after ASKING.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from leasehold._model import RESPONSE_TIMEOUT, Cell, Change, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.layouts.redis.layout import Layout, slot_tag
from leasehold.layouts.redis.store import LayoutStore
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.nodes import Asking
from leasehold.stores.redis.cluster.store import ClusterStore
from leasehold.stores.redis.connection.base import MakeTransport
from leasehold.stores.redis.connection.settings import Settings


class NodeLayoutStore(LayoutStore):
    """The store of one node."""

    def _prepare(self, runtime: Runtime, layout: Layout, make: MakeTransport | None) -> MakeTransport | None:
        if not layout.topics:
            return super()._prepare(runtime, layout, make)
        made = super()._prepare(runtime, layout, None)
        if made is None or self._topics is None or not isinstance(make, Asking):
            return made
        self._topics.asking = True
        return Asking(made)

    def drop(self, ticket: Ticket) -> None:
        self._unfollow(ticket)  # first: once it is woken, it may claim again here, and follow its channel again
        super().drop(ticket)


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
        """Make the store; ``make`` makes the transport to each node, where the other library sends no messages."""
        self.layout = layout
        super().__init__(runtime, seeds, namespace, make=make, open_node=partial(NodeLayoutStore, layout=layout))
        self.capabilities = layout.capabilities

    def _slot(self, name: str) -> int:
        return keys.slot_of(b"{" + slot_tag(self.layout.lock_key(self._namespace, name)) + b"}")

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; leave out layout=, or use another store")

    def __repr__(self) -> str:
        return f"<ClusterLayoutStore {self.layout.name} {self._topology.where} namespace={self._namespace!r}>"
