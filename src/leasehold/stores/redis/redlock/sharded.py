"""The transport to a cluster that is one node of a Redlock: each command goes to the shard that has its keys.

Theory of operation
-------------------
Behind it is one transport of a single server for each primary. The first key of a script says which slot it is for, the
map of the cluster which primary has that. What was certainly not carried out there (another has the slot, the server is
no primary any more) is sent to where it belongs, at once and a few times at most: a Redlock goes on without this node.

Commands for several shards are sent to all of them at once, and one shard that gives no answer takes none from the
commands of another.

A client listens at one primary for all names: what is published anywhere in a cluster is passed on to all its nodes.
What a node remembers of its own votes (docs/backends/redlock.md, quarantine) it keeps in a key of a slot of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.ask_redirect import AskingTransport
from leasehold.stores.redis.cluster.routing import RoutedPipelining, first_key
from leasehold.stores.redis.cluster.topology import Address, SlotMap, Topology
from leasehold.stores.redis.connection.base import (
    DEMOTED,
    OnMessage,
    OnSilence,
    Redirected,
    ReplyError,
    RetryableError,
    Subscriber,
    Transport,
    pack,
    refused,
)
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.sentinel.primary_tracking import GENERATIONS
from leasehold.stores.redis.strict.strict import NOT_LOCAL

ROUNDS = 4
"""Times that a command is sent, each to where the answer before led; the last answer counts."""

SILENT = "SILENT"
"""The code of what stands for the answer of a shard that gave none, where others did."""


class ShardedTransport:
    """See `leasehold.stores.redis.connection.base.Transport`. It asks for the map at the first call."""

    def __init__(
        self,
        runtime: Runtime,
        seeds: Sequence[Settings],
        namespace: str,
        channel: bytes,
        on_message: OnMessage,
        on_silence: OnSilence,
    ) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self._channel = channel
        self._on_message = on_message
        self._on_silence = on_silence
        self._topology = Topology(runtime, seeds, single_transport(runtime))
        self._mutex = runtime.mutex()
        self._transports: dict[tuple[Address, bool], Transport] = {}
        self._seen: SlotMap | None = None
        self._listens_at: Address | None = None
        self._generation = 0
        self._memories: dict[Address, int] = {}
        self._closed = False

    # --- what a node of a Redlock asks ---------------------------------------------------------------------------

    async def identity(self, within: float) -> str:
        """Return what no other cluster has: the least of its nodes' ids; empty if it does not say."""
        reply = await (await self._any(within)).call(pack(b"CLUSTER", b"SLOTS"), within=within)
        if isinstance(reply, ReplyError):
            return ""
        return min((bytes(node[2]).decode() for _, _, *nodes in reply for node in nodes if len(node) > 2), default="")

    def memory(self, name: str) -> bytes:
        """Return the key in which the primary that has ``name`` keeps what it remembers of its own votes."""
        owner = self._topology.owner(keys.slot(self._namespace, name))
        if owner is None:
            return keys.memory_key(self._namespace, "0")
        number = keys.number_where(
            lambda number: self._topology.owner(keys.slot_of(keys.memory_key(self._namespace, str(number)))) == owner,
            self._memories.get(owner, 0),
        )
        self._memories[owner] = number or 0
        return keys.memory_key(self._namespace, str(number or 0))

    async def shards(self, within: float) -> Sequence[Transport]:
        """Return the transport of each primary.

        Raises:
            StoreUnavailable: no node tells which they are.

        """
        return [self._transport(address) for address in (await self._fresh(within)).primaries]

    def pipelining(self) -> RoutedPipelining:
        """Return what asks the shard that has a script's keys without waiting, as long as it is known which."""
        return RoutedPipelining(self._runtime, self._known, self._served, self._lost_one)

    # --- the transport
    # --------------------------------------------------------------------------------------------------

    async def call(self, command: bytes, *, within: float) -> Any:
        (reply,) = await self.call_all([command], within=within)
        return reply

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        until = self._runtime.now() + within
        replies: list[Any] = [None] * len(commands)
        asking: dict[int, Address] = {}
        todo = list(range(len(commands)))
        for last in (*[False] * (ROUNDS - 1), True):
            places = dict[tuple[Address, bool], list[int]]()
            for index in todo:
                asked = asking.get(index)
                address = asked or await self._owner(commands[index], max(until - self._runtime.now(), 0.001))
                places.setdefault((address, asked is not None), []).append(index)
            left = max(until - self._runtime.now(), 0.001)
            those = list(places.items())
            calls = [
                self._transport(*place).call_all([commands[one] for one in some], within=left) for place, some in those
            ]
            results = await self._together(calls)
            todo = list[int]()
            for ((address, _), some), result in zip(those, results, strict=True):
                found = self._answers(address, some, result, alone=len(some) == len(commands))
                for index, reply in zip(some, found, strict=True):
                    replies[index] = reply
                    if not last and self._again(address, index, reply, asking):
                        todo.append(index)
            if not todo:
                break
        return replies

    async def listen(self, within: float) -> int:
        at = self._listens_at
        if at is None or self._topology.suspected(at):
            at = await self._sit_down(within)
        try:
            return self._numbered(await self._transport(at).listen(within))
        except StoreUnavailable:
            self._listens_at = None
            raise

    def generation(self) -> int:
        at = self._listens_at
        return 0 if at is None else self._numbered(self._transport(at).generation())

    async def receive(self, subscriber: Subscriber, timeout: float) -> None:
        if (at := self._listens_at) is not None:
            await self._transport(at).receive(subscriber, timeout)

    def notify(self, subscriber: Subscriber) -> None:
        subscriber.set()
        if (at := self._listens_at) is not None:
            self._transport(at).notify(subscriber)

    def has_unread(self) -> bool:
        at = self._listens_at
        return at is not None and self._transport(at).has_unread()

    def hang_up(self) -> None:
        for transport in self._all():
            transport.hang_up()

    def set_channel(self, channel: bytes) -> None:
        self._channel = channel
        for transport in self._all():
            transport.set_channel(channel)

    def facts(self) -> dict[str, str]:
        told = [transport.facts() for transport in self._all()]
        return max(told, key=len) if told else {}

    async def close(self) -> None:
        self._closed = True
        for transport in self._all():
            await transport.close()

    def after_fork(self, channel: bytes) -> None:
        self._channel = channel
        self._mutex = self._runtime.mutex()
        self._listens_at, self._closed = None, False
        self._topology.after_fork()
        for transport in self._all():
            transport.after_fork(channel)

    # --- inside ----------------------------------------------------------------------------------------------------

    async def _together(self, calls: Sequence[Coroutine[Any, Any, list[Any]]]) -> Sequence[Any]:
        """Ask all at once; return the answers of each, or why there are none. To ask one takes no other thread."""
        if len(calls) > 1:
            return await self._runtime.gather(*calls)
        try:
            return [await calls[0]]
        except StoreUnavailable as error:
            return [error]

    def _answers(self, address: Address, asked: Sequence[int], result: Any, *, alone: bool) -> Sequence[Any]:
        """Return the answers of one shard; if it gave none, that is no reason to drop those of others."""
        if not isinstance(result, BaseException):
            return list(result)
        if not isinstance(result, StoreUnavailable):
            raise result
        self._topology.suspect(address)
        if alone:
            raise result
        # An error that is in no table counts as unknown; so does this, but where nothing was sent.
        return [ReplyError(f"{SILENT if result.unknown else 'TRYAGAIN'} {result}")] * len(asked)

    def _again(self, address: Address, index: int, reply: Any, asking: dict[int, Address]) -> bool:
        """Say whether a command is to be sent once more, somewhere else; see where."""
        asking.pop(index, None)
        if not isinstance(reply, ReplyError):
            return False
        if NOT_LOCAL in str(reply):  # the slot of what this primary remembers has moved: another key from now on
            self._memories[address] = self._memories.get(address, 0) + 1
            reply.args = (f"TRYAGAIN {reply}",)
            return False
        error = refused("", reply, address[0])
        if isinstance(error, Redirected):
            if error.ask:
                asking[index] = error.address
            else:
                self._topology.learn(error.slot, error.address)
            return True
        if reply.code in DEMOTED:
            self._transport(address).hang_up()
            self._topology.suspect(address)
            return True
        return False

    async def _owner(self, command: bytes, within: float) -> Address:
        key = first_key(command)
        if key is None:
            return (await self._fresh(within)).primaries[0]
        slot = keys.slot_of(key)
        if self._topology.suspected(self._topology.owner(slot)):
            await self._fresh(within)
        address = self._topology.owner(slot)
        if address is None:
            raise RetryableError(f"{self._topology.where}: no node serves slot {slot} now; look at CLUSTER NODES")
        return address

    def _known(self, command: bytes) -> Transport | None:
        key = first_key(command)
        address = None if key is None or self._closed else self._topology.owner(keys.slot_of(key))
        return None if address is None or self._topology.suspected(address) else self._transport(address)

    def _served(self) -> list[Transport]:
        with self._mutex:
            return [transport for (_, asking), transport in self._transports.items() if not asking]

    def _lost_one(self, transport: Transport) -> None:
        with self._mutex:
            found = [address for (address, _), one in self._transports.items() if one is transport]
        for address in found:
            self._topology.suspect(address)

    async def _any(self, within: float) -> Transport:
        return self._transport((await self._fresh(within)).primaries[0])

    async def _fresh(self, within: float) -> SlotMap:
        known = await self._topology.fresh(within)
        if known is not self._seen:
            self._seen = known
            with self._mutex:
                gone = [
                    place
                    for place in self._transports
                    if place[0] not in known.replicas and place[0] != self._listens_at
                ]
                left = [self._transports.pop(place) for place in gone]
            for transport in left:
                await transport.close()
        return known

    async def _sit_down(self, within: float) -> Address:
        """Choose where to listen."""
        known, before = await self._fresh(within), self._listens_at
        fit = [address for address in known.primaries if not self._topology.suspected(address)] or known.primaries
        at = fit[int(self._runtime.jitter() * len(fit)) % len(fit)]
        if before is not None and before != at:
            self._transport(before).hang_up()
        if at != before:
            self._generation += 1
            self._listens_at = at
        return at

    def _numbered(self, generation: int) -> int:
        return self._generation * GENERATIONS + generation if generation else 0

    def _transport(self, address: Address, asking: bool = False) -> Transport:
        found = self._transports.get((address, asking))
        if found is not None:
            return found
        with self._mutex:
            if self._closed:  # nobody would close the connections of another
                raise StoreUnavailable(f"{self._topology.where}: the client is closed")
            found = self._transports.get((address, asking))
            if found is None:
                settings = self._topology.settings(address)
                made = single_transport(self._runtime)(
                    self._runtime, settings, self._channel, self._on_message, self._on_silence
                )
                found = self._transports[address, asking] = AskingTransport(made) if asking else made
        return found

    def _all(self) -> Sequence[Transport]:
        with self._mutex:
            return list(self._transports.values())
