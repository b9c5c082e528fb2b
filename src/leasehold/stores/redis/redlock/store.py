"""The store on several independent servers, of which a majority must agree: Redlock with proposed tokens.

Theory of operation
-------------------
Each node has one vote for each name, and lends it for the lease. To acquire, a client needs the votes of a majority:

1. The client proposes a token to all nodes at once. It is larger than every token that the client has seen, and not
   below its clock in microseconds.
2. A node votes for it if no other ticket has its vote, and the token is larger than any that it ever voted for. It
   remembers that number beyond lease and release.
3. With the votes of a majority the client holds the name, with that token. The lease counts from before step 1.
4. A winner with a bare majority asks the others for their votes in the background.
5. Without a majority, what happens next depends on the answers:

   * A majority is free, but the token was not the highest: the client proposes a higher one at once.
   * The votes are split: the client gives back its votes, and asks again after a random time, which grows.
   * A majority voted for another ticket: the client gives back its votes, and joins a queue on all nodes.

6. A node whose vote becomes free notifies only the first in its queue. A waiter asks for the votes when a majority has
   notified it, or shortly after the first notification.
7. A renewal and a release need a majority as well. A node that does not know the holder at a renewal, as after a
   restart, is asked for its vote again, by this renewal, or by the next if its answer came after those of a majority.

Why tokens increase: two majorities share a node, and that node accepted both tokens. So of two grants, one after the
other, the later has the larger token, and no two have the same.

Messages may be late or lost. A release that a node did not confirm stays pending (`PendingReleases`). A request that
arrives after its ticket was released gets no vote, since the release raised the node's highest token, and no queue
entry, since the node remembers the ticket. A lost notification delays a waiter by the holder's lease at most, or until
the watchdog next renews the waiter's queue entry.

Waiters are notified in the order of the queue, but any of them may acquire the name: order is not promised.
docs/backends/redlock.md says what is promised when nodes fail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
    ticket_id,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, refused
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.background import PendingReleases
from leasehold.stores.redis.redlock.node import Member, Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes, nodes_of_same_server
from leasehold.stores.redis.redlock.quorum_call import Question, QuorumCall
from leasehold.stores.redis.redlock.rounds import Proposals, Rounds
from leasehold.stores.redis.redlock.waiting import Waiting
from leasehold.stores.redis.scripts.calls import names
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, Command, chunks

CLOSE_WITHIN = 0.5
"""Seconds that closing waits for each background task or thread."""

WITHIN = 5.0
"""Seconds that a node may take for each question of `RedlockStore.inspect`."""

SLOW = 0.25
"""Seconds that `RedlockStore.inspect` waits for slow nodes, once a majority has answered."""


class RedlockStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    role = "vote"
    """What the key of a vote ends with."""

    poll = 0.0
    """Seconds, on average, between two looks of a waiter; 0 if all who share the locks notify."""

    capabilities = Capabilities(
        fair=False,
        cells=False,
        crash_bound="within the lease + back-off among the waiters",
        why_not="its nodes know nothing of each other, so they cannot keep a common queue or count: leave it out, or "
        "use a store that keeps one (redis://, redis+sentinel://, redis+cluster://, etcd://, zookeeper://)",
    )

    def __init__(self, runtime: Runtime, members: Sequence[Member], namespace: str, *, quarantine: float = 0.0) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self._quarantine = quarantine
        self._duplicate: Unsupported | None = None
        channel = self._channel()
        events = self._on_message, self._on_silence, self._on_identity
        nodes = [
            Node(runtime, at, each, namespace, channel, *events, quarantine=quarantine > 0, check_more=self._check_more)
            for at, each in enumerate(members)
        ]
        self._quorum = QuorumNodes(runtime, nodes)
        self._pending = PendingReleases(runtime, nodes)
        self._waiting = Waiting(runtime, self._quorum, self.poll)
        self._proposals = Proposals(runtime)
        self._rounds = Rounds(
            runtime,
            self._quorum,
            self._proposals,
            self._pending,
            self._waiting,
            namespace,
            quarantine,
            self._at_node,
        )

    # --- the store protocol -------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        self._refuse(ticket)
        until = self._runtime.now() + within
        proposal = self._proposals.get_or_create(name, ticket)
        asked_before = bool(proposal.asked)
        if join:
            self._waiting.add(name, ticket)
        try:
            answer = await self._rounds.try_acquire(proposal, join=join, until=until)
        except StoreUnavailable as error:
            if not error.unknown and not asked_before:
                self._waiting.remove(ticket)  # no node knows it, so no release will follow
                self._proposals.forget(proposal)
            raise
        if self._duplicate is not None:
            raise self._duplicate
        if isinstance(answer, Granted):
            self._waiting.remove(ticket)
        return answer

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        self._waiting.remove(ticket)
        proposal = self._proposals.get(ticket.id)
        token = 0 if proposal is None else proposal.token
        several = proposal is None or proposal.several
        command = self._at_node(protocol.release(self._namespace, name, ticket, token, reason, several=several))
        over = self._runtime.now() + protocol.life(ticket)

        def read(node: Node, found: int) -> bool:
            if proposal is not None:
                proposal.released[node.index] = proposal.released.get(node.index, False) or found == 1
            return found == 1

        def on_lost(node: Node) -> None:
            self._pending.retry_release(node, command, over)

        def on_skipped(node: Node) -> None:
            if proposal is None or node.index in proposal.asked:
                on_lost(node)

        def result(call: QuorumCall[bool]) -> bool | None:
            before = {} if proposal is None else proposal.released.copy()
            return protocol.released_majority({**call.answers, **before}, len(self._quorum))

        until = self._runtime.now() + within
        with self._quorum.ask(Question(lambda _: command, read, until, on_lost, on_skipped)) as call:
            answers = await call.until(lambda call: result(call) is not None, until)
            found = result(call)
        if found is None:
            raise self._quorum.too_few(call, answers, "answered")
        if proposal is not None:
            self._proposals.forget(proposal)
        return found

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        if not tickets:
            return []
        waiting = [(name, ticket) for name, ticket in tickets if self._waiting.is_waiting(ticket)]
        holding = [(name, ticket) for name, ticket in tickets if not self._waiting.is_waiting(ticket)]
        batch = list(protocol.renewals(self._namespace, holding, waiting))
        ids = [ticket.id for _, ticket in tickets]

        async def renew(node: Node) -> dict[str, int]:
            replies = await node.run_all([self._at_node(command) for command, _ in batch], within)
            found: dict[str, int] = {}
            for (_, some), reply in zip(batch, replies, strict=True):
                if not isinstance(reply, ReplyError):
                    found.update(zip((ticket.id for ticket in some), reply, strict=True))
            self._note_missing_votes(node, holding, found)  # here: no caller may wait for this answer any more
            return found

        def result(call: QuorumCall[dict[str, int]], ticket: str) -> RenewalResult | None:
            answers = {index: found[ticket] for index, found in call.answers.items() if ticket in found}
            return protocol.renewal_result(answers, len(self._quorum))

        def decided(call: QuorumCall[dict[str, int]]) -> bool:
            return all(result(call, ticket) is not None for ticket in ids)

        call = self._quorum.ask_in_background(renew)
        until = self._runtime.now() + within
        await call.until(lambda call: len(call.answers) >= self._quorum.majority, until)
        answers = await call.linger(decided, until)
        results = {ticket: result(call, ticket) or RenewalResult.UNKNOWN for ticket in ids}
        self._waiting.renewed(results, answers)
        self._after_renewal(tickets, holding, results, answers)
        if len(answers) < self._quorum.majority:
            raise self._quorum.too_few(call, answers, "confirmed the renewal")
        return [results[ticket] for ticket in ids]

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._waiting.wait(ticket, cast("tuple[int, ...] | None", mark), timeout)
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        pattern = keys.lock_pattern(self._namespace, prefix, self.role)

        async def ask(node: Node) -> dict[str, Any]:
            known = [prefix] if exact else [name async for name in names(node.transport, node.where, pattern, within)]
            found: dict[str, Any] = {}
            for some in chunks(known, PER_SCRIPT):
                looks = [self._at_node(protocol.inspect(self._namespace, name)) for name in some]
                for name, reply in zip(some, await node.run_all(looks, within), strict=True):
                    if isinstance(reply, ReplyError):
                        raise refused(node.where, reply)
                    found[name] = reply
            return found

        call = self._quorum.ask_in_background(ask)
        await call.until(lambda call: len(call.answers) >= self._quorum.majority, self._runtime.now() + within)
        answers = await call.linger(lambda _: False, self._runtime.now() + SLOW)
        if len(answers) < self._quorum.majority:
            raise self._quorum.too_few(call, answers, "answered")
        replies: dict[str, list[Any]] = defaultdict(list)
        for found in answers.values():
            for name, reply in found.items():
                replies[name].append(reply)
        views = [protocol.view(name, each, len(answers), len(self._quorum)) for name, each in sorted(replies.items())]
        return [view for view in views if view.holders or view.waiters or view.free_in > 0]

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        raise Unsupported(
            f"{self!r} keeps no values with versions: its servers are independent, so they cannot agree on one; "
            "use another store"
        )

    # --- life cycle ---------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.redis.doctor import redlock

        return await redlock.diagnose(self._runtime, self._quorum, self._namespace, self._quarantine)

    async def close(self) -> None:
        self._pending.stop()  # before the connections: what fails from here on is not sent again
        await self._quorum.close()
        await self._pending.join(CLOSE_WITHIN)
        await self._waiting.close(CLOSE_WITHIN)

    def after_fork(self) -> None:
        self._quorum.after_fork(self._channel())
        self._pending.after_fork()
        self._waiting.after_fork()
        self._proposals.after_fork()

    def _after_renewal(
        self,
        tickets: Sequence[tuple[str, Ticket]],
        holding: Sequence[tuple[str, Ticket]],
        results: Mapping[str, RenewalResult],
        answers: Mapping[int, Mapping[str, int]],
    ) -> None:
        """Keep renewed tickets in memory. Ask nodes that do not know a holder, as after a restart, for their votes.

        That extends no hold. Where too few nodes confirmed the renewal, such a vote may let the next one succeed. It is
        not asked for a ticket that still tries to acquire without waiting: nobody would give it back if that fails.
        """
        now = self._runtime.now()
        for _, ticket in tickets:
            proposal = self._proposals.get(ticket.id)
            if proposal is not None and results[ticket.id] in (RenewalResult.HELD, RenewalResult.QUEUED):
                proposal.known_from(now)
        for _, ticket in holding:
            proposal = self._proposals.get(ticket.id)
            if proposal is None or not proposal.won or not proposal.lacking or results[ticket.id] is RenewalResult.GONE:
                continue
            if any(found.get(ticket.id) == protocol.HELD for found in answers.values()):
                lacking = [node for node in self._quorum.nodes if node.index in proposal.lacking]
                self._rounds.ask_missing_votes(proposal, lacking)

    def _note_missing_votes(self, node: Node, holding: Sequence[tuple[str, Ticket]], found: Mapping[str, int]) -> None:
        """Note which holders lack a node's vote, by its answer to their renewal."""
        for _, ticket in holding:
            proposal, answer = self._proposals.get(ticket.id), found.get(ticket.id)
            if proposal is None or answer is None:
                continue
            if answer == protocol.GONE:
                proposal.lacking.add(node.index)
            else:
                proposal.lacking.discard(node.index)

    def _refuse(self, ticket: Ticket) -> None:
        if self._duplicate is not None:
            raise self._duplicate
        longest = protocol.life(ticket)
        if self._quarantine and longest > self._quarantine:
            raise Unsupported(
                f"a lease (with its delay) of {longest:g} s is longer than the quarantine of {self._quarantine:g} s "
                "after a restart of a node; shorten the one, or lengthen the other for all clients"
            )

    def _on_identity(self) -> None:
        if same := nodes_of_same_server(self._quorum.nodes):
            self._duplicate = Unsupported(
                f"{same[0].where} and {same[1].where} are the same server; name it once: each node of Redlock must be "
                "a server of its own, or one failure takes away two votes"
            )
            raise self._duplicate

    def _at_node(self, command: Command) -> Command:
        """Return what is sent to a node for a command of the protocol."""
        return command

    async def _check_more(self, node: Node, within: float) -> None:
        """Check the rights of a node's user that votes of our own do not need.

        Raises:
            NotPermitted: it lacks some, which the error names.
        """

    def _on_message(self, node: Node, message: bytes) -> None:
        self._waiting.on_message(node, message)

    def _on_silence(self) -> None:
        self._waiting.on_silence()

    def _channel(self) -> bytes:
        return keys.channel(self._namespace, ticket_id(self._runtime.random_bytes(16)))

    def __repr__(self) -> str:
        return f"<RedlockStore {self._quorum.where} namespace={self._namespace!r}>"
