"""The renewal of the leases of holders, and of the queue entries of waiters, in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from leasehold._model import RenewalResult, Ticket
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import DEMOTED, ReplyError, Transport
from leasehold.stores.redis.handover import Waiters
from leasehold.stores.redis.scripts import commands
from leasehold.stores.redis.scripts.calls import Calls
from leasehold.stores.redis.scripts.commands import Batch

Refusal = tuple[Sequence[Ticket], ReplyError]
"""The tickets of one command, and the error with which the server answered it."""

_RESULTS = (RenewalResult.GONE, RenewalResult.HELD, RenewalResult.QUEUED, RenewalResult.UNKNOWN)
"""What each number in a reply of the renewal scripts means."""


class Renewing:
    """Renews tickets at one server: those in ``waiters``, and holders.

    ``slot_of`` returns the hash slot of a name: no command has names of two slots.
    """

    def __init__(
        self,
        runtime: Runtime,
        namespace: str,
        transport: Transport,
        calls: Calls,
        waiters: Waiters,
        slot_of: Callable[[str], int],
    ) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self._transport = transport
        self._calls = calls
        self._waiters = waiters
        self._slot_of = slot_of

    async def renew(
        self, tickets: Sequence[tuple[str, Ticket]], *, within: float, alone: bool
    ) -> tuple[dict[str, RenewalResult], list[Refusal]]:
        """Renew; return the results by ticket id, and the tickets of commands that the server refused.

        ``alone``: each holder by a command of its own.

        Raises:
            StoreUnavailable: the server did not reply.
        """
        results: dict[str, RenewalResult] = {}
        refusals: list[Refusal] = []
        waiting = [(name, ticket) for name, ticket in tickets if ticket.id in self._waiters]
        holding = [(name, ticket) for name, ticket in tickets if ticket.id not in self._waiters]
        batches = [*self._of_holders(holding, alone), *commands.waiter_renewals(self._namespace, waiting)]
        since = self._runtime.now()
        replies = await self._calls.run_all([batch.command for batch in batches], within=within)
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReplyError):
                refusals.append((batch.tickets, reply))
                continue
            if batch.waiting:
                self._waiters.sample_clock(since, int(reply.pop(0)))
            for ticket, number in zip(batch.tickets, reply, strict=True):
                results[ticket.id] = _RESULTS[number]
        self._waiters.renewed(results, {name for name, _ in waiting})
        if any(reply.code in DEMOTED for _, reply in refusals):
            self._transport.hang_up()
        return results, refusals

    def _of_holders(self, holding: Sequence[tuple[str, Ticket]], alone: bool) -> Iterator[Batch]:
        groups: dict[str | int, list[tuple[str, Ticket]]] = defaultdict(list)
        for name, ticket in holding:
            groups[ticket.id if alone else self._slot_of(name)].append((name, ticket))
        for group in groups.values():
            yield from commands.renewals(self._namespace, group)
