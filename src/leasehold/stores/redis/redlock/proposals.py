"""What a client remembers of its tickets, and the tokens that it proposes."""

from __future__ import annotations

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.redlock.commands import Ballot

SWEEP = 10.0
"""Seconds between two looks for tickets that no node knows any more."""


class Ballots:
    """All of a client. Used from many threads at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._ballots: dict[str, Ballot] = {}
        self._ahead = 0  # microseconds by which a token that we saw was ahead of our clock
        self._swept = runtime.now()

    def __len__(self) -> int:
        return len(self._ballots)

    def get(self, ticket: str) -> Ballot | None:
        """Return what is remembered of a ticket."""
        return self._ballots.get(ticket)

    def of(self, name: str, ticket: Ticket) -> Ballot:
        """Return what is remembered of a ticket: a claim that is repeated proposes the same token."""
        now = self._runtime.now()
        with self._mutex:
            self._sweep(now)
            ballot = self._ballots.get(ticket.id)
            if ballot is None:
                clock = self._runtime.wall_us()
                ballot = self._ballots[ticket.id] = Ballot(name, ticket, clock + self._ahead, clock, now)
            ballot.until = now + ticket.terms.lease + ticket.terms.delay
            return ballot

    def renewed(self, ticket: Ticket, now: float) -> None:
        """Take note that nodes have set its lease to full length."""
        ballot = self._ballots.get(ticket.id)
        if ballot is not None:
            ballot.until = now + ticket.terms.lease + ticket.terms.delay

    def propose(self, ballot: Ballot, top: int) -> None:
        """Propose a higher token than before, and than the highest that was seen anywhere."""
        with self._mutex:
            clock = self._runtime.wall_us()
            self._ahead = max(self._ahead, top + 1 - clock)
            ballot.token = max(ballot.token + 1, clock + self._ahead)

    def forget(self, ballot: Ballot) -> None:
        """Forget a ticket that no node knows."""
        self._ballots.pop(ballot.ticket.id, None)

    def _sweep(self, now: float) -> None:
        if now - self._swept < SWEEP:
            return
        self._swept = now
        for ballot in [ballot for ballot in self._ballots.values() if ballot.until < now]:
            self.forget(ballot)
