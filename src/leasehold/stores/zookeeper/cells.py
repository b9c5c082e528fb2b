"""Cells: one node each. Its version is the node's data version; the server's clock decides when it expires.

The node's data is a line of JSON (``fence``, ``ttl`` in seconds), followed by the value. An expired cell counts as
missing, and its versions start again with the next write; ``base`` in the data says at which version of the node. That
is a write of the same node, on the condition of its version. A new node would have a version that the old one had: of
two clients that found the cell expired, both could write.

Only a sweep removes nodes, and what follows may be a new node with a version that the old one had. So each sweep also
writes the node above the cells, in the same transaction. The version of that is the *epoch*: whoever changes a node
reads the epoch before it, and changes the node only if the epoch is still the same. However late such a request
arrives, it does not meet another node than the one that was read. The node above the cells is therefore not a
container: the server would remove that after its last child, and the epochs would begin again.

Each `SWEEP_EVERY`-th write also removes other expired cells. It checks more cells than were written since the last
time, so expired ones do not pile up. The first check of a client comes at random, as many programs write only a few
cells.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace

from leasehold._model import Cell, Change
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.cells import EMPTY, apply_change, check_size
from leasehold.stores._common.drivers import Answer
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.requests import Node, names_in
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.nodes import Paths
from leasehold.stores.zookeeper.queue_nodes import QueueNodes

CLOCK_FOR = 10.0
"""Seconds for which a reading of the server's clock is used."""

QUICK = 0.5
"""Seconds that such a reading may take; one that took longer is used once, as the time since may be as wrong."""

SWEEP_EVERY = 20
SWEPT = 40
"""Cells checked in one sweep, in three round trips: twice as many as were written."""

SWEEP_TRIES = 3
"""How often a sweep looks again, if a cell was written or others were removed since it looked."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cell, and its node if there is one.

    Attributes:
        over: whether it has expired.
        base: version of the node at which the cell began, or the next one does if it has expired.
        epoch: version of the node above, read before this one.
    """

    cell: Cell
    node: Node | None = None
    over: bool = False
    base: int = 0
    epoch: int = 0


class Cells:
    """The cells of one namespace."""

    def __init__(self, transport: Transport, queue_nodes: QueueNodes, paths: Paths, runtime: Runtime) -> None:
        self._transport = transport
        self._queue_nodes = queue_nodes
        self._paths = paths
        self._runtime = runtime
        self._locks = KeyedLock(runtime, "ZooKeeper: too many writers of one cell in this client")
        self._ahead = 0.0  # the server's clock minus ours
        self._asked: float | None = None
        self._writes = int(runtime.jitter() * SWEEP_EVERY)
        self._swept: int | None = None  # where the next sweep begins; the first one does anywhere

    async def change(self, name: str, change: Change, until: float) -> Cell:
        """Change a cell if its version and its fence allow, or read it."""
        path = self._paths.cell(name)
        if change.value is None:
            return apply_change((await self._read(path, until)).cell, change)
        check_size(change)
        async with self._locks.hold(path, until):
            while True:
                found = await self._read_to_write(path, until)
                after = apply_change(found.cell, change)
                if not after.changed:
                    return after
                if await self._write(path, found, after, change.ttl, until):
                    break
        self._writes += 1
        if self._writes % SWEEP_EVERY == 0:
            with suppress(StoreUnavailable):  # the cell is written
                await self._sweep(until)
        return after

    async def changed(self, name: str, version: int, until: float) -> None:
        """Sleep until the cell may have another version; an expiry alone does not end the sleep."""
        path, wake_up, wake_ups = self._paths.cell(name), self._runtime.signal(), self._queue_nodes.wake_ups
        wake_ups.expect(path, wake_up)
        try:
            await self._transport.ask_all((self._transport.exists(path, wake_ups.changed),), until)
            if (await self._read(path, until)).cell.version == version:
                await wake_up.wait(max(0.0, until - self._runtime.now()))
        finally:
            wake_ups.forget(wake_up)

    async def _read(self, path: str, until: float) -> Found:
        _, node = await self._transport.ask_all((self._transport.sync(path), self._transport.get(path)), until)
        if isinstance(node, NoNode):
            return Found(EMPTY)
        return _found(node, await self._server_now(until))

    async def _read_to_write(self, path: str, until: float) -> Found:
        transport, cells = self._transport, self._paths.cells
        _, above, node = await transport.ask_all(
            (transport.sync(path), transport.get(cells), transport.get(path)), until
        )
        if isinstance(node, NoNode):
            return Found(EMPTY)
        epoch = above.version if isinstance(above, Node) else 0  # it was made since, and nothing was swept
        return replace(_found(node, await self._server_now(until)), epoch=epoch)

    async def _write(self, path: str, found: Found, after: Cell, ttl: float, until: float) -> bool:
        """Write; return False if another client was faster."""
        transport = self._transport
        fields = {"fence": after.fence, "ttl": ttl} | ({"base": found.base} if found.base else {})
        data = json.dumps(fields).encode() + b"\n" + (after.value or b"")
        if found.node is None:
            request = transport.create(path, data, 0)
        else:
            request = transport.all_or_none(
                transport.check(self._paths.cells, found.epoch), transport.set(path, data, found.node.version)
            )
        (done,) = await transport.ask_all((request,), until)
        if isinstance(done, NoNode) and found.node is None:
            await self._queue_nodes.make_parents(self._paths.cells, until, lasting=True)
        return not isinstance(done, Answer)

    async def _server_now(self, until: float) -> float:
        """Return the server's clock in seconds."""
        sent = self._runtime.now()
        if self._asked is None or sent - self._asked > CLOCK_FOR:
            read, now = await self._read_clock(until), self._runtime.now()
            # Counted from the answer: a cell that expired early would be written anew, though others still see it.
            self._ahead, self._asked = read - now, sent if now - sent <= QUICK else None
            return read
        return self._runtime.now() + self._ahead

    async def _read_clock(self, until: float) -> float:
        """Make, write and remove a node in one transaction: no node is left, even if no answer comes."""
        transport, clock = self._transport, self._paths.clock
        path = f"{clock}/now-{self._runtime.random_bytes(8).hex()}"
        steps = transport.create_in_transaction(path, b"", 0), transport.set(path, b""), transport.delete(path)
        made = await self._queue_nodes.make_in(clock, transport.all_or_none(*steps), until)
        return float(made[1].mtime / 1000)

    async def _sweep(self, until: float) -> None:
        """Remove some expired cells."""
        transport, cells = self._transport, self._paths.cells
        (children,) = await transport.ask_all((transport.children(cells),), until)
        names = sorted(names_in(children))
        start = int(self._runtime.jitter() * len(names)) if self._swept is None else self._swept % max(1, len(names))
        self._swept = start + SWEPT
        now = await self._server_now(until)
        chosen = [f"{cells}/{name}" for name in (names[start:] + names[:start])[:SWEPT]]
        for _ in range(SWEEP_TRIES):
            _, above, *nodes = await transport.ask_all(
                (transport.sync(cells), transport.get(cells), *map(transport.get, chosen)), until
            )
            over = [node for node in nodes if isinstance(node, Node) and _is_over(node, now)]
            if not over or not isinstance(above, Node):
                return
            removals = [transport.delete(node.path, node.version) for node in over]
            sweep = transport.all_or_none(transport.set(cells, b"", above.version), *removals)
            (done,) = await transport.ask_all((sweep,), until)
            if not isinstance(done, Answer):
                return


def _found(node: Node, now: float) -> Found:
    """Return the cell of a node at that time by the server's clock."""
    head, _, value = node.data.partition(b"\n")
    try:
        fields = json.loads(head)
        ttl, fence, base = float(fields["ttl"]), int(fields["fence"]), int(fields.get("base", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        what = f"the node {node.path} of ZooKeeper has data that are not ours; find out which program writes it"
        raise StoreUnavailable(what) from None
    if node.changed_ms / 1000 + ttl <= now:
        return Found(EMPTY, node, over=True, base=node.version + 1)
    return Found(Cell(value, node.version - base + 1, fence), node, base=base)


def _is_over(node: Node, now: float) -> bool:
    """Return whether a node is an expired cell; one that cannot be read is of another program, and stays."""
    try:
        return _found(node, now).over
    except StoreUnavailable:
        return False
