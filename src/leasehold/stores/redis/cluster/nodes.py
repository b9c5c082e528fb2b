"""The stores of a cluster's nodes: each is made when first needed, and closed when its node has no slots any more.

A store subscribes to a channel of its shard, and the marker of strict mode is a key. So both are in a slot. Their names
are chosen here, by the slot map, so that the node has that slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from leasehold._model import View, ticket_id
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.unanswered import Unanswered
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster import migrating
from leasehold.stores.redis.cluster.topology import Address, SlotMap, Topology
from leasehold.stores.redis.connection.base import (
    ASKING,
    MakeTransport,
    OnMessage,
    OnSilence,
    Redirected,
    ReplyError,
    Transport,
    refused,
)
from leasehold.stores.redis.store import RedisStore

HOPS = 4
"""Most nodes that are asked for one key: the slot may move on meanwhile."""


class Nodes:
    """The nodes of one client. Used by many threads or tasks at once."""

    def __init__(
        self,
        runtime: Runtime,
        topology: Topology,
        namespace: str,
        make: MakeTransport,
        open_node: Callable[..., RedisStore] = RedisStore,
    ) -> None:
        self._runtime = runtime
        self._topology = topology
        self._namespace = namespace
        self._make = make
        self._open_node = open_node
        self._mutex = runtime.mutex()
        self._make_asking = Asking(make)
        self._stores: dict[tuple[Address, bool], RedisStore] = {}
        self._ending: list[RedisStore] = []  # of nodes without slots: still to be closed
        self._markers: dict[Address, int] = {}
        self._unanswered = Unanswered()  # shared: a slot may move between a claim and its release
        self._client = ticket_id(runtime.random_bytes(16))
        self.closed = False
        """Whether the client is closed: then no store is made any more."""

    def at(self, address: Address, *, asking: bool = False) -> RedisStore:
        """Return the store of a node; with ``asking`` the one that sends ASKING, to a node that imports a slot.

        Raises:
            StoreUnavailable: the client is closed.
        """
        found = self._stores.get((address, asking))
        if found is not None:
            return found
        with self._mutex:
            if self.closed:  # nothing would close the connections of a new store
                raise StoreUnavailable(f"{self._topology.where}: the client is closed")
            found = self._stores.get((address, asking))
            if found is None:
                found = self._stores[address, asking] = self._open_node(
                    self._runtime,
                    self._topology.settings(address),
                    self._namespace,
                    make=self._make_asking if asking else self._make,
                    choose_channel=partial(self._choose_channel, address),
                    slot_of=partial(keys.slot, self._namespace),
                    marker=partial(self._marker, address),
                    unanswered=self._unanswered,
                )
                found.calls.moving = partial(self._view, address)
        return found

    def asks(self, store: RedisStore) -> bool:
        """Return whether a store is one that sends ASKING."""
        return self._stores.get((store.address, True)) is store

    async def prune(self, known: SlotMap, waiting: Collection[RedisStore]) -> None:
        """Close the stores of nodes that have no slots any more; waiters there retry at other nodes.

        A store that sends ASKING is closed when it has no waiters: it is not in ``waiting``.
        """
        serving = {*known.primaries, *self._topology.named}
        with self._mutex:
            gone = [
                where
                for where, store in self._stores.items()
                if (where[0] not in serving if not where[1] else store not in waiting)
            ]
            for where in gone:
                self._ending.append(self._stores[where])  # first: what ends this caller must not leave it open
                del self._stores[where]
            stores = [*self._ending]
        for store in stores:
            store.wake_all()
        for store in stores:
            await store.close()
            with self._mutex:
                if store in self._ending:  # else another caller has closed it, too
                    self._ending.remove(store)

    async def close(self) -> None:
        self.closed = True
        with self._mutex:
            stores = [*self._stores.values(), *self._ending]
        for store in stores:
            await store.close()

    def after_fork(self) -> None:
        """Drop all connections in a forked child."""
        self.closed = False
        self._mutex = self._runtime.mutex()
        self._client = ticket_id(self._runtime.random_bytes(16))
        for store in (*self._stores.values(), *self._ending):
            store.after_fork()

    async def _view(self, address: Address, name: str, within: float) -> View:
        """Look at a name whose slot is migrating, from a node on that has some of its keys, or had them."""
        until = self._runtime.now() + within

        async def read(command: bytes, where: Address = address, *, asking: bool = False, hops: int = HOPS) -> Any:
            store = self.at(where, asking=asking)
            reply = await store.transport.call(command, within=max(until - self._runtime.now(), 0.001))
            if not isinstance(reply, ReplyError):
                return reply
            error = refused(store.where, reply, where[0])
            if not isinstance(error, Redirected) or hops == 1:
                raise error
            if not error.ask:
                self._topology.learn(error.slot, error.address)
            return await read(command, error.address, asking=error.ask, hops=hops - 1)

        return await migrating.view(read, self._namespace, name)

    def _choose_channel(self, address: Address, moved: Redirected | None) -> bytes:
        """Return a channel for the waiters at one node, in one of its slots; ``moved``: where the last one moved."""
        if moved is not None:
            self._topology.learn(moved.slot, moved.address)
        known = self._topology.map
        if known is not None and address in known.replicas:
            number = keys.number_where(
                lambda number: (
                    self._topology.owner(keys.slot_of(keys.shard_channel(self._namespace, self._client, number)))
                    == address
                )
            )
            if number is not None:
                return keys.shard_channel(self._namespace, self._client, number)
        return keys.channel(self._namespace, self._client)

    def _marker(self, address: Address, another: bool) -> bytes:
        """Return the key of strict mode's marker in the first slot of a node, or, if ``another``, in the next."""
        first = self._markers.get(address, 0)
        number = keys.number_where(
            lambda number: self._topology.owner(keys.slot_of(keys.marker_key(self._namespace, str(number)))) == address,
            first + 1 if another else first,
        )
        self._markers[address] = number or 0
        return keys.marker_key(self._namespace, str(number or 0))


class AskingTransport:
    """The transport to a node that is importing a slot: it sends ``ASKING`` before each command.

    All other methods are those of the wrapped transport: a subscription belongs to no slot.
    """

    ask = None  # that of the wrapped transport would send a command without ASKING

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self.call_all([command], within=within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        asked = [part for command in commands for part in (ASKING, command)]
        replies = await self._transport.call_all(asked, within=within)
        pairs = zip(replies[::2], replies[1::2], strict=True)
        return [permission if isinstance(permission, ReplyError) else reply for permission, reply in pairs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@dataclass(frozen=True, slots=True)
class Asking:
    """Makes transports to nodes that are importing a slot."""

    make: MakeTransport

    def __call__(
        self, runtime: Runtime, settings: Any, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport:
        """See `MakeTransport`."""
        return cast(Transport, AskingTransport(self.make(runtime, settings, channel, on_message, on_silence)))
