"""The commands for one node of a Redlock, its answers, and what the answers of all nodes mean. Pure."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold._model import Kind, Owner, QueueEntry, ReleaseReason, RenewalResult, Ticket, View
from leasehold.stores.redis import keys
from leasehold.stores.redis.inspecting import text_of, ticket_of, waiter_of
from leasehold.stores.redis.scripts import (
    REDLOCK_CLAIM,
    REDLOCK_INSPECT,
    REDLOCK_RELEASE,
    REDLOCK_RENEW,
    REDLOCK_RENEW_WAITERS,
)
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, Command, chunks, ms, renewal_args


@dataclass(slots=True, eq=False)
class Proposal:
    """What a client remembers of a ticket, for as long as a node may know it.

    Attributes:
        token: the highest token that it has proposed.
        several: whether it has proposed more than one.
        won: whether a majority has voted for it.
        order: its place in the queues, the same on all nodes: the client's wall clock in microseconds.
        asked: nodes that may know it.
        lacking: nodes that did not know it as the holder when they last answered a renewal.
        released: nodes that confirmed its release, and whether it had their vote.
        until: boot-time clock after which no node knows it any more, unless it is renewed.
    """

    name: str
    ticket: Ticket
    token: int
    order: int
    several: bool = False
    won: bool = False
    asked: set[int] = field(default_factory=set[int])
    lacking: set[int] = field(default_factory=set[int])
    released: dict[int, bool] = field(default_factory=dict[int, bool])
    until: float = 0.0

    def known_from(self, now: float) -> None:
        """Record that nodes may set its lease to its full length now."""
        self.until = now + life(self.ticket)


def life(ticket: Ticket) -> float:
    """Return the most seconds for which a node knows a ticket that is not renewed."""
    return ticket.terms.lease + ticket.terms.lock_delay


def try_acquire(
    namespace: str,
    proposal: Proposal,
    token: int,
    *,
    join: bool,
    channel: bytes,
    quarantine: float = 0.0,
    memory: bytes = b"",
) -> Command:
    """Return the command that asks for a vote; ``memory`` is the key that a quarantine needs."""
    terms = proposal.ticket.terms
    args = (
        proposal.ticket.id.encode(),
        b"%d" % ms(terms.lease),
        b"%d" % ms(terms.lock_delay),
        b"1" if join else b"0",
        b"%d" % token,
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
        b"%d" % proposal.order,
        b"%d" % ms(quarantine),
        memory,
    )
    return REDLOCK_CLAIM, keys.node_keys(namespace, proposal.name), args


def release(
    namespace: str,
    name: str,
    ticket: Ticket,
    token: int,
    reason: ReleaseReason,
    *,
    last: bool = True,
    several: bool = True,
) -> Command:
    """Return the command that gives up vote and queue entry.

    ``last``: the ticket makes no request after it. ``several``: it may have proposed other tokens than this one.
    """
    broken, ttl = reason is ReleaseReason.BREAK, ms(ticket.terms.lease) + ms(ticket.terms.lock_delay)
    after = b"0" if broken or not last else b"3" if several else b"2"
    args = (ticket.id.encode(), b"%d" % broken, b"%d" % token, b"%d" % ttl, after)
    return REDLOCK_RELEASE, keys.node_keys(namespace, name), args


def give_back(namespace: str, proposal: Proposal, token: int, channel: bytes) -> Command:
    """Return the command that gives a vote back and joins the queue."""
    script, script_keys, args = release(namespace, proposal.name, proposal.ticket, token, ReleaseReason.RELEASE)
    terms = proposal.ticket.terms
    entry = b"%d" % proposal.order, b"%d" % ms(terms.lease), channel, str(terms.owner).encode(), terms.meta.encode()
    return script, script_keys, (*args[:-1], b"1", *entry)


def inspect(namespace: str, name: str) -> Command:
    """Return the command that reads what a node knows about a name."""
    return REDLOCK_INSPECT, keys.node_keys(namespace, name), ()


def renewals(
    namespace: str, holding: Sequence[tuple[str, Ticket]], waiting: Sequence[tuple[str, Ticket]]
) -> Iterator[tuple[Command, Sequence[Ticket]]]:
    """Yield the commands that renew holders and queue entries, each with its tickets."""
    for some in chunks(holding, PER_SCRIPT):
        each = [keys.node_keys(namespace, name) for name, _ in some]
        those = [key for all_keys in each for key in (all_keys[0], all_keys[4])]
        tickets = [ticket for _, ticket in some]
        yield (REDLOCK_RENEW, those, renewal_args(tickets)), tickets
    queues: dict[str, list[Ticket]] = defaultdict(list)
    for name, ticket in waiting:
        queues[name].append(ticket)
    for name, tickets in queues.items():
        for part in chunks(tickets, PER_SCRIPT):
            yield (REDLOCK_RENEW_WAITERS, keys.node_keys(namespace, name), renewal_args(part)), part


@dataclass(frozen=True, slots=True)
class Vote:
    """One node's answer to a proposal.

    Attributes:
        token: the token of its vote for us; 0 if it did not vote for us.
        top: the highest token that it has voted for.
        left: seconds until its vote is free: another ticket has it, or the node abstains.
        holder: the ticket that has its vote; "" if none.
        owner: the owner of that ticket.
        abstains: it may have forgotten votes, and gives none.
    """

    token: int = 0
    top: int = 0
    left: float = 0.0
    holder: str = ""
    owner: str = ""
    abstains: bool = False

    @classmethod
    def parse(cls, reply: Any) -> Vote:
        """Read the reply of ``scripts/redlock_claim.lua``."""
        if reply[0] == 1:
            return cls(token=int(reply[1]))
        left = int(reply[2]) / 1000
        if reply[0] == 3:
            return cls(top=int(reply[1]), left=left, abstains=True)
        return cls(0, int(reply[1]), left, reply[3].decode(), reply[4].decode("utf-8", "replace"))


class Outcome(enum.Enum):
    """The result of a round of votes."""

    WON = "won"  # a majority voted for us, with one token
    TAKEN = "taken"  # a majority voted for another ticket, or has a lock delay
    LOW = "low"  # a majority is free to vote, but our token was not the highest
    SPLIT = "split"  # no ticket has a majority
    SILENT = "silent"  # too few nodes answered, or could vote


def majority(nodes: int) -> int:
    """Return how many of ``nodes`` must agree: any two such groups share a node."""
    return nodes // 2 + 1


def won(votes: Mapping[int, Vote], token: int, nodes: int) -> bool:
    """Return whether a majority voted for ``token``."""
    return sum(vote.token == token for vote in votes.values()) >= majority(nodes)


def settled(votes: Mapping[int, Vote], token: int, nodes: int) -> bool:
    """Return whether the open answers can no longer change the outcome."""
    return won(votes, token, nodes) or _taken(votes, nodes)


def _taken(votes: Mapping[int, Vote], nodes: int) -> bool:
    others = Counter(vote.holder for vote in votes.values() if vote.left > 0 and not vote.abstains)
    return max(others.values(), default=0) >= majority(nodes)


def outcome(votes: Mapping[int, Vote], token: int, nodes: int) -> Outcome:
    """Return the result of a round from the answers so far."""
    if won(votes, token, nodes):
        return Outcome.WON
    if _taken(votes, nodes):
        return Outcome.TAKEN
    able = [vote for vote in votes.values() if not vote.abstains]
    if len(able) < majority(nodes):
        return Outcome.SILENT
    return Outcome.LOW if sum(vote.left <= 0 for vote in able) >= majority(nodes) else Outcome.SPLIT


def free_after(votes: Mapping[int, Vote], nodes: int) -> float:
    """Return the seconds after which a majority of votes is free, if none is renewed or released."""
    lefts = sorted(vote.left for vote in votes.values())
    return lefts[min(majority(nodes), len(lefts)) - 1] if lefts else 0.0


def likely_holder(votes: Mapping[int, Vote]) -> Owner | None:
    """Return the owner that most nodes voted for, for messages to people."""
    owners = Counter(vote.owner for vote in votes.values() if vote.owner)
    return Owner.parse(owners.most_common(1)[0][0]) if owners else None


HELD, QUEUED, FREE, GONE = 1, 2, 3, 0
"""Answers of one node about one ticket: has its vote; is queued; is queued though the vote is free; unknown."""


def renewal_result(answers: Mapping[int, int], nodes: int) -> RenewalResult | None:
    """Return the renewal result of one ticket; None if it is not decided.

    A majority decides. A waiter holds nothing, so vote or queue entry on a majority of nodes is enough for it.
    """
    needed, count = majority(nodes), Counter(answers.values())
    if count[HELD] >= needed:
        return RenewalResult.HELD
    waits = count[QUEUED] + count[FREE]
    if waits and waits + count[HELD] >= needed:
        return RenewalResult.QUEUED
    if nodes - count[GONE] < needed:
        return RenewalResult.GONE
    return None


def released_majority(answers: Mapping[int, bool], nodes: int) -> bool | None:
    """Return whether a released ticket had a majority; None if that is not decided."""
    found = sum(answers.values())
    if found >= majority(nodes):
        return True
    return False if nodes - (len(answers) - found) < majority(nodes) else None


def view(name: str, replies: Sequence[Any], answered: int, nodes: int) -> View:
    """Combine the replies of ``redlock_inspect.lua`` on one name; ``answered`` of the nodes have answered."""
    voted: dict[str, list[QueueEntry]] = defaultdict(list)
    blocked_until: list[float] = []
    for reply in replies:
        entry = _voted(reply)
        if entry is not None:
            voted[entry.ticket.id].append(entry)
        elif int(reply[2]) > 0:
            blocked_until.append(int(reply[2]) / 1000)
    needed, top = majority(nodes), max((int(reply[3]) for reply in replies), default=0)
    best = max(voted.values(), key=len, default=list[QueueEntry]())
    waiters = _waiters(replies, answered, best[0].ticket.id if best else "")
    if best and len(best) + nodes - answered >= needed and 2 * len(best) > answered:
        left = sorted((one.expires for one in best), reverse=True)[min(needed, len(best)) - 1]
        return View(name, Kind.MUTEX, best[0].token or top, (replace(best[0], expires=left),), waiters)
    free_in = sorted(blocked_until)[-needed] if len(blocked_until) >= needed else 0.0
    return View(name, Kind.MUTEX, top, (), waiters, free_in)


def _voted(reply: Any) -> QueueEntry | None:
    """Return the client that has the vote of one node; None if only a lock delay is left."""
    ticket, token, lease, lock_delay, owner, meta = map(text_of, reply[1])
    left = (int(reply[2]) - int(lock_delay or 0)) / 1000
    if not ticket or left <= 0:
        return None
    return QueueEntry(ticket_of(ticket, lease, lock_delay, owner, meta), 0, left, int(token) or None)


def _waiters(replies: Sequence[Any], answered: int, holder: str) -> tuple[QueueEntry, ...]:
    found: dict[str, list[QueueEntry]] = defaultdict(list)
    for reply in replies:
        for start in range(0, len(reply[4]), 4):
            entry = waiter_of(reply[4][start : start + 4], int(reply[0]) / 1000)
            if entry.expires > 0 and entry.ticket.id != holder:
                found[entry.ticket.id].append(entry)
    alive = [min(entries, key=lambda entry: entry.expires) for entries in found.values() if 2 * len(entries) > answered]
    return tuple(sorted(alive, key=lambda entry: entry.order))
