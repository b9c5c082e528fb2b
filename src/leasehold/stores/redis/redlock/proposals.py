"""What a client remembers of its tickets, and the tokens that it proposes."""

from __future__ import annotations

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.redlock.commands import Proposal

SWEEP = 10.0
"""Seconds between two looks for tickets that no node knows any more."""


class Proposals:
    """All of a client. Used from many threads at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._proposals: dict[str, Proposal] = {}
        self._ahead = 0  # microseconds by which a token that we saw was ahead of our clock
        self._swept = runtime.now()

    def __len__(self) -> int:
        return len(self._proposals)

    def get(self, ticket: str) -> Proposal | None:
        """Return what is remembered of a ticket."""
        return self._proposals.get(ticket)

    def of(self, name: str, ticket: Ticket) -> Proposal:
        """Return what is remembered of a ticket: a claim that is repeated proposes the same token."""
        now = self._runtime.now()
        with self._mutex:
            self._sweep(now)
            proposal = self._proposals.get(ticket.id)
            if proposal is None:
                clock = self._runtime.wall_us()
                proposal = self._proposals[ticket.id] = Proposal(name, ticket, clock + self._ahead, clock, now)
            proposal.until = now + ticket.terms.lease + ticket.terms.lock_delay
            return proposal

    def renewed(self, ticket: Ticket, now: float) -> None:
        """Take note that nodes have set its lease to full length."""
        proposal = self._proposals.get(ticket.id)
        if proposal is not None:
            proposal.until = now + ticket.terms.lease + ticket.terms.lock_delay

    def propose(self, proposal: Proposal, top: int) -> None:
        """Propose a higher token than before, and than the highest that was seen anywhere."""
        with self._mutex:
            clock = self._runtime.wall_us()
            self._ahead = max(self._ahead, top + 1 - clock)
            proposal.token = max(proposal.token + 1, clock + self._ahead)

    def forget(self, proposal: Proposal) -> None:
        """Forget a ticket that no node knows."""
        self._proposals.pop(proposal.ticket.id, None)

    def _sweep(self, now: float) -> None:
        if now - self._swept < SWEEP:
            return
        self._swept = now
        for proposal in [proposal for proposal in self._proposals.values() if proposal.until < now]:
            self.forget(proposal)
