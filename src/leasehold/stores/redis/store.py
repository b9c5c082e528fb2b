"""The Redis store: claims, hand-overs and renewals as scripts, one round trip each.

Theory of operation
-------------------
All state of a name is in four keys of one slot (see ``scripts/common.lua``). The server's clock alone decides what
has expired. A lease is the time to live of the lock's key, less a constant by which the key, and with it the token,
outlives the lease; so a renewal is one PEXPIRE, which a server without memory still carries out.

A release hands the lock to the first waiter in the same script and tells that waiter's client alone, on a channel of
its own. Messages are hints that may be lost. Whoever waits asks again after each new subscription; the watchdog's
renewal of its place, at a third of the lease, finds a grant that nobody heard of; and one waiter of each client has a
timer that ends with the holder's lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from leasehold._model import (
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
    ticket_id,
)
from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.cells import check_size
from leasehold.stores._common.uses import wrong_kind
from leasehold.stores.redis import inspecting, keys
from leasehold.stores.redis.connection.base import (
    DEMOTED,
    MakeTransport,
    NotPermitted,
    Redirected,
    ReplyError,
    Transport,
    refused,
)
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.wait_connection import aio_transport
from leasehold.stores.redis.doctor import doctor, rights
from leasehold.stores.redis.scripts import CELL, CLAIM, LEAVE, LOOK, batching, commands
from leasehold.stores.redis.scripts.calls import Calls
from leasehold.stores.redis.scripts.command_templates import CommandTemplates
from leasehold.stores.redis.scripts.commands import Batch, Command
from leasehold.stores.redis.strict import checks, strict
from leasehold.stores.redis.unanswered import Unanswered
from leasehold.stores.redis.waiting import ASK_AGAIN_AT_LEAST, Waiting

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening the subscription may take."""


def single_transport(runtime: Runtime) -> MakeTransport:
    """Return what makes the transport of one server.

    Raises:
        Unsupported: the runtime is a simulated one, which has models for servers.

    """
    if runtime.flavor is Flavor.SIMULATED:
        raise Unsupported("a real Redis cannot be reached from the simulated runtime; use a memory: store there")
    return BlockingTransport if runtime.flavor is Flavor.SYNC else aio_transport


class RedisStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(shared=True, permits=True, together=True, crash_bound="within the lease + 250 ms")

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        namespace: str,
        *,
        make: MakeTransport | None = None,
        tune: Callable[[Redirected | None], bytes] | None = None,
        apart: Callable[[str], int] | None = None,
        marker: Callable[[bool], bytes] | None = None,
        unanswered: Unanswered | None = None,
    ) -> None:
        make = make or single_transport(runtime)
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._tune = tune or self._any_channel
        self._apart = apart
        self._channel = self._tune(None)
        self._waiting = Waiting(runtime, lambda slot: self._transport.notify(slot))
        self._templates = CommandTemplates(namespace)
        self._unanswered = Unanswered() if unanswered is None else unanswered
        self._strict: strict.Claims | None = None
        if (demanded := settings.strict) is not None:
            self.capabilities = replace(self.capabilities, together=False, longest=demanded.longest)
            self._strict = strict.Claims(demanded, settings, marker or (lambda _: keys.marker_key(namespace, "")))
        self._rights_known = not settings.restricted
        self._transport: Transport = make(runtime, settings, self._channel, self._waiting.heard, self._waiting.wake_all)
        self._calls = Calls(self._transport, self.where, self.host, self._check_rights)

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    @property
    def transport(self) -> Transport:
        """What it talks through."""
        return self._transport

    @property
    def host(self) -> str:
        """Its host."""
        return str(self._settings.options.get("host", ""))

    @property
    def port(self) -> int:
        """Its port."""
        return int(self._settings.options.get("port", 0))

    # --- the six -----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        terms = ticket.terms
        if not self._rights_known:
            await self._know_rights(within)
        slot = self._waiting.add(name, ticket) if join else None  # before the claim: a message may overtake its reply
        generation, since = self._transport.generation(), self._runtime.now()
        channel = self._channel if generation else b""  # without one it asks again as soon as it can be told
        doubtful = self._unanswered
        again = ticket.id in doubtful
        doubtful[ticket.id] = None  # until it is answered: a leave may overtake it
        try:
            if self._strict is not None:
                reply = await self._claim_strictly(name, ticket, join=join, channel=channel, within=within)
            elif terms.mode.kind is Kind.MUTEX:
                packed = self._templates.try_acquire(name, ticket, join=join, channel=channel)
                reply = await self._transport.call(packed, within=within)
                if isinstance(reply, ReplyError):
                    reply = await self._calls.once_more(CLAIM, packed, reply, within)
            else:
                command = commands.try_acquire(self._namespace, name, ticket, join=join, channel=channel)
                reply = await self._calls.run(*command, within=within)
        except StoreUnavailable as error:
            if not error.unknown:
                if not again:
                    doubtful.pop(ticket.id, None)
                if slot is not None and not slot.asked:
                    self._waiting.give_up(ticket)  # the server does not know it, so nobody will leave for it
            raise
        if not again:
            doubtful.pop(ticket.id, None)
        if reply[0] == 1:
            if slot is not None:
                self._waiting.granted(ticket)
            return Granted(int(reply[1]), since, terms.lease)
        if reply[0] == 2:
            raise wrong_kind(name, reply[1].decode(), terms.mode)
        if reply[0] == strict.QUARANTINED:
            return Wait(
                generation, int(reply[1]) / 1000 + ASK_AGAIN_AT_LEAST, blocked_why=strict.quarantine_reason(self.where)
            )
        after = self._waiting.told_to_wait(slot, ticket, since, int(reply[1]), int(reply[2]) / 1000)
        return Wait(generation, after, _owner(reply))

    async def _claim_strictly(self, name: str, ticket: Ticket, *, join: bool, channel: bytes, within: float) -> Any:
        """Claim; a grant that too few replicas have is given back."""
        command = commands.try_acquire(self._namespace, name, ticket, join=join, channel=channel)
        assert self._strict is not None
        try:
            reply = await self._strict.ask(self._transport, command, within=within)
        except strict.Unconfirmed as error:
            try:
                if (mine := self._waiting.get(ticket.id)) is not None:
                    self._waiting.drop(mine, ticket)
                # Later claims are not refused: the same ticket is claimed again.
                await self._calls.run(
                    *commands.release(self._namespace, name, ticket, ReleaseReason.RELEASE), within=within
                )
            except StoreUnavailable:
                error.unknown = True  # so whoever asked leaves later
            raise
        if isinstance(reply, ReplyError):
            raise await self._calls.refused(reply, within)
        return reply

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        await self._know_rights(within)
        since, answers = self._runtime.now(), list[Granted | Wait]()
        asked = [ticket.id for _, ticket in claims]
        again = self._unanswered.keys() & asked
        self._unanswered.update(dict.fromkeys(asked))
        try:
            back, *replies = await self._calls.run(
                *batching.try_acquire(self._namespace, claims, keep=keep), within=within
            )
        except StoreUnavailable as error:
            if not error.unknown:
                self._unanswered.forget(again.symmetric_difference(asked))
            raise
        self._unanswered.forget(again.symmetric_difference(asked))
        for (name, ticket), reply in zip(claims[back:], replies, strict=False):
            if reply[0] == 2:
                raise wrong_kind(name, reply[1].decode(), ticket.terms.mode)
            if reply[0] == 1:
                answers.append(Granted(int(reply[1]), since, ticket.terms.lease))
            else:
                answers.append(Wait(None, 0.0, _owner(reply)))
        return answers

    async def _know_rights(self, within: float) -> None:
        if not self._rights_known:
            await self._check_rights(within)
            self._rights_known = True

    async def _check_rights(self, within: float) -> None:
        where, strict = self._settings.where, self._strict is not None
        await rights.check(self._transport, where, self._namespace, self._channel, within=within, info=strict)

    async def release_many(self, leaves: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        for _, ticket in leaves:
            self._waiting.give_up(ticket)
        asked = [self._leave(name, ticket, ReleaseReason.RELEASE) for name, ticket in leaves]
        self._unanswered.limit()
        replies = await self._calls.run_all(asked, within=within)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise await self._calls.refused(reply, within)
        self._unanswered.forget(ticket.id for _, ticket in leaves)
        return [reply == 1 for reply in replies]

    def _leave(self, name: str, ticket: Ticket, reason: ReleaseReason) -> Command:
        if ticket.id in self._unanswered and reason is ReleaseReason.RELEASE:
            return commands.leave_and_refuse(self._namespace, name, ticket)
        return commands.release(self._namespace, name, ticket, reason)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        if (mine := self._waiting.get(ticket.id)) is not None:
            self._waiting.drop(mine, ticket)  # the client closes, and somebody may still wait
        if ticket.terms.mode.kind is Kind.MUTEX and ticket.id not in self._unanswered:
            packed = self._templates.release(name, ticket, reason)
            found = await self._transport.call(packed, within=within)
            if isinstance(found, ReplyError):
                found = await self._calls.once_more(LEAVE, packed, found, within)
        else:
            self._unanswered.limit()
            found = await self._calls.run(*self._leave(name, ticket, reason), within=within)
            if reason is ReleaseReason.RELEASE:
                self._unanswered.forget((ticket.id,))
        return bool(found == 1)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        results, _ = await self.renewals(tickets, within=within)
        return [results.get(ticket.id, RenewalResult.UNKNOWN) for _, ticket in tickets]

    async def renewals(
        self, tickets: Sequence[tuple[str, Ticket]], *, within: float, alone: bool = False
    ) -> tuple[dict[str, RenewalResult], list[tuple[Sequence[Ticket], ReplyError]]]:
        """Renew; return the standings of those of whom the server told, and which tickets it refused to look at.

        ``alone``: each holder by a command of its own.
        """
        results: dict[str, RenewalResult] = {}
        refusals: list[tuple[Sequence[Ticket], ReplyError]] = []
        waiting = [(name, ticket) for name, ticket in tickets if ticket.id in self._waiting]
        holding = [(name, ticket) for name, ticket in tickets if ticket.id not in self._waiting]
        batches = [*self._renewals_of(holding, alone), *commands.stays(self._namespace, waiting)]
        since = self._runtime.now()
        replies = await self._calls.run_all([batch.command for batch in batches], within=within)
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReplyError):
                refusals.append((batch.tickets, reply))
                continue
            if batch.stays:
                self._waiting.saw(since, int(reply.pop(0)))
            results.update(zip((ticket.id for ticket in batch.tickets), map(_standing, reply), strict=True))
        self._waiting.renewed(results, {name for name, _ in waiting})
        if any(reply.code in DEMOTED for _, reply in refusals):
            self._transport.hang_up()
        return results, refusals

    def _renewals_of(self, holding: Sequence[tuple[str, Ticket]], alone: bool) -> Iterator[Batch]:
        """Yield the commands that renew holders: where names live apart, none with names of two places."""
        if alone:
            for one in holding:
                yield from commands.renewals(self._namespace, [one])
            return
        if self._apart is None:
            yield from commands.renewals(self._namespace, holding)
            return
        places: dict[int, list[tuple[str, Ticket]]] = defaultdict(list)
        for name, ticket in holding:
            places[self._apart(name)].append((name, ticket))
        for some in places.values():
            yield from commands.renewals(self._namespace, some)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        slot = self._waiting.get(ticket.id)
        if slot is None:
            return None
        try:
            generation = await self._transport.listen(max(min(SUBSCRIBE_WITHIN, timeout), 0.001))
        except NotPermitted:
            raise  # it will never be heard, and asking again and again would hide it
        except Redirected as error:
            self._channel = self._tune(error)  # the slot of its channel has moved
            self._transport.retune(self._channel)
            await self._runtime.sleep(min(timeout, 0.05))
            return None
        except StoreUnavailable:
            await self._runtime.sleep(min(timeout, 0.05 + 0.1 * self._runtime.jitter()))
            return None
        if generation != mark:
            return None  # a release before the subscription was told to nobody: ask once more
        until = self._runtime.now() + timeout
        while not slot.called:
            await self._transport.hear(slot, max(0.0, until - self._runtime.now()))
            if slot.handed_over is None:
                break
            until, slot.handed_over = min(until, slot.handed_over), None  # it watches a lease from now on
            slot.clear()
        if self._strict is not None:
            slot.read()
            return None  # a claim of its own must say that it holds, and wait for the replicas
        return self._waiting.inherited(slot, ticket)

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        names = [prefix] if exact else [name async for name in self._calls.names(self._namespace, prefix, within=5.0)]
        found: list[View] = []
        for some in commands.chunks(names, commands.PER_SCRIPT):
            looks: list[Command] = [(LOOK, keys.shared_keys(self._namespace, name), ()) for name in some]
            for name, reply in zip(some, await self._calls.run_all(looks, within=5.0), strict=True):
                if isinstance(reply, ReplyError):
                    raise refused(self.where, reply, self.host)
                view = inspecting.view(name, reply)
                if view.holders or view.waiters or view.free_in > 0:
                    found.append(view)
        return found

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        check_size(change)
        reply = await self._calls.run(
            CELL,
            (keys.cell_key(self._namespace, name),),
            (
                b"0" if change.value is None else b"1",
                change.value or b"",
                b"" if change.if_version is None else b"%d" % change.if_version,
                b"" if change.fence is None else b"%d" % change.fence,
                b"%d" % commands.ms(change.ttl),
            ),
            within=5.0,
        )
        return Cell(reply[0], int(reply[1]), int(reply[2]), changed=reply[3] == 1)

    # --- the rest ----------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        found = await doctor.diagnose(self._runtime, self._transport, self._settings, self._namespace, self._channel)
        if (demanded := self._settings.strict) is None or self._strict is None:
            return found
        state = await checks.state(self._transport, demanded, self._strict.marker)
        return [*checks.judged(found, demanded), state]

    async def close(self) -> None:
        await self._transport.close()

    def after_fork(self) -> None:
        self._waiting.forget_all()
        self._unanswered.clear()
        self._channel = self._tune(None)
        self._transport.after_fork(self._channel)

    def drop(self, ticket: Ticket) -> None:
        """Forget a ticket that waits: from now on it waits elsewhere, and whoever waits for it here asks again."""
        if (slot := self._waiting.get(ticket.id)) is not None:
            self._waiting.drop(slot, ticket)

    def knows(self, ticket: Ticket) -> bool:
        """Say whether a ticket waits here, or is about to."""
        return ticket.id in self._waiting

    def wake_all(self) -> None:
        """Let all who wait ask again."""
        self._waiting.wake_all()

    def _any_channel(self, moved: Redirected | None) -> bytes:
        return keys.channel(self._namespace, ticket_id(self._runtime.random_bytes(16)))

    def __repr__(self) -> str:
        return f"<RedisStore {self._settings.where} namespace={self._namespace!r}>"


def _owner(reply: Any) -> Owner | None:
    """Read who holds from the reply to a claim that waits."""
    return _parsed(reply[3]) if len(reply) > 3 and reply[3] else None


@lru_cache(maxsize=256)
def _parsed(owner: bytes) -> Owner:
    """Read an owner; all who wait for the same one share it."""
    return Owner.parse(owner.decode())


_RESULTS = (RenewalResult.GONE, RenewalResult.HELD, RenewalResult.QUEUED, RenewalResult.UNKNOWN)


def _standing(reply: int) -> RenewalResult:
    return _RESULTS[reply]
