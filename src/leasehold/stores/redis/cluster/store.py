"""The store on a Redis Cluster: one store of a single server for each node that has slots, and a map between them.

Theory of operation
-------------------
All keys of a name are in one slot, so all that happens to a name happens on one node, by the same scripts as on a
single server. Behind this store is a `RedisStore` for each primary, with connections, subscription and waiters of its
own: what befalls one node costs the names of the others nothing.

A node that does not have the slot (any more) says where it is (MOVED), or where these keys of it are already (ASK), or
that they are being moved just now (TRYAGAIN). None of these was carried out, so it is sent again there, or here a
moment later, until the caller's time is over. A slot on its way is spoken to through a second store of the node that it
goes to, whose every command says ASKING.

Who waits, waits in the store of one node. If the name moves, the next answer says so, the ticket is dropped there, and
whoever waits asks again; and the node where the name is now cannot find the channel among its own, and says over the
cluster's own connections to ask again. After a failover the connection is gone, with the same effect.

Renewals are sent to all nodes at once, one script for each slot, and each node is waited for on its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leasehold._model import Cell, Change, Finding, Granted, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.cluster.nodes import Nodes
from leasehold.stores.redis.cluster.topology import Address, SlotMap, Topology
from leasehold.stores.redis.connection.base import (
    MakeTransport,
    Redirected,
    ReplyError,
    RetryableError,
    SlotMigrating,
    refused,
)
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.doctor import cluster
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.strict import checks

FIRST_PAUSE = 0.02
"""Seconds before what was not carried out is asked again; each further pause is twice as long, with jitter."""

LONGEST_PAUSE = 0.5
"""Seconds: the end of a failover, or of the move of a slot, is noticed at most so much later than it could be."""

AT_ONCE = 2
"""Redirections that are followed without a pause."""

ROUNDS = 4
"""Attempts of one renewal, each where the one before was redirected to; what is left over is renewed at the next."""

T = TypeVar("T")


class ClusterStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = replace(RedisStore.capabilities, together=False)  # names of two slots are in no script together

    def __init__(
        self, runtime: Runtime, seeds: Sequence[Settings], namespace: str, *, make: MakeTransport | None = None
    ) -> None:
        """Make one; ``make`` makes the transport of each node, as of a model."""
        self._runtime = runtime
        self._namespace = namespace
        self._make = make or single_transport(runtime)
        self._topology = Topology(runtime, seeds, self._make)
        self._nodes = Nodes(runtime, self._topology, namespace, self._make)
        self._waits: dict[str, RedisStore] = {}
        self._seen: SlotMap | None = None
        if (strict := seeds[0].strict) is not None:
            self.capabilities = replace(self.capabilities, longest=strict.longest)

    # --- the six -----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        async def ask(store: RedisStore, left: float) -> Granted | Wait:
            if join:
                self._wait_in(store, ticket)
            return await store.try_acquire(name, ticket, join=join, within=left)

        try:
            answer = await self._at(name, within, ask)
        except BaseException:
            waits = self._waits.get(ticket.id)
            if waits is not None and not waits.knows(ticket):  # no node has heard of it, so nobody will leave for it
                self._waits.pop(ticket.id, None)
            raise
        if isinstance(answer, Granted):
            self._waits.pop(ticket.id, None)
        return answer

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        waited = self._waits.pop(ticket.id, None)
        if waited is not None:
            waited.drop(ticket)

        async def ask(store: RedisStore, left: float) -> bool:
            return await store.release(name, ticket, reason=reason, within=left)

        return await self._at(name, within, ask)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until = self._runtime.now() + within
        results: dict[str, RenewalResult] = {}
        places: Places = await self._places(tickets, within)
        for _ in range(ROUNDS):
            left = until - self._runtime.now()
            if not places or left <= 0:
                break
            asked = list(places.items())
            calls = [store.renewals(those, within=left, alone=alone) for (store, alone), those in asked]
            places = {}
            for ((store, alone), those), result in zip(asked, await self._runtime.gather(*calls), strict=True):
                if isinstance(result, BaseException):
                    self._topology.suspect((store.host, store.port))
                    continue
                found, refusals = result
                results.update(found)
                names = {ticket.id: name for name, ticket in those}
                for some, reply in refusals:
                    self._again(places, store, [(names[each.id], each) for each in some], reply, alone=alone)
        return [results.get(ticket.id, RenewalResult.UNKNOWN) for _, ticket in tickets]

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        store = self._waits.get(ticket.id)
        if store is None:
            return None
        granted = await store.wait(name, ticket, mark, timeout=timeout)
        if granted is not None:
            self._waits.pop(ticket.id, None)
        return granted

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        if exact:

            async def ask(store: RedisStore, left: float) -> list[View]:
                return await store.inspect(prefix, exact=True)

            return await self._at(prefix, 5.0, ask)
        found: dict[str, View] = {}
        for views in await self._everywhere(lambda store: store.inspect(prefix)):
            found.update({view.name: view for view in views})
        return [found[name] for name in sorted(found)]

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        async def ask(store: RedisStore, left: float) -> Cell:
            return await store.compare_and_set(name, change)

        return await self._at(name, 5.0, ask)

    # --- the rest ----------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        known = await self._look_again(cluster.WITHIN)
        strict = self._topology.settings(known.primaries[0]).strict
        found = await cluster.diagnose(self._runtime, self._make, self._topology, known, self._nodes.at)
        return found if strict is None else checks.adjusted(found, strict)

    async def close(self) -> None:
        await self._nodes.close()

    def after_fork(self) -> None:
        self._waits = {}
        self._topology.after_fork()
        self._nodes.after_fork()

    # --- where -------------------------------------------------------------------------------------------------

    async def _at(self, name: str, within: float, ask: Callable[[RedisStore, float], Awaitable[T]]) -> T:
        """Ask the node that has the name, wherever it is by then, until it was asked or the time is over."""
        slot, until = keys.slot(self._namespace, name), self._runtime.now() + within
        pause, followed = FIRST_PAUSE, 0
        asked: Address | None = None
        while True:
            left = max(until - self._runtime.now(), 0.001)
            try:
                store = await self._owner(slot, left) if asked is None else self._nodes.at(asked, asking=True)
                return await self._of(store, ask(store, max(until - self._runtime.now(), 0.001)))
            except RetryableError as error:
                if self._nodes.closed:
                    raise
                failed = error
            asked = self._follow(failed)
            followed = followed + 1 if isinstance(failed, Redirected) else AT_ONCE + 1
            if followed > AT_ONCE:
                seconds = pause * (0.5 + self._runtime.jitter() / 2)
                if self._runtime.now() + seconds >= until:
                    raise failed
                await self._runtime.sleep(seconds)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _follow(self, error: RetryableError) -> Address | None:
        """Take note of where a name is instead; return the node that is to be asked for this once."""
        if not isinstance(error, Redirected):
            return None
        if error.ask:
            return error.address
        self._topology.learn(error.slot, error.address)
        return None

    async def _of(self, store: RedisStore, answer: Awaitable[T]) -> T:
        """Wait for the answer of a node; one that gives none, or not as a primary does, is suspected from then on."""
        try:
            return await answer
        except (Redirected, SlotMigrating):
            raise
        except StoreUnavailable as error:
            if error.unknown or isinstance(error, RetryableError):
                self._topology.suspect((store.host, store.port))
            raise

    async def _owner(self, slot: int, within: float) -> RedisStore:
        """Return the store of the node that has a slot, as far as known."""
        if self._topology.suspected(self._topology.owner(slot)):
            await self._look_again(within)
        address = self._topology.owner(slot)
        if address is None:
            raise RetryableError(f"{self._topology.where}: no node serves slot {slot} now; look at CLUSTER NODES")
        return self._nodes.at(address)

    async def _look_again(self, within: float) -> SlotMap:
        known = await self._topology.fresh(within)
        if known is not self._seen:
            self._seen = known
            await self._nodes.prune(known, set(self._waits.values()))
        return known

    def _wait_in(self, store: RedisStore, ticket: Ticket) -> None:
        before = self._waits.get(ticket.id)
        self._waits[ticket.id] = store
        if before is not None and before is not store:
            before.drop(ticket)

    # --- renewing ----------------------------------------------------------------------------------------------

    async def _places(self, tickets: Sequence[tuple[str, Ticket]], within: float) -> Places:
        """Return where each ticket is to be renewed: where it waits, or where its name is."""
        places: Places = {}
        slots = {name: keys.slot(self._namespace, name) for name, _ in tickets}
        if any(self._topology.suspected(self._topology.owner(slot)) for slot in slots.values()):
            await self._look_again(within / 3)
        for name, ticket in tickets:
            store = self._waits.get(ticket.id)
            if store is None:
                address = self._topology.owner(slots[name])
                if address is None:
                    continue
                store = self._nodes.at(address)
            places.setdefault((store, False), []).append((name, ticket))
        return places

    def _again(
        self,
        places: Places,
        store: RedisStore,
        those: Sequence[tuple[str, Ticket]],
        reply: ReplyError,
        *,
        alone: bool,
    ) -> None:
        """Put down where tickets are to be renewed that one node refused to look at."""
        error = refused(store.where, reply, store.host)
        if not isinstance(error, RetryableError):
            return
        if not isinstance(error, Redirected | SlotMigrating):
            self._topology.suspect((store.host, store.port))
        holding: list[tuple[str, Ticket]] = []
        for name, ticket in those:
            if ticket.id not in self._waits:
                holding.append((name, ticket))
            elif isinstance(error, Redirected):  # whoever waits with it asks again, and is led to where the name is
                store.drop(ticket)
        if not holding:
            return
        if isinstance(error, Redirected) and not error.ask:
            self._topology.learn(error.slot, error.address)
            place = self._nodes.at(error.address), False
        elif not alone and reply.code in MOVING:
            place = store, True  # some of these are here, some are there: one by one each node can tell
        elif isinstance(error, Redirected):
            place = self._nodes.at(error.address, asking=True), True
        else:
            return
        places.setdefault(place, []).extend(holding)

    async def _everywhere(self, ask: Callable[[RedisStore], Coroutine[Any, Any, T]]) -> list[T]:
        """Ask all nodes that have slots, at once.

        Raises:
            StoreUnavailable: one does not answer.

        """
        known = await self._look_again(5.0)
        stores = [self._nodes.at(address) for address in known.primaries]
        results: list[T] = []
        for result in await self._runtime.gather(*[self._of(store, ask(store)) for store in stores]):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def __repr__(self) -> str:
        return f"<ClusterStore {self._topology.where} namespace={self._namespace!r}>"


MOVING = ("ASK", "TRYAGAIN")

Places = dict[tuple[RedisStore, bool], list[tuple[str, Ticket]]]
"""Which tickets to renew by the store of which node, and whether each by a command of its own."""
