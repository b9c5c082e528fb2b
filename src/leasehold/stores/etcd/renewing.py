"""Renewals of one batch: a keep-alive for each session concerned, then one read of all the keys.

A hold with a lease of its own has a session of its own, so a batch may have hundreds of keep-alives. If some get no
response, or there is no time for all, those that were answered are confirmed nevertheless; the others are repeated.

The read is a transaction through Raft's log. So it confirms the keep-alives (``sessions.py``), and is never stale. If
it does not confirm them, because etcd has another leader, both are sent once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.at_once import for_each
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.keys import Json, Keys, found, key_of, only, ranged, span, txn
from leasehold.stores.etcd.sessions import KeepAlive, Session, Sessions, through_log
from leasehold.stores.etcd.waiting import TicketState, Watch

PER_LOOK = 40
"""Tickets in one transaction that reads: each needs up to two operations, and etcd allows 128."""

PER_REMOVAL = 32
"""Tickets in one transaction that removes: each needs up to four operations."""

ATTEMPTS = 2
"""Attempts to renew a batch until that is confirmed: the second one reaches the leader that replaced another."""

FOR_KEEP_ALIVES = 2 / 3
"""Part of the time that the keep-alives of several sessions may take: the rest is for their confirmation."""

GRACE = 0.05
"""Seconds for the watch to report a deletion that a renewal has just seen."""


Asked = tuple[TicketState, KeepAlive]
"""A ticket, and the keep-alive on which its result depends."""

Removal = tuple[TicketState, list[Json]]
"""A ticket, and the operations that remove its keys."""

Results = dict[TicketState | None, RenewalResult | StoreUnavailable]
"""The results so far; without one, the ticket is gone."""


class Renewals:
    """Renews tickets, and removes those that are no longer renewed although their session lives."""

    def __init__(self, runtime: Runtime, gateway: Gateway, sessions: Sessions, watch: Watch, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._sessions = sessions
        self._watch = watch
        self._keys = keys

    async def renew(
        self, tickets: Sequence[TicketState | None], abandoned: Sequence[TicketState], until: float
    ) -> tuple[list[RenewalResult | StoreUnavailable], set[TicketState]]:
        """Renew; return the results in order, and the expired tickets whose key may still exist.

        ``abandoned`` are other tickets of the client that have expired and whose removal has begun.
        """
        sent, results = self._runtime.now(), Results()
        living, expired, late = list[TicketState](), list[TicketState](), list[TicketState]()
        for one in tickets:
            if one is not None:
                (living if sent < one.until else expired).append(one)
        asked = await self._kept_alive(living, results, until)
        for attempt in range(ATTEMPTS):
            if attempt:
                asked = await self._kept_alive([state for state, _ in asked], results, until)
            looks = [asked[start : start + PER_LOOK] for start in range(0, len(asked), PER_LOOK)]
            asked = list[Asked]()
            for unconfirmed in await for_each(self._runtime, looks, lambda look: self._look(look, results, until)):
                if isinstance(unconfirmed, BaseException):
                    raise unconfirmed
                asked += unconfirmed
        # Afterwards: whatever this takes, the others are renewed.
        for one in expired:
            if one.begin_removal(sent):
                late.append(one)
                one.set()  # a waiter joins the queue again
            else:
                results[one] = RenewalResult.UNKNOWN  # an acquire finds out
        not_removed = await self.remove_keys([*late, *abandoned], until)
        return [results.get(one, RenewalResult.GONE) for one in tickets], set(not_removed)

    async def _kept_alive(self, living: Sequence[TicketState], results: Results, until: float) -> list[Asked]:
        """Send the keep-alives; return the tickets whose keys are to be read."""
        sessions = list(dict.fromkeys(state.session for state in living))
        if len(sessions) > 1:
            now = self._runtime.now()
            until = now + FOR_KEEP_ALIVES * (until - now)
        answers = await for_each(
            self._runtime, sessions, lambda session: self._sessions.renew(session, until, urgent=True)
        )
        by_session = dict(zip(sessions, answers, strict=True))
        asked = list[Asked]()
        for state in living:
            answer = by_session[state.session]
            results[state] = answer if isinstance(answer, StoreUnavailable) else RenewalResult.GONE
            if isinstance(answer, KeepAlive):
                asked.append((state, answer))
            elif answer is None:
                state.set()
            elif not isinstance(answer, StoreUnavailable):
                raise answer
        return asked

    async def _look(self, some: Sequence[Asked], results: Results, until: float) -> list[Asked]:
        """Read which keys exist, and wake waiters whose blocker is gone although the watch did not report it.

        Return the tickets whose keep-alive is not confirmed by this.
        """
        operations, waiting = list[Json](), [(state, state.blockers) for state, _ in some]
        for state, blockers in waiting:
            operations.append(ranged(only(state.key), keys_only=True))
            if blockers:
                operations.append(self._ahead(state, blockers))
        try:
            body = through_log(self._keys, operations)
            response = await self._gateway.call("/v3/kv/txn", body, until, urgent=True)
        except StoreUnavailable as error:
            results.update(dict.fromkeys((state for state, _ in some), error))
            return []
        at, missed, unconfirmed = 0, list[TicketState](), list[Asked]()
        for (state, renewal), (_, blockers) in zip(some, waiting, strict=True):
            if not found(response, at):
                state.set()
            elif state.session.confirm(renewal, response):
                results[state] = RenewalResult.HELD if state.held else RenewalResult.QUEUED
                state.until = state.session.until
            else:
                results[state] = RenewalResult.UNKNOWN
                unconfirmed.append((state, renewal))
            at += 1
            if blockers:
                if blockers - {key_of(kv) for kv in found(response, at)}:
                    missed.append(state)
                at += 1
        await self._wake(missed)
        return unconfirmed

    def _ahead(self, state: TicketState, blockers: frozenset[str]) -> Json:
        if len(blockers) == 1:
            return ranged(only(next(iter(blockers))), keys_only=True)
        return ranged(span(state.queue), keys_only=True)

    async def _wake(self, missed: Sequence[TicketState]) -> None:
        """Wake the waiters whose blocker is gone; if the watch does not report that now, it is dead."""
        if missed:
            await self._runtime.sleep(GRACE)
        unnotified = [state for state in missed if state.blockers and not state.notified]
        for state in unnotified:
            state.set()
        if unnotified:
            self._watch.reopen()

    async def remove_keys(self, those: Sequence[TicketState], until: float) -> dict[TicketState, StoreUnavailable]:
        """Delete the keys of tickets that have expired under a session that other tickets keep alive.

        Return those for which that is not confirmed, with the reason. The next batch must find them again, since their
        session would keep the keys for ever.
        """
        groups = defaultdict[Session | None, list[Removal]](list)
        for state in those:
            operations = state.removal()
            # One with a tombstone is refused if its session has ended, and with it the whole transaction.
            groups[state.session if "request_put" in operations[-1] else None].append((state, operations))
        batches = [
            some[start : start + PER_REMOVAL] for some in groups.values() for start in range(0, len(some), PER_REMOVAL)
        ]
        not_removed = dict[TicketState, StoreUnavailable]()
        answers = await for_each(self._runtime, batches, lambda some: self._remove(some, until))
        for some, failed in zip(batches, answers, strict=True):
            if isinstance(failed, StoreUnavailable):
                not_removed.update((state, failed) for state, _ in some)
            elif failed is not None:
                raise failed
        return not_removed

    async def _remove(self, some: Sequence[Removal], until: float) -> None:
        body = txn([], [one for _, operations in some for one in operations])
        try:
            await self._gateway.call("/v3/kv/txn", body, until, urgent=True)
        except Refused:
            pass  # with their lease the keys are gone, and a late request fails
