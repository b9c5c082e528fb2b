"""Random sequences of claims, requests and lost sessions on a real ZooKeeper and on its model."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from model_pairs.zookeeper import TIMEOUT, WITHIN, Alike, BothTransports
from model_sequences import Steps, chance

from leasehold._model import Change, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores._common.drivers import Answer
from leasehold.stores.zookeeper.connection.requests import (
    CONTAINER,
    EPHEMERAL,
    SEQUENCE,
    Request,
)
from leasehold.stores.zookeeper.connection.session import LinkEvent, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Mark, Paths, stem
from leasehold.stores.zookeeper.store import ZooKeeperStore
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine
from leasehold_lab.servers import ZooKeeperServer
from models.zookeeper.ensemble import Ensemble

LENGTH = 30
CLIENTS = 3
NAMES = ("a", "b")

SETTLED = 0.1
"""Virtual seconds in which all has arrived."""

BETWEEN = 0.3
"""How often another client comes before a request of a claim."""

RULES = (
    LockMode(),
    LockMode(Kind.READ_WRITE),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2),
    LockMode(Kind.SEMAPHORE, permits=2, limit=3),
)
OWNER = Owner("host", 1, "x")


@dataclass(eq=False)
class Party:
    """A client, and its transports."""

    store: ZooKeeperStore
    transports: BothTransports


@dataclass(eq=False)
class Playing:
    """One random sequence."""

    harness: SimulatedHarness
    server: ZooKeeperServer
    seed: int
    alike: Alike = field(default_factory=Alike)
    log: list[str] = field(default_factory=list[str])
    seen: Counter[str] = field(default_factory=Counter[str])
    tickets: list[tuple[int, str, Ticket]] = field(default_factory=list[tuple[int, str, Ticket]])
    difference: AssertionError | None = None
    claiming: int | None = None
    asking: bool = False

    def __post_init__(self) -> None:
        self.ensemble = Ensemble(self.harness.scheduler, ("z0",))
        self.namespace = f"model-{secrets.token_hex(4)}"
        self.paths = Paths("", self.namespace)
        self.chance = chance(self.seed, -1)
        self.made = 0
        self.parties = [self.party() for _ in range(CLIENTS)]

    def party(self) -> Party:
        """Make a client."""
        self.made += 1
        runtime, made = SimulatedRuntime(self.harness.scheduler, Machine(f"c{self.made}")), list[BothTransports]()

        def make(hear: Callable[[LinkEvent], None]) -> Transport:
            made.append(BothTransports(self, runtime, hear))
            return made[0]  # type: ignore[return-value]

        settings = Settings((("127.0.0.1", self.server.port),), session_timeout=TIMEOUT)
        return Party(ZooKeeperStore(runtime, self.namespace, settings, "", make), made[0])

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Keep others from asking, so that both servers are asked in the same order."""
        while self.asking:
            await self.harness.sleep(0.001)
        self.asking = True
        try:
            yield
        finally:
            self.asking = False

    # --- comparing ---------------------------------------------------------------------------------------------

    def compare(self, requests: Sequence[Request], real: Any, modelled: Any) -> None:
        """Compare what was answered to some requests."""
        for side in (real, modelled):
            if isinstance(side, list):
                side[:] = map(_sorted, side)
        self.log += [f"    {_shown(request.form)}" for request in requests]
        self.log.append(f"    -> {_brief(real)}")
        self.seen.update(type(request.form).__name__ for request in requests)
        some = modelled if isinstance(modelled, list) else [modelled]
        self.seen.update(type(one).__name__ for one in some if isinstance(one, Exception))
        if not self.alike.both(real, modelled):
            self.differ(f"the model says {_brief(modelled)}")

    def differ(self, what: str) -> None:
        """Report a difference; a caller that catches the error does not hide it."""
        self.difference = AssertionError("\n".join([*self.log, what]))
        raise self.difference

    async def hears(self) -> None:
        """Compare whose watches rang."""
        await self.harness.sleep(SETTLED)
        for number, party in enumerate(self.parties):
            party.transports.heard()
            real, modelled = map(sorted, party.transports.rung)
            if real != modelled:
                self.differ(f"{number} heard {real}, of the model {modelled}")
            self.seen.update("rings" for _ in real)
            for rung in party.transports.rung:
                rung.clear()

    # --- steps -------------------------------------------------------------------------------------------------

    async def play(self, steps: Steps) -> None:
        """Play some of its steps."""
        try:
            for party in self.parties:
                await party.transports.ready(self.harness.now() + WITHIN)
            for number in steps:
                self.chance = chance(self.seed, number)
                self.log.append(f"-- {number}")
                await self.step()
                await self.hears()
            if not self.alike.in_order():
                self.differ("writes came in another order")
        finally:
            for party in self.parties:
                await party.store.close()

    async def step(self) -> None:
        """Do something."""
        do = self.chance.choice(STEPS)
        self.log[-1] += f" {do.__name__}"
        self.seen[do.__name__] += 1
        try:
            await do(self)
        except (StoreUnavailable, NameInUse) as error:
            self.seen[type(error).__name__] += 1
        if self.difference is not None:
            raise self.difference

    async def between(self) -> None:
        """Let another client come before a request of a claim, sometimes."""
        assert self.claiming is not None
        transports = self.parties[self.claiming].transports
        before, transports.before = transports.before, None
        try:
            if self.chance.random() < BETWEEN:
                self.log.append("  between:")
                await self.chance.choice((Playing.leaves, Playing.claims, Playing.asks))(self)
        except (StoreUnavailable, NameInUse):
            pass
        finally:
            transports.before = before

    def some_client(self) -> int:
        """Return a client that is not in the midst of a claim."""
        return self.chance.choice([number for number in range(CLIENTS) if number != self.claiming])

    def known(self) -> list[tuple[int, str, Ticket]]:
        """Return the tickets of those clients."""
        return [one for one in self.tickets if one[0] != self.claiming]

    async def claims(self) -> None:
        """Claim with a new ticket, or with one that waits or holds."""
        known = self.known()
        if known and self.chance.random() < 0.5:
            number, name, ticket = self.chance.choice(known)
        else:
            number, name = self.some_client(), self.chance.choice(NAMES)
            mode = self.chance.choice(RULES) if name == "a" else RULES[0]
            mine = [one.id for client, _, one in self.tickets if client == number]
            alongside = self.chance.choice(["", "", *mine]) if mode.kind is Kind.READ_WRITE else ""
            ticket = Ticket(ticket_id(self.chance.randbytes(16)), LeaseTerms(mode, OWNER, 60.0), alongside)
            self.tickets.append((number, name, ticket))
        party, join = self.parties[number], self.chance.random() < 0.7
        claim = party.store.try_acquire(name, ticket, join=join, within=WITHIN)
        if self.claiming is not None:
            await claim
            return
        self.claiming, party.transports.before = number, self.between
        party.transports.lost = self.chance.random() < 0.15
        try:
            await claim
        finally:
            self.claiming, party.transports.before, party.transports.lost = None, None, False

    async def leaves(self) -> None:
        """Leave, or break a ticket of another client."""
        if known := self.known():
            number, name, ticket = self.chance.choice(known)
            if self.chance.random() < 0.2:
                number = self.some_client()
            await self.parties[number].store.release(name, ticket, reason=ReleaseReason.RELEASE, within=WITHIN)

    async def renews(self) -> None:
        """Renew some tickets of a client."""
        number = self.some_client()
        mine = [(name, ticket) for client, name, ticket in self.tickets if client == number]
        await self.parties[number].store.renew(self.chance.sample(mine, min(len(mine), 3)), within=WITHIN)

    async def looks(self) -> None:
        """Show who is there."""
        await self.parties[0].store.inspect(self.chance.choice(("", "a")), exact=self.chance.random() < 0.3)

    async def changes_a_cell(self) -> None:
        """Write a cell, or look at it."""
        value = self.chance.choice((None, b"v", b"\x00\xff"))
        version, fence = self.chance.choice((None, None, 0, 1, 2)), self.chance.choice((None, 7, 9))
        await self.parties[self.some_client()].store.compare_and_set("cell", Change(value, version, fence, 60.0))

    async def asks(self) -> None:
        """Make requests of all kinds on nodes that are there or not, with any version."""
        transports = self.parties[self.some_client()].transports
        below = [path for path in self.ensemble.tree.nodes if path.startswith(f"{self.paths.space}/")]
        folder = self.chance.choice([self.paths.lock(name) for name in NAMES] + [f"{self.paths.lock('a')}/{LEASES}"])
        one, other = self.chance.choice([*below, folder]), self.chance.choice([f"{folder}/other", *below, folder])
        contender = f"{folder}/{stem(ticket_id(self.chance.randbytes(16)), self.chance.choice(list(Mark)))}"
        version = self.chance.choice((-1, -1, 0, 1, 2))
        flags = self.chance.choice((0, EPHEMERAL, SEQUENCE, EPHEMERAL | SEQUENCE))
        ring = self.rings
        some = [
            transports.get(one, ring),
            transports.get(other),
            transports.exists(other, ring),
            transports.exists(contender, ring),
            transports.children(one, ring),
            transports.listing(folder),
            transports.set(one, b"%d" % version, version),
            transports.delete(other, version),
            transports.create(other, b"", flags),
            transports.create(f"{one}/below", b"x", self.chance.choice((0, CONTAINER))),
            transports.create(folder, b"", CONTAINER),
            transports.create(f"{folder}/{LOCKS}", b"", CONTAINER),
            transports.create(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.sync(one),
        ]
        parts = [
            transports.check(one),
            transports.check(other),
            transports.check(one, version),
            transports.delete(one, version),
            transports.delete(other),
            transports.set(other, b"z", version),
            transports.set(one, b"z"),
            transports.create_in_transaction(one, b"again", 0),
            transports.create_in_transaction(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.create_in_transaction(contender, b"y", EPHEMERAL | SEQUENCE),
            transports.create_in_transaction(f"{folder}/other", b"", 0),
        ]
        asked = self.chance.sample(some, 4)
        asked.insert(
            self.chance.randrange(5), transports.all_or_none(*self.chance.sample(parts, self.chance.randint(1, 3)))
        )
        for request in asked if self.chance.random() < 0.5 else []:
            await transports.ask_all([request], self.harness.now() + WITHIN)
        await transports.ask_all(asked, self.harness.now() + WITHIN)

    @staticmethod
    def rings(event: Any) -> None:
        """Be told of a change."""

    async def ends(self) -> None:
        """Close a client, and open another in its place."""
        number = self.some_client()
        await self.hears()
        await self.parties[number].store.close()
        self.tickets = [one for one in self.tickets if one[0] != number]
        self.parties[number] = self.party()
        await self.parties[number].transports.ready(self.harness.now() + WITHIN)

    async def expires(self) -> None:
        """Let the server end the session of a client, which begins another."""
        number = self.some_client()
        await self.hears()
        self.parties[number].transports.expire()
        await self.harness.sleep(5.0)
        await self.parties[number].transports.ready(self.harness.now() + WITHIN)


STEPS: list[Callable[[Playing], Awaitable[None]]] = [Playing.claims] * 8 + [Playing.leaves] * 3 + [Playing.asks] * 5
STEPS += [Playing.renews, Playing.looks, Playing.changes_a_cell, Playing.changes_a_cell]
STEPS += [Playing.ends, Playing.expires]


def _sorted(answer: Any) -> Any:
    """Return lists of names in order: a server tells them in any."""
    if isinstance(answer, tuple):
        return tuple(map(_sorted, answer))
    names = isinstance(answer, list) and all(isinstance(one, str) and "/" not in one for one in answer)
    return sorted(answer) if names else answer


def _shown(form: Any) -> str:
    if type(form).__name__ == "Transaction":
        return f"all or none: {', '.join(map(_shown, form.operations))}"
    words = {name: value for name, value in form._asdict().items() if name not in ("acl", "watcher")}
    watches = " watches" if getattr(form, "watcher", None) else ""
    return f"{type(form).__name__}{watches} {' '.join(map(str, words.values()))}"


def _brief(answer: Any) -> str:
    if isinstance(answer, list):
        return f"[{', '.join(map(_brief, answer))}]"
    return type(answer).__name__ if isinstance(answer, Answer) else repr(answer)
