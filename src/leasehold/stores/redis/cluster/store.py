"""The store on a Redis Cluster: a store of one server for each node that has slots, and a slot map.

Theory of operation
-------------------
All keys of a name are in one slot, so all steps on a name happen on one node, with the scripts of a single server. This
store has a `RedisStore` for each primary, each with its own connections, subscription and waiters. So a failed node
does not affect the names of the others.

A node without the slot replies where it is (MOVED), where these keys of it are already (ASK), or that they are being
moved (TRYAGAIN). After none of these was the command carried out. So it is sent again there, or here a moment later,
within the caller's time. A migrating slot is reached through a second store of the importing node, which sends ASKING
before each command.

A waiter waits in the store of one node. If the name moves, the next reply says so, the ticket is dropped there, and the
waiter retries. The node that has the name now has no subscriber on the waiter's channel. It publishes, over the
cluster's own connections, that the waiter must retry. After a failover the connection is closed, with the same effect.

Renewals are sent to all nodes at once, one script for each slot. A slow node does not delay the others' results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leasehold._model import Cell, Change, Finding, Granted, ReleaseReason, RenewalResult, Ticket, View, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import RESPONSE_TIMEOUT
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
from leasehold.stores.redis.connection.failover import Retries
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.store import RedisStore

AT_ONCE = 2
"""Redirections followed without a pause."""

ROUNDS = 4
"""Attempts of one renewal, each at the node named by the last redirection; the rest follows at the next renewal."""

T = TypeVar("T")


class ClusterStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = replace(RedisStore.capabilities, batches=False)  # no script has names of two slots

    def __init__(
        self,
        runtime: Runtime,
        seeds: Sequence[Settings],
        namespace: str,
        *,
        make: MakeTransport | None = None,
        open_node: Callable[..., RedisStore] = RedisStore,
    ) -> None:
        """Make the store; ``make`` makes the transport to each node, and ``open_node`` its store."""
        self._runtime = runtime
        self._namespace = namespace
        self._make = make or single_transport(runtime)
        self._topology = Topology(runtime, seeds, self._make, self._refresh)
        self._nodes = Nodes(runtime, self._topology, namespace, self._make, open_node)
        self._waits: dict[str, RedisStore] = {}
        self._seen: SlotMap | None = None
        if (strict := seeds[0].strict) is not None:
            self.capabilities = replace(self.capabilities, longest=strict.longest)

    # --- the store protocol -------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        async def ask(store: RedisStore, left: float) -> Granted | Wait:
            if join:
                self._wait_in(store, ticket)
            return await store.try_acquire(name, ticket, join=join, within=left)

        before = self._waits.get(ticket.id)
        if before is not None and not before.transport.generation():  # its node may hang, and the name be elsewhere
            self._topology.suspect(before.address)
        try:
            answer = await self._at(name, within, ask, first=self._importing(ticket))
        except BaseException:
            waits = self._waits.get(ticket.id)
            if waits is not None and not waits.knows(ticket):  # no node knows the ticket, so nothing will release it
                self._waits.pop(ticket.id, None)
            raise
        if isinstance(answer, Granted):
            self._waits.pop(ticket.id, None)
        return answer

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        waited = self._waits.pop(ticket.id, None)
        if waited is not None:
            waited.drop(ticket)
        return await self._at(name, within, lambda store, left: store.release(name, ticket, reason=reason, within=left))

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        until, results = self._runtime.now() + within, dict[str, RenewalResult]()
        failures = await self._renew(await self._places(tickets, within), until, results, ROUNDS)
        if not results:
            for failure in failures:
                if isinstance(failure, StoreUnavailable):
                    raise failure
        return [results.get(ticket.id, RenewalResult.UNKNOWN) for _, ticket in tickets]

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        store = self._waits.get(ticket.id)
        if store is None:
            return None
        granted = await store.wait(name, ticket, mark, timeout=timeout)
        if granted is not None:
            self._waits.pop(ticket.id, None)
        return granted

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        if exact:
            return await self._at(prefix, within, lambda store, left: store.inspect(prefix, exact=True, within=left))
        found: dict[str, View] = {}
        for views in await self._everywhere(lambda store, left: store.inspect(prefix, within=left), within):
            found.update({view.name: view for view in views})
        return [found[name] for name in sorted(found)]

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        return await self._at(name, within, lambda store, left: store.compare_and_set(name, change, within=left))

    # --- around the protocol ------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.redis.doctor import cluster
        from leasehold.stores.redis.doctor.strict import adjusted

        known = await self._refresh(cluster.WITHIN)
        strict = self._topology.settings(known.primaries[0]).strict
        found = await cluster.diagnose(self._runtime, self._make, self._topology, known, self._nodes.at)
        return found if strict is None else adjusted(found, strict)

    async def close(self) -> None:
        await self._nodes.close()
        await self._topology.close()

    def after_fork(self) -> None:
        self._waits = {}
        self._topology.after_fork()
        self._nodes.after_fork()

    # --- finding the node ---------------------------------------------------------------------------------------------

    def _slot(self, name: str) -> int:
        return keys.slot(self._namespace, name)

    async def _at(
        self,
        name: str,
        within: float,
        ask: Callable[[RedisStore, float], Awaitable[T]],
        first: RedisStore | None = None,
    ) -> T:
        """Ask the node that has the name, wherever it is by then, until it replies or the time is over.

        ``first``: where to begin.
        """
        slot, until = self._slot(name), self._runtime.now() + within
        redirections, retries = 0, None
        asked: Address | None = None
        while True:
            left = max(until - self._runtime.now(), 0.001)
            try:
                store, first = first, None
                if store is None:
                    store = await self._owner(slot, left) if asked is None else self._nodes.at(asked, asking=True)
                return await self._of(store, ask(store, max(until - self._runtime.now(), 0.001)))
            except RetryableError as error:
                if self._nodes.closed:
                    raise
                failed = error
            asked = self._follow(failed)
            redirections = redirections + 1 if isinstance(failed, Redirected) else AT_ONCE + 1
            if redirections > AT_ONCE:
                retries = retries or Retries(self._runtime, until)
                if not await retries.pause():
                    raise failed

    def _follow(self, error: RetryableError) -> Address | None:
        """Learn where a name is instead; after an ASK return the node for the next attempt."""
        if not isinstance(error, Redirected):
            return None
        if error.ask:
            return error.address
        self._topology.learn(error.slot, error.address)
        return None

    async def _of(self, store: RedisStore, answer: Awaitable[T]) -> T:
        """Wait for a node's reply; a node without a reply, or not a primary, is suspected from then on."""
        try:
            return await answer
        except (Redirected, SlotMigrating):
            raise
        except StoreUnavailable as error:
            if error.unknown or isinstance(error, RetryableError):
                self._topology.suspect(store.address)
            raise

    async def _owner(self, slot: int, within: float) -> RedisStore:
        """Return the store of the node that has a slot, as far as known."""
        if self._topology.doubtful(slot):
            await self._refresh(within)
        address = self._topology.owner(slot)
        if address is None:
            raise RetryableError(f"{self._topology.where}: no node serves slot {slot} now; look at CLUSTER NODES")
        return self._nodes.at(address)

    async def _refresh(self, within: float) -> SlotMap:
        known = await self._topology.fresh(within)
        if known is not self._seen:
            self._seen = known
            await self._nodes.prune(known, set(self._waits.values()))
        return known

    def _importing(self, ticket: Ticket) -> RedisStore | None:
        """Return the store where a ticket waits at a node that imports its slot; the slot's owner would lead there.

        On its way there the ticket would be dropped, and its subscription ended, whose renewal lets it claim again.
        """
        store = self._waits.get(ticket.id)
        there = store is not None and self._nodes.asks(store) and not self._topology.suspected(store.address)
        return store if there else None

    def _wait_in(self, store: RedisStore, ticket: Ticket) -> None:
        before = self._waits.get(ticket.id)
        self._waits[ticket.id] = store
        if before is not None and before is not store:
            before.drop(ticket)

    # --- renewing ---------------------------------------------------------------------------------------------

    async def _places(self, tickets: Sequence[tuple[str, Ticket]], within: float) -> Places:
        """Return where each ticket is renewed: where it waits, or where its name is."""
        places: Places = {}
        slots = {name: self._slot(name) for name, _ in tickets}
        if any(map(self._topology.doubtful, slots.values())):
            await self._refresh(within / 3)
        for name, ticket in tickets:
            store, address = self._waits.get(ticket.id), self._topology.owner(slots[name])
            if store is None:
                if address is None:
                    continue
                store = self._nodes.at(address)
            elif address not in (None, store.address) and not self._nodes.asks(store):
                store.drop(ticket)  # a node that is cut off, or hangs, cannot redirect it: the waiter retries elsewhere
                continue
            places.setdefault((store, False), []).append((name, ticket))
        return places

    async def _renew(
        self, places: Places, until: float, results: dict[str, RenewalResult], rounds: int
    ) -> list[BaseException]:
        """Renew at all nodes at once, and then where each redirects: one that hangs delays only its own names."""
        left = until - self._runtime.now()
        if not rounds or left <= 0:
            return []

        async def at(store: RedisStore, alone: bool, pairs: Sequence[tuple[str, Ticket]]) -> list[BaseException]:
            found, refusals = await store.renewals(pairs, within=left, alone=alone)
            results.update(found)
            names = {ticket.id: name for name, ticket in pairs}
            more: Places = {}
            for some, reply in refusals:
                self._again(more, store, [(names[each.id], each) for each in some], reply, alone=alone)
            return await self._renew(more, until, results, rounds - 1) if more else []

        failures: list[BaseException] = []
        work = [at(*place, pairs) for place, pairs in places.items()]
        for (store, _), outcome in zip(places, await self._runtime.gather(*work), strict=True):
            if isinstance(outcome, BaseException):
                self._topology.suspect(store.address)
                failures.append(outcome)
            else:
                failures += outcome
        return failures

    def _again(
        self,
        places: Places,
        store: RedisStore,
        pairs: Sequence[tuple[str, Ticket]],
        reply: ReplyError,
        *,
        alone: bool,
    ) -> None:
        """Add to ``places`` the next node for the tickets that one node refused to renew."""
        error = refused(store.where, reply, store.address[0])
        if not isinstance(error, RetryableError):
            return
        if not isinstance(error, Redirected | SlotMigrating):
            self._topology.suspect(store.address)
        holding: list[tuple[str, Ticket]] = []
        for name, ticket in pairs:
            if ticket.id not in self._waits:
                holding.append((name, ticket))
            elif isinstance(error, Redirected):  # the waiter retries, and is redirected to the node of the name
                store.drop(ticket)
        if not holding:
            return
        if isinstance(error, Redirected) and not error.ask:
            self._topology.learn(error.slot, error.address)
            place = self._nodes.at(error.address), False
        elif not alone and reply.code in MOVING:
            place = store, True  # some keys are here, some there: one by one each node can reply
        elif isinstance(error, Redirected):
            place = self._nodes.at(error.address, asking=True), True
        else:
            return
        places.setdefault(place, []).extend(holding)

    async def _everywhere(self, ask: Callable[[RedisStore, float], Coroutine[Any, Any, T]], within: float) -> list[T]:
        """Call all nodes that have slots, at once.

        Raises:
            StoreUnavailable: one does not reply.
        """
        until = self._runtime.now() + within
        known = await self._refresh(within)
        stores, left = [self._nodes.at(address) for address in known.primaries], max(until - self._runtime.now(), 0.001)
        results: list[T] = []
        for result in await self._runtime.gather(*[self._of(store, ask(store, left)) for store in stores]):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def __repr__(self) -> str:
        return f"<ClusterStore {self._topology.where} namespace={self._namespace!r}>"


MOVING = ("ASK", "TRYAGAIN")

Places = dict[tuple[RedisStore, bool], list[tuple[str, Ticket]]]
"""Which tickets to renew by which node's store, and whether each by a command of its own."""
