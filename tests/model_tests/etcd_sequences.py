"""Random sequences of what clients of the etcd store, operators and the network do, on a server and on its model.

The requests are those of the shipped store: several clients of it claim, leave, renew, look and write cells, over a
gateway that sends each of their requests to both. Answers are lost on their way, requests arrive late, and other
clients come between the requests of one claim. Beside them go transactions of all sorts that the store makes with
revisions of now and before, watches from old revisions, compactions, and leases that an operator ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from model_pairs.etcd import WITHIN, Both, Heard
from model_sequences import Steps, chance

from leasehold._model import Change, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import NameInUse, StoreUnavailable
from leasehold.stores.etcd import keys
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Request
from leasehold.stores.etcd.keys import Keys
from leasehold.stores.etcd.store import EtcdStore
from leasehold_lab.servers import EtcdServer

CLIENTS = 3
NAMES = ("a", "b")
LARGE = (2**53, 2**53 + 1, 2**64, 10**20)  # fences that a double, or 64 bits, cannot tell apart or hold

BETWEEN = 0.3
"""How often another client comes before a request of a claim."""

RULES = (
    LockMode(),
    LockMode(Kind.READ_WRITE, fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False, fair=True),
    LockMode(Kind.READ_WRITE, exclusive=False),
    LockMode(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2),
    LockMode(Kind.SEMAPHORE, permits=1, limit=2, fair=True),
)
OWNER = Owner("host", 1, "x")


class Playing:
    """One random sequence."""

    def __init__(self, server: EtcdServer, seed: int) -> None:
        self.seed = seed
        self.server = server
        self.both = Both(BlockingRuntime(), server, seed)
        settings = Settings("both", (self.both.place,))
        namespace = f"model-{seed}"
        self.keys = Keys.of(settings, namespace)
        self.clients = [EtcdStore(BlockingRuntime(), settings, namespace, self.both) for _ in range(CLIENTS)]
        self.tickets = list[tuple[EtcdStore, str, Ticket]]()
        self.watches = list[Heard]()
        self.opened = 0
        self.claiming: EtcdStore | None = None
        self.chance = chance(seed, -1)

    def play(self, steps: Steps) -> Counter[str]:
        """Play some of its steps."""
        try:
            for number in steps:
                self.chance = chance(self.seed, number)
                self.both.log.append(f"-- {number}")
                self.step()
            self.hears()
        finally:
            self.close()
        return self.both.seen

    def step(self) -> None:
        """Do something."""
        try:
            self.chance.choice(STEPS)(self)
        except (StoreUnavailable, NameInUse) as error:
            self.both.seen[type(error).__name__] += 1
        if self.both.difference is not None:
            raise self.both.difference

    def between(self) -> None:
        """Let another client come before a request of a claim, sometimes."""
        self.both.before = lambda: None
        try:
            if self.chance.random() < BETWEEN:
                self.chance.choice((Playing.leaves, Playing.claims, Playing.asks))(self)
        except (StoreUnavailable, NameInUse):
            pass
        finally:
            self.both.before = self.between

    # --- what clients do ---------------------------------------------------------------------------------------

    def ready(self) -> list[EtcdStore]:
        """Return the clients that are not in the midst of a claim."""
        return [client for client in self.clients if client is not self.claiming]

    def known(self) -> list[tuple[EtcdStore, str, Ticket]]:
        """Return the tickets of those clients, and what they claim."""
        return [one for one in self.tickets if one[0] is not self.claiming]

    def claims(self) -> None:
        """Claim with a new ticket, or with one that waits or holds."""
        known = self.known()
        if known and self.chance.random() < 0.5:
            client, name, ticket = self.chance.choice(known)
        else:
            client, name = self.chance.choice(self.ready()), self.chance.choice(NAMES)
            alongside = self.chance.choice(["", "", *(one.id for _, _, one in self.tickets)])
            terms = LeaseTerms(
                self.mode(name), OWNER, self.chance.choice((60.0, 90.0)), fixed=self.chance.random() < 0.2
            )
            ticket = Ticket(f"t{len(self.tickets)}", terms, alongside if terms.mode.kind is Kind.READ_WRITE else "")
            self.tickets.append((client, name, ticket))
        join = self.chance.random() < 0.7
        if self.claiming is not None:
            finish(client.try_acquire(name, ticket, join=join, within=WITHIN))
            return
        self.claiming, self.both.before = client, self.between
        self.both.fate = self.chance.choice((None, None, None, None, "lost", "late"))
        try:
            finish(client.try_acquire(name, ticket, join=join, within=WITHIN))
        finally:
            self.claiming, self.both.before, self.both.fate = None, lambda: None, None

    def mode(self, name: str) -> LockMode:
        """Return what a name is used as, as a rule."""
        return self.chance.choice(RULES if name == "a" else RULES[:1])

    def leaves(self) -> None:
        """Leave, or break a ticket of another client."""
        if known := self.known():
            client, name, ticket = self.chance.choice(known)
            if self.chance.random() < 0.2:
                client = self.chance.choice(self.ready())
            finish(client.release(name, ticket, reason=ReleaseReason.RELEASE, within=WITHIN))

    def renews(self) -> None:
        """Renew some tickets of a client."""
        client = self.chance.choice(self.clients)
        mine = [(name, ticket) for store, name, ticket in self.tickets if store is client]
        some = self.chance.sample(mine, min(len(mine), 3))
        finish(client.renew(some, within=WITHIN))

    def looks(self) -> None:
        """Show who is there."""
        finish(self.clients[0].inspect(self.chance.choice(("", "a")), exact=self.chance.random() < 0.3))

    def changes_a_cell(self) -> None:
        """Write a cell, or look at it."""
        value = self.chance.choice((None, b"v", b"\x00\xff"))
        version, fence = self.chance.choice((None, None, 0, 1, 2)), self.chance.choice((None, 7, 9, *LARGE))
        change = Change(value, version, fence, self.chance.choice((60.0, 90.0)))
        finish(self.chance.choice(self.clients).compare_and_set("cell", change))

    def arrives(self) -> None:
        """Let a request arrive that its client has given up."""
        if self.both.late:
            self.both.both(self.both.late.pop(0))
            self.both.seen["arrives late"] += 1

    # --- what others do ----------------------------------------------------------------------------------------

    def asks(self) -> None:
        """Make a transaction of the kinds that there are, with any revision and any lease."""
        name = self.chance.choice(NAMES)
        line = keys.span(self.keys.queue(name))
        others = [self.keys.queue(name) + "0-other", self.keys.marks(name) + "0-other", self.keys.tombstone("0-other")]
        there = [key.decode() for key in self.both.model.pairs if key.startswith(self.keys.queue(name).encode())]
        one, other = self.chance.sample([*others, *there], 2)
        only = keys.only(one)
        revision = self.some_revision()
        compares = [
            keys.absent(only),
            keys.absent(line),
            keys.created(only, revision),
            keys.written(only, revision),
            keys.version_is(only, self.chance.randrange(3)),
            keys.unwritten_since(line, revision),
            keys.unwritten_since(keys.span(self.keys.marks(name)), revision),
        ]
        lease = self.chance.choice([0, 4711, *(int(self.real_id(lease)) for lease in self.both.model.leases)])
        operations = [
            keys.ranged(line),
            keys.ranged(line, **keys.FIRST),
            keys.ranged(line, **keys.LAST),
            keys.ranged(only, keys_only=True),
            keys.put(one, b'{"a": 1}', lease),
            keys.deleted(keys.only(other)),
            keys.ranged(line),
        ]
        some = [sorted(self.chance.sample(range(7), self.chance.randrange(4))) for _ in range(2)]
        body = keys.txn(
            self.chance.sample(compares, self.chance.randrange(3)), *([operations[at] for at in part] for part in some)
        )
        self.both.send("/v3/kv/txn", body)
        self.both.send("/v3/kv/range", {**line, **keys.LAST, "max_create_revision": str(revision)})
        self.both.send("/v3/kv/range", {**line, "limit": "1", "keys_only": True})

    def some_revision(self) -> int:
        """Return a revision that may matter: of now, or of some key."""
        pairs = [some for pair in self.both.model.pairs.values() for some in (pair.created, pair.written)]
        return self.chance.choice([self.both.model.revision, *pairs]) + self.chance.choice((0, 0, 0, -1, 1))

    def real_id(self, lease: int) -> str:
        """Return what a lease of the model is called at the real server."""
        return next((real for real, ours in self.both._ids.items() if ours == str(lease)), str(lease))

    def ends_a_lease(self) -> None:
        """Revoke a lease as an operator does, or ask for one, renew one, show one that there is or is not."""
        lease = self.chance.choice(["4711", *map(self.real_id, self.both.model.leases)])
        path = self.chance.choice(("revoke", "revoke", "grant", "keepalive", "timetolive"))
        self.both.send(f"/v3/lease/{path}", {"ID": lease, **({"TTL": "60"} if path == "grant" else {})})

    def watches_from(self) -> None:
        """Open a watch from a revision of before, of now or to come."""
        start = max(self.both.first + 1, self.both.model.revision + self.chance.randint(-6, 3))
        self.opened += 1
        watch = Heard(self.both, self.chance.choice((start, max(self.both.model.compacted, self.both.first + 1))))
        self.watches.append(watch)
        watch.open(keys.span(self.keys.locks), self.opened)

    def hears(self) -> None:
        """Compare what all watches tell, up to a deletion that all hear."""
        last = f"{self.keys.locks}~/last"
        for _ in range(4):  # so that a watch from a revision to come hears it, too
            self.both.send("/v3/kv/txn", keys.txn([], [keys.put(last, b"", 0)]))
            self.both.send("/v3/kv/txn", keys.txn([], [keys.deleted(keys.only(last))]))
        for watch in self.watches:
            watch.compare()
            if watch.over or self.chance.random() < 0.3:
                watch.close()
                watch.over = True
        self.watches = [watch for watch in self.watches if not watch.over]

    def compacts(self) -> None:
        """Forget old revisions."""
        self.hears()  # what is on its way would be lost or not
        kept = keys.put(f"{self.keys.locks}~/kept", b"", 0)  # of a deletion there, etcd tells by its version
        self.both.send("/v3/kv/txn", keys.txn([], [kept]))
        self.both.model.compact()
        self.server.compact()
        self.both.log.append(f"compacted at {self.both.model.compacted}")

    def close(self) -> None:
        """Leave nothing behind."""
        for watch in self.watches:
            watch.close()
        for lease in [*map(self.real_id, self.both.model.leases)]:
            self.both.really(Request("POST", "/v3/lease/revoke", (), json.dumps({"ID": lease}).encode()))
        for stem in (self.keys.locks, self.keys.cells, self.keys.tombstones, self.keys.marks_prefix):
            self.both.really(Request("POST", "/v3/kv/deleterange", (), json.dumps(keys.span(stem)).encode()))
        finish(self.both.real.close())


STEPS: list[Callable[[Playing], None]] = [Playing.claims] * 8 + [Playing.leaves] * 4 + [Playing.asks] * 4
STEPS += [Playing.renews, Playing.changes_a_cell] * 2 + [Playing.ends_a_lease, Playing.watches_from, Playing.hears] * 2
STEPS += [Playing.looks, Playing.arrives, Playing.arrives, Playing.compacts]
