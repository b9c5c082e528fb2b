"""Acquires a name on a Redlock: proposes tokens, and asks for votes in rounds.

Rounds end when a majority voted for the ticket or for another one, or when the time is over. The docstring of `store`
explains how this works and why it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leasehold._model import Granted, ReleaseReason, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.background import PendingReleases
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes
from leasehold.stores.redis.redlock.protocol import Outcome, Proposal, Vote
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall
from leasehold.stores.redis.redlock.waiting import Waiting
from leasehold.stores.redis.scripts.commands import Command

SWEEP = 10.0
"""Seconds between two searches for tickets that no node knows any more."""


class Proposals:
    """The proposals of all tickets of a client. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.after_fork()

    def after_fork(self) -> None:
        self._mutex = self._runtime.mutex()
        self._proposals: dict[str, Proposal] = {}
        self._ahead = 0  # microseconds by which the highest token seen was ahead of our clock
        self._swept = self._runtime.now()

    def get(self, ticket: str) -> Proposal | None:
        return self._proposals.get(ticket)

    def get_or_create(self, name: str, ticket: Ticket) -> Proposal:
        """Return the proposal of a ticket, with a token of now: one that holds keeps its token."""
        now = self._runtime.now()
        with self._mutex:
            self._sweep(now)
            proposal = self._proposals.get(ticket.id)
            if proposal is None:
                clock = self._runtime.wall_us()
                proposal = self._proposals[ticket.id] = Proposal(name, ticket, clock + self._ahead, clock)
            elif not proposal.won:
                self._raise(proposal, 0)
            proposal.known_from(now)
            return proposal

    def propose(self, proposal: Proposal, top: int) -> None:
        """Propose a token higher than the last one, higher than any seen on a node, and not below our clock."""
        with self._mutex:
            self._raise(proposal, top)

    def _raise(self, proposal: Proposal, top: int) -> None:
        clock = self._runtime.wall_us()
        self._ahead = max(self._ahead, top + 1 - clock)
        proposal.token, proposal.several = max(proposal.token + 1, clock + self._ahead), True

    def forget(self, proposal: Proposal) -> None:
        self._proposals.pop(proposal.ticket.id, None)

    def _sweep(self, now: float) -> None:
        if now - self._swept >= SWEEP:
            self._swept = now
            for proposal in [proposal for proposal in self._proposals.values() if proposal.until < now]:
                self.forget(proposal)


ROUNDS = 16
"""Rounds of one request at most. Then a waiter waits again, and an attempt without waiting ends."""

FIRST_BACK_OFF = 0.004
"""Seconds before the next round after split votes, at most; twice as long after each further one."""

LONGEST_BACK_OFF = 0.25

SLOW = 0.02
"""Least seconds that an undecided round waits for slow nodes, after a majority has answered."""

BACKGROUND_WITHIN = 2.0
"""Seconds that a node may take for a request in the background."""


class Rounds:
    """Asks for votes, round by round."""

    def __init__(
        self,
        runtime: Runtime,
        quorum: QuorumNodes,
        proposals: Proposals,
        pending: PendingReleases,
        waiting: Waiting,
        namespace: str,
        quarantine: float,
        at_node: Callable[[Command], Command],
    ) -> None:
        self._runtime = runtime
        self._quorum = quorum
        self._proposals = proposals
        self._pending = pending
        self._waiting = waiting
        self._namespace = namespace
        self._quarantine = quarantine
        self._at_node = at_node

    async def try_acquire(self, proposal: Proposal, *, join: bool, until: float) -> Granted | Wait:
        """Ask for votes until a majority has decided, or the time is over.

        Raises:
            StoreUnavailable: too few nodes answered.
        """
        mark = self._waiting.generations()
        channels = self._waiting.channels(mark)
        back_off = FIRST_BACK_OFF
        votes: Mapping[int, Vote] = {}
        for number in range(ROUNDS):
            since = self._runtime.now()
            with self._ask(proposal, channels, join=join, until=until) as call:
                votes = await self._collect(call, proposal.token, since, until)
            outcome = protocol.outcome(votes, proposal.token, len(self._quorum))
            if outcome is Outcome.WON:
                proposal.won = True
                self._ask_the_rest(proposal, votes, join=join)
                return Granted(proposal.token, since, proposal.ticket.terms.lease)
            top = max([proposal.token, *(max(vote.top, vote.token) for vote in votes.values())])
            if outcome is Outcome.LOW and self._runtime.now() < until:
                self._proposals.propose(proposal, top)
                continue
            self._give_back(proposal, call, votes, channels, join=join)
            # The give-back may arrive late. A higher token keeps it from undoing a later round.
            self._proposals.propose(proposal, top)
            if outcome is Outcome.SILENT:
                raise self._too_few(call, votes, asked_before=number > 0)
            if outcome is Outcome.TAKEN:
                after = self._waiting.retry_after(proposal.ticket, protocol.free_after(votes, len(self._quorum)))
                return Wait(mark, after, protocol.likely_holder(votes))
            pause = back_off * self._runtime.jitter()
            if self._runtime.now() + pause >= until:
                break
            await self._runtime.sleep(pause)
            self._proposals.propose(proposal, top)  # of now: nodes may have forgotten what was granted meanwhile
            back_off = min(2 * back_off, LONGEST_BACK_OFF)
        return Wait(None, back_off * (0.5 + self._runtime.jitter()), protocol.likely_holder(votes))

    def ask_missing_votes(self, proposal: Proposal, nodes: Sequence[Node]) -> None:
        """Ask nodes for the votes that a holder lacks, without waiting for them."""
        command = self._claim_commands(proposal, [b""] * len(self._quorum), join=False)
        now = self._runtime.now()
        proposal.known_from(now)
        self._quorum.ask(Question(command, _vote, now + BACKGROUND_WITHIN), only=nodes).stop_waiting()

    def _ask(self, proposal: Proposal, channels: Sequence[bytes], *, join: bool, until: float) -> QuorumCall[Vote]:
        return self._quorum.ask(Question(self._claim_commands(proposal, channels, join=join), _vote, until))

    def _claim_commands(
        self, proposal: Proposal, channels: Sequence[bytes], *, join: bool
    ) -> Callable[[Node], Command]:
        """Return a function that makes the request for a node: one object for all nodes with the same request."""
        token, quarantine = proposal.token, self._quarantine
        memory = keys.memory_key(self._namespace, "") if quarantine else b""
        made: dict[bytes, Command] = {}

        def command(node: Node) -> Command:
            proposal.asked.add(node.index)
            channel = channels[node.index]
            if (found := made.get(channel)) is None:
                asks = protocol.try_acquire(
                    self._namespace, proposal, token, join=join, channel=channel, quarantine=quarantine, memory=memory
                )
                found = made[channel] = self._at_node(asks)
            return found

        return command

    async def _collect(self, call: QuorumCall[Vote], token: int, since: float, until: float) -> Mapping[int, Vote]:
        """Wait until missing answers can change nothing, for slow nodes at most twice as long as a majority took."""
        nodes, needed = len(self._quorum), self._quorum.majority

        def settled(call: QuorumCall[Vote]) -> bool:
            return protocol.settled(call.answers, token, nodes)

        votes = await call.until(lambda call: len(call.answers) >= needed, until)
        now = self._runtime.now()
        return await call.linger(settled, min(until, now + max(SLOW, 2 * (now - since)))) or votes

    def _ask_the_rest(self, proposal: Proposal, votes: Mapping[int, Vote], *, join: bool) -> None:
        """Ask nodes that did not vote for the winner: its ticket may be in their queues."""
        lacking = [self._quorum.nodes[index] for index, vote in votes.items() if not vote.token]
        if join and lacking:
            self.ask_missing_votes(proposal, lacking)

    def _give_back(
        self,
        proposal: Proposal,
        call: QuorumCall[Vote],
        votes: Mapping[int, Vote],
        channels: Sequence[bytes],
        *,
        join: bool,
    ) -> None:
        """Give back the vote of each node that has voted for us, or may have, without waiting for it."""
        token, now = proposal.token, self._runtime.now()
        releases = protocol.release(
            self._namespace, proposal.name, proposal.ticket, token, ReleaseReason.RELEASE, last=False
        )
        back = self._at_node(releases)
        over = now + protocol.life(proposal.ticket)

        def command(node: Node) -> Command:
            if join:
                return self._at_node(protocol.give_back(self._namespace, proposal, token, channels[node.index]))
            return back

        def retry(node: Node) -> None:
            self._pending.retry_release(node, back, over)

        may_hold = [node for node in self._quorum.nodes if _may_hold(node.index, call, votes)]
        if may_hold:
            question = Question(command, lambda _, found: found == 1, now + BACKGROUND_WITHIN, retry, retry)
            self._quorum.ask(question, only=may_hold).stop_waiting()

    def _too_few(self, call: QuorumCall[Vote], votes: Mapping[int, Vote], *, asked_before: bool) -> StoreUnavailable:
        abstain = {
            index: f"it may have forgotten votes, and gives none for {vote.left:.1f} s"
            for index, vote in votes.items()
            if vote.abstains
        }
        return self._quorum.too_few(call, votes, "voted" if abstain else "answered", abstain, unknown=asked_before)


def _vote(node: Node, reply: Any) -> Vote:
    return Vote.parse(reply)


def _may_hold(node: int, call: QuorumCall[Vote], votes: Mapping[int, Vote]) -> bool:
    vote = votes.get(node)
    if vote is not None:
        return vote.token != 0
    failure = call.failures.get(node)
    return node in call.waiting or node in call.answers or (isinstance(failure, StoreUnavailable) and failure.unknown)
