"""One name on a real Redis and on the pure rules (`stores.ledger`): what the histories of every kind do to both.

How time passes: leases and delays are multiples of ten seconds, and a script of ours moves every expiry of the name
back by whole seconds at once (and 2 ms, since the server rounds to milliseconds). So a history over minutes takes
milliseconds, and both sides agree on what has expired: what really passes meanwhile is far below a second, and a lease
that has just run out on the one side has run out on the other.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from leasehold._model import Granted, QueueEntry, ReleaseReason, RenewalResult, Ticket, Wait
from leasehold._rules import Blocked, Queue, same_use
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores._common import queues
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer
from support.stores.quickly import quickly

SHIFT = """
local shift = tonumber(ARGV[1]) + 2
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left > shift then redis.call('PEXPIRE', key, left - shift) elseif left > 0 then redis.call('DEL', key) end
end
for _, key in ipairs({KEYS[3], KEYS[5]}) do
  for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -shift, ticket) end
end
local blocked = redis.call('HGET', KEYS[1], 'b')
if blocked and tonumber(blocked) > 0 then redis.call('HINCRBY', KEYS[1], 'b', -shift) end
"""

NAMES = itertools.count()

Made = tuple[list[Ticket], list[bool]]
"""Tickets, and of each whether it joins the queue."""

Steps = Sequence[tuple[str, Any]]
"""What happens, and to whom; see `BothSides.do`."""


@dataclass
class BothSides(ABC):
    """One name on both sides, and what has come of it so far."""

    server: RedisServer
    store: RedisStore
    tickets: list[Ticket]
    joins: list[bool]
    name: str = field(default_factory=lambda: f"x-{next(NAMES)}")
    now: float = 1_000_000.0
    queue: Queue = field(default_factory=lambda: Queue("x"))
    slots: set[str] = field(default_factory=set)
    tokens: dict[int, int] = field(default_factory=dict)
    marks: dict[str, object] = field(default_factory=dict)

    ROUNDED: ClassVar[float]
    """Seconds by which a time of the server's may be later: it counts in milliseconds."""

    LONGEST: ClassVar[int]
    """Milliseconds that a key may have left at most."""

    @abstractmethod
    def keys(self) -> Sequence[str]:
        """Return the keys of the name."""

    @abstractmethod
    def check_wait(self, ticket: Ticket, blocked: Blocked, answer: Wait) -> None:
        """Compare the replies to tickets that must wait."""

    def took(self, model: int, real: int) -> None:
        """Take note of a token that both gave: the same grant has one number on each side, and they grow alike."""
        if model in self.tokens:
            assert self.tokens[model] == real
            return
        assert all(real > other for known, other in self.tokens.items() if known < model)
        assert all(real < other for known, other in self.tokens.items() if known > model)
        self.tokens[model] = real

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return who holds or waits, of those whose time has not run out."""
        return queues.settle(self.queue, self.now).entries()

    def is_foreign(self, ticket: Ticket) -> bool:
        """Say whether the name is in use otherwise."""
        entries = self.entries()
        return bool(entries) and not same_use(ticket.terms.mode, entries[0].ticket.terms.mode)

    # --- operations ----------------------------------------------------------------------------------------------

    def do(self, what: str, argument: Any) -> None:
        """Do one step."""
        match what:
            case "claim":
                self.claim(argument)
            case "leave":
                self.leave(argument, ReleaseReason.RELEASE)
            case "a holder leaves":
                self.a_holder_leaves(argument)
            case "break":
                self.leave(argument, ReleaseReason.BREAK)
            case "renew":
                self.renew(argument)
            case "wait":
                self.wait(argument)
            case "listen":
                self.listen(argument)
            case "flush":
                self.server.command("SCRIPT", "FLUSH")
            case _:
                raise ValueError(what)

    def claim(self, i: int) -> None:
        self.claimed(i, self.claim_by_the_rules(i))

    def claim_by_the_rules(self, i: int) -> queues.Step:
        return queues.try_acquire(self.queue, self.tickets[i], join=self.joins[i], now=self.now, floor=0)

    def claimed(self, i: int, step: queues.Step) -> None:
        """Claim on the server what was claimed by the rules."""
        ticket, join = self.tickets[i], self.joins[i]
        self.queue = step.queue
        answer = finish(self.store.try_acquire(self.name, ticket, join=join, within=5.0))
        if step.blocked is None:
            assert isinstance(answer, Granted)
            assert step.mine is not None
            assert step.mine.token is not None
            self.took(step.mine.token, answer.token)
            self.slots.discard(ticket.id)
            return
        assert isinstance(answer, Wait)
        self.marks[ticket.id] = answer.mark
        if join:
            self.slots.add(ticket.id)
        self.check_wait(ticket, step.blocked, answer)

    def forget(self, i: int) -> None:
        """Leave, as a client does whose claim was refused: it finds its own dead entry at most, and no other."""
        finish(self.store.release(self.name, self.tickets[i], reason=ReleaseReason.RELEASE, within=5.0))
        self.slots.discard(self.tickets[i].id)

    def leave(self, i: int, reason: ReleaseReason) -> None:
        ticket = self.tickets[i]
        alive = any(entry.ticket.id == ticket.id for entry in self.entries())
        if not alive and ticket.terms.lock_delay:
            return  # late words of a former holder may end its delay or not: it says itself that it is done
        if self.is_foreign(ticket):
            self.forget(i)
            return
        step = queues.release(self.queue, ticket.id, reason=reason, now=self.now, floor=0)
        self.queue = step.queue
        found = finish(self.store.release(self.name, ticket, reason=reason, within=5.0))
        assert found is step.found or not alive  # what has expired may have been cleared away by now, or not
        self.slots.discard(ticket.id)

    def a_holder_leaves(self, nth: int) -> None:
        holders = [entry.ticket for entry in queues.settle(self.queue, self.now).holders]
        if holders:
            self.leave(self.tickets.index(holders[nth % len(holders)]), ReleaseReason.RELEASE)

    def renew(self, chosen: list[int]) -> None:
        tickets = [self.tickets[i] for i in chosen]
        stays = [ticket for ticket in tickets if ticket.id in self.slots]
        wanted: dict[str, RenewalResult] = {}
        for ticket in [*(t for t in tickets if t.id not in self.slots), *stays]:
            self.queue, wanted[ticket.id] = queues.renew(self.queue, ticket.id, self.now)
        if any(not self.is_foreign(ticket) for ticket in stays):
            self.queue, _ = queues.hand_over(queues.settle(self.queue, self.now), self.now, 0)
        got = finish(self.store.renew([(self.name, ticket) for ticket in tickets], within=5.0))
        assert list(got) == [wanted[ticket.id] for ticket in tickets]

    def listen(self, i: int) -> None:
        """Wait for a message, if the model says that there is one, and none but the latest is believed."""
        ticket = self.tickets[i]
        entry = next((s for s in self.queue.holders if s.ticket.id == ticket.id and s.expires > self.now), None)
        if ticket.id not in self.slots or entry is None or entry.token is None:
            return
        for _ in range(3):  # stale news end a wait early, and the waiter asks again
            granted = finish(self.store.wait(self.name, ticket, self.marks[ticket.id], timeout=0.2))
            if granted is not None:
                self.took(entry.token, granted.token)
                self.slots.discard(ticket.id)
                return

    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.server.command("EVAL", SHIFT, len(self.keys()), *self.keys(), seconds * 1000)

    # --- looking -------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Look at both."""
        model = queues.view(self.queue, self.now)
        views = finish(self.store.inspect(self.name, exact=True))
        if not (model.holders or model.waiters or model.free_in > 0):
            assert views == []
            return
        (real,) = views
        assert [s.ticket.id for s in real.holders] == [s.ticket.id for s in model.holders]
        assert [s.ticket.id for s in real.waiters] == [s.ticket.id for s in model.waiters]
        for mine, its in zip(model.holders + model.waiters, real.holders + real.waiters, strict=True):
            self.compare_entries(mine, its)
        for mine, its in zip(model.holders, real.holders, strict=True):
            assert mine.token is not None
            assert its.token is not None
            self.took(mine.token, its.token)
        assert model.free_in - 1.0 < real.free_in <= model.free_in + self.ROUNDED
        if model.holders or model.waiters:
            assert real.kind is model.kind

    def compare_entries(self, mine: QueueEntry, its: QueueEntry) -> None:
        """Compare an entry of the model with the server's."""
        assert its.ticket.terms.owner == mine.ticket.terms.owner
        assert its.ticket.terms.meta == mine.ticket.terms.meta
        assert mine.expires - 1.0 < its.expires <= mine.expires + self.ROUNDED

    def check_keys(self) -> None:
        """No key may stay for ever, and a name's keys end with it."""
        for key in self.keys():
            left = self.server.command("PTTL", key)
            assert isinstance(left, int)
            assert left == -2 or 0 < left <= self.LONGEST


@contextmanager
def opened(server: RedisServer) -> Iterator[RedisStore]:
    """Open a store that receives messages."""
    store = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(store, RedisStore)
    finish(store._transport.listen(5.0))  # a waiter without a listener is passed over
    finish(store.inspect("x"))  # opens the other connection, which lasts as long as the store
    try:
        yield store
    finally:
        finish(store.close())


def replay(begin: Callable[[], BothSides], steps: Steps) -> None:
    """Play a history on both sides; once more if it took so long that what passed of the leases hides the outcome."""
    quickly(lambda: play(begin(), steps), len(steps))


def play(both: BothSides, steps: Steps) -> None:
    """Do the steps, and look at both sides after each."""
    for ticket in both.tickets:
        both.store._waiters.remove(ticket.id)
    for what, argument in steps:
        both.do(what, argument)
        both.compare()
    both.check_keys()
