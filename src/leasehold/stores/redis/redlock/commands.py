"""Which script, with which keys and arguments, for one ticket on one node of Redlock."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from leasehold._model import ReleaseReason, Ticket
from leasehold.stores.redis import keys
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, REDLOCK_LEAVE, REDLOCK_LOOK, REDLOCK_RENEW, REDLOCK_STAY
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, Command, chunks, ms


@dataclass(slots=True, eq=False)
class Proposal:
    """What this client remembers of a ticket for as long as a node may know it.

    Attributes:
        token: the highest token that it has proposed.
        order: its arrival, the same on all nodes: the client's wall clock in microseconds.
        until: boot-time clock from which no node knows it any more, unless it is renewed.
        asked: nodes that may know it.
        left: nodes that have confirmed that it left, and whether it was there.

    """

    name: str
    ticket: Ticket
    token: int
    order: int
    until: float
    asked: set[int] = field(default_factory=set[int])
    left: dict[int, bool] = field(default_factory=dict[int, bool])


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
    words = (
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
    return REDLOCK_CLAIM, keys.node_keys(namespace, proposal.name), words


def release(namespace: str, name: str, ticket: Ticket, token: int, reason: ReleaseReason) -> Command:
    """Return the command that leaves with vote and place."""
    broken = reason is ReleaseReason.BREAK
    words = (ticket.id.encode(), b"%d" % broken, b"%d" % token, b"%d" % _ttl(ticket), b"0")
    return REDLOCK_LEAVE, keys.node_keys(namespace, name), words


def retreat(namespace: str, proposal: Proposal, token: int, channel: bytes) -> Command:
    """Return the command that gives a vote back and stands in line."""
    terms = proposal.ticket.terms
    words = (
        proposal.ticket.id.encode(),
        b"0",
        b"%d" % token,
        b"%d" % _ttl(proposal.ticket),
        b"1",
        b"%d" % proposal.order,
        b"%d" % ms(terms.lease),
        channel,
        str(terms.owner).encode(),
        terms.meta.encode(),
    )
    return REDLOCK_LEAVE, keys.node_keys(namespace, proposal.name), words


def inspect(namespace: str, name: str) -> Command:
    """Return the command that shows what a node knows of a name."""
    return REDLOCK_LOOK, keys.node_keys(namespace, name), ()


def renewals(
    namespace: str, holding: Sequence[tuple[str, Ticket]], waiting: Sequence[tuple[str, Ticket]]
) -> Iterator[tuple[Command, Sequence[Ticket]]]:
    """Yield the commands that renew holders and queue entries, each with its tickets."""
    for some in chunks(holding, PER_SCRIPT):
        each = [keys.node_keys(namespace, name) for name, _ in some]
        those = [key for all_keys in each for key in (all_keys[0], all_keys[4])]
        tickets = [ticket for _, ticket in some]
        yield (REDLOCK_RENEW, those, _leases(tickets)), tickets
    lines: dict[str, list[Ticket]] = defaultdict(list)
    for name, ticket in waiting:
        lines[name].append(ticket)
    for name, tickets in lines.items():
        for part in chunks(tickets, PER_SCRIPT):
            yield (REDLOCK_STAY, keys.node_keys(namespace, name), _leases(part)), part


def _ttl(ticket: Ticket) -> int:
    return ms(ticket.terms.lease) + ms(ticket.terms.lock_delay)


def _leases(tickets: Sequence[Ticket]) -> tuple[bytes, ...]:
    pairs = ((ticket.id.encode(), b"%d" % ms(ticket.terms.lease)) for ticket in tickets)
    return tuple(itertools.chain.from_iterable(pairs))
