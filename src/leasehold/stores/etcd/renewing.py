"""Renewals of one batch: a keep-alive for each session concerned, then one look at all the keys.

The look is a transaction through Raft's log: it confirms the keep-alives (``confirming.py``), and is never out of date.
If it does not confirm them, since etcd has another leader, both are sent once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import RenewalResult
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.confirming import KeepAlive, through_log
from leasehold.stores.etcd.connection.errors import Meaning, Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.keys import Json, Keys, deleted, found, only, put, ranged, span, txn, unb64
from leasehold.stores.etcd.sessions import Sessions
from leasehold.stores.etcd.waiting import Mine, Watch

PER_LOOK = 40
"""Tickets in one transaction: each has up to two operations in it, and etcd allows 128."""

ATTEMPTS = 2
"""How often a batch is renewed until that is confirmed: the second time by the leader that replaced another."""

GRACE = 0.05
"""Seconds for the watch to tell what a renewal has just seen."""


Asked = tuple[int, Mine, KeepAlive]
"""A ticket that is looked for, where its standing goes, and the keep-alive on which that rests."""


class Renewals:
    """Renews tickets, and takes out those that nobody renews any more though their session lives on."""

    def __init__(self, runtime: Runtime, gateway: Gateway, sessions: Sessions, watch: Watch, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._sessions = sessions
        self._watch = watch
        self._keys = keys

    async def renew(
        self, tickets: Sequence[Mine | None], abandoned: Sequence[Mine], within: float
    ) -> tuple[list[RenewalResult], set[Mine]]:
        """Renew; answer for each in order, and say whose key may still be there though its time is over.

        ``abandoned`` are others of the client whose time is over, and that are doomed.
        """
        until, sent = self._runtime.now() + within, self._runtime.now()
        results = [RenewalResult.GONE] * len(tickets)
        living = [(index, mine) for index, mine in enumerate(tickets) if mine is not None and sent < mine.until]
        asked = await self._kept_alive(living, results, until)
        late = list[Mine]()
        for index, one in enumerate(tickets):
            if one is not None and sent >= one.until:
                if one.dooms():
                    late.append(one)
                    one.set()  # one that waits stands in the queue anew
                else:
                    results[index] = RenewalResult.UNKNOWN  # the claim under way finds out
        left_behind = await self.take_out([*late, *abandoned], until)
        for attempt in range(ATTEMPTS):
            if attempt:
                asked = await self._kept_alive([(index, mine) for index, mine, _ in asked], results, until)
            looks = [asked[start : start + PER_LOOK] for start in range(0, len(asked), PER_LOOK)]
            asked = [one for look in looks for one in await self._look(look, results, until)]
        return results, set(left_behind)

    async def _kept_alive(
        self, living: Sequence[tuple[int, Mine]], results: list[RenewalResult], until: float
    ) -> list[Asked]:
        """Send the keep-alives, and return whom to look for."""
        sessions = list(dict.fromkeys(mine.session for _, mine in living))
        answers = await self._runtime.gather(*(self._sessions.renew(one, until, urgent=True) for one in sessions))
        said = dict(zip(sessions, answers, strict=True))
        asked = list[Asked]()
        for index, mine in living:
            answer = said[mine.session]
            results[index] = RenewalResult.UNKNOWN if isinstance(answer, StoreUnavailable) else RenewalResult.GONE
            if isinstance(answer, KeepAlive):
                asked.append((index, mine, answer))
            elif answer is None:
                mine.set()
            elif not isinstance(answer, StoreUnavailable):
                raise answer
        return asked

    async def _look(self, some: Sequence[Asked], results: list[RenewalResult], until: float) -> list[Asked]:
        """See which keys are there, and for those who wait whether whom they wait for has gone unheard of.

        Return those whose keep-alive it does not confirm.
        """
        operations, waiting = list[Json](), [(mine, mine.blockers) for _, mine, _ in some]
        for mine, blockers in waiting:
            operations.append(ranged(only(mine.key), keys_only=True))
            if blockers:
                operations.append(self._ahead(mine, blockers))
        left = max(until - self._runtime.now(), 0.001)
        try:
            body = through_log(self._keys, operations)
            said = await self._gateway.call("/v3/kv/txn", body, within=left, urgent=True)
        except StoreUnavailable:
            for index, _, _ in some:
                results[index] = RenewalResult.UNKNOWN
            return []
        at, unheard, unconfirmed = 0, list[Mine](), list[Asked]()
        for (index, mine, kept), (_, blockers) in zip(some, waiting, strict=True):
            if not found(said, at):
                mine.set()
            elif mine.session.confirm(kept, said):
                results[index] = RenewalResult.HELD if mine.held else RenewalResult.QUEUED
                mine.until = mine.session.until
            else:
                results[index] = RenewalResult.UNKNOWN
                unconfirmed.append((index, mine, kept))
            at += 1
            if blockers:
                if blockers - {unb64(kv["key"]).decode("utf-8", "replace") for kv in found(said, at)}:
                    unheard.append(mine)
                at += 1
        await self._wake(unheard)
        return unconfirmed

    def _ahead(self, mine: Mine, blockers: frozenset[str]) -> Json:
        if len(blockers) == 1:
            return ranged(only(next(iter(blockers))), keys_only=True)
        return ranged(span(self._keys.queue(mine.name)), keys_only=True)

    async def _wake(self, unheard: Sequence[Mine]) -> None:
        """Wake those whose blocker is gone; if the watch does not say so just now, it is dead."""
        if unheard:
            await self._runtime.sleep(GRACE)
        deaf = [mine for mine in unheard if mine.blockers and not mine.news]
        for mine in deaf:
            mine.set()
        if deaf:
            self._watch.suspect()

    async def take_out(self, those: Sequence[Mine], until: float) -> dict[Mine, StoreUnavailable]:
        """Delete keys that outlived their ticket's lease under a session that others keep alive.

        Return those of whom that is not confirmed, with the reason: the next batch must find them again, since their
        session would keep their keys for ever.
        """
        for start in range(0, len(those), PER_LOOK):
            some = those[start : start + PER_LOOK]
            keys = [key for mine in some if not mine.unknown for key in (mine.key, mine.mark)]
            body = txn([], [deleted(only(key)) for key in keys])
            try:
                await self._bury([mine for mine in some if mine.unknown], until)
                await self._gateway.call(
                    "/v3/kv/txn", body, within=max(until - self._runtime.now(), 0.001), urgent=True
                )
            except StoreUnavailable as reason:
                return dict.fromkeys(those[start:], reason)
        return {}

    async def _bury(self, those: Sequence[Mine], until: float) -> None:
        """Delete keys whose claim may yet arrive, and see to it that it does nothing then."""
        for mine in those:
            grave = put(self._keys.grave(mine.entry), b"", mine.session.id)
            left = max(until - self._runtime.now(), 0.001)
            try:
                await self._gateway.call(
                    "/v3/kv/txn", txn([], [deleted(only(mine.key)), deleted(only(mine.mark)), grave]), within=left
                )
            except Refused as refused:
                if refused.meaning is not Meaning.LEASE:  # else key and claim have ended with it
                    raise
