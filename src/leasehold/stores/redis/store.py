"""The Redis store on one server: each acquire, release and renewal is one script call and one round trip.

Theory of operation
-------------------
All state of a name is in four keys of one slot (see ``scripts/common.lua``). The server's clock alone decides what has
expired. A lease is the time to live of the lock's key, less a constant. By that constant the key, and with it the
token, outlives the lease. So a renewal is one PEXPIRE, which a server without free memory still carries out.

A release grants the lock to the first waiter in the same script, and notifies that waiter's client alone, on the
client's own channel. Messages may be lost, so none is needed for progress:

* A waiter retries after each new subscription.
* The watchdog renews the waiter's queue entry at a third of the lease, and that finds a grant whose message was lost.
* One waiter of each name has a timer that ends with the holder's lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
    ticket_id,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.cells import check_size
from leasehold.stores._common.slots import Slot
from leasehold.stores._common.unanswered import Unanswered
from leasehold.stores.redis import inspecting, keys
from leasehold.stores.redis.connection import base
from leasehold.stores.redis.connection.base import NotPermitted, Redirected, ReplyError
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.handover import RETRY_AFTER_EXPIRY, Waiters
from leasehold.stores.redis.renewing import Refusal, Renewing
from leasehold.stores.redis.scripts import CLAIM, RELEASE, commands
from leasehold.stores.redis.scripts.calls import Calls
from leasehold.stores.redis.scripts.command_templates import CommandTemplates
from leasehold.stores.redis.scripts.commands import Command
from leasehold.stores.redis.strict import strict

MUTEX = Kind.MUTEX

Ask = Callable[[bytes, float], list[Any]]
"""Sends one command, waits for the reply for so many seconds, and returns it, in a list."""

Asleep = Callable[[Waiters, Slot, Ticket, float], Awaitable[Granted | None]]

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening the subscription may take."""


class RedisStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(shared=True, permits=True, batches=True, crash_bound="within the lease + 250 ms")

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        namespace: str,
        *,
        make: base.MakeTransport | None = None,
        choose_channel: Callable[[Redirected | None], bytes] | None = None,
        slot_of: Callable[[str], int] = lambda name: 0,
        marker: Callable[[bool], bytes] | None = None,
        unanswered: Unanswered | None = None,
    ) -> None:
        """Make the store of one server; it connects at the first use.

        Args:
            runtime: of the client.
            settings: of the server.
            namespace: of the client.
            make: makes the transport.
            choose_channel: returns the client's channel; again, with the redirection, when its slot has moved.
            slot_of: returns the hash slot of a name; no script has keys of two slots.
            marker: returns the key of strict mode's marker; see `strict.Claims`.
            unanswered: the tickets of unanswered claims, where several stores share them.
        """
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._choose_channel = choose_channel or self._new_channel
        self._channel = self._choose_channel(None)
        self._waiters = Waiters(runtime)
        self.wake_all = self._waiters.wake_all
        self._templates = CommandTemplates(namespace)
        self._unanswered = Unanswered() if unanswered is None else unanswered
        self._strict: strict.Claims | None = None
        if (demanded := settings.strict) is not None:
            self.capabilities = replace(self.capabilities, batches=False, longest=demanded.longest)
            self._strict = strict.Claims(demanded, settings, marker or (lambda _: keys.marker_key(namespace, "")))
        self._rights_known = not settings.restricted
        if settings.restricted:  # the first acquire asks it, and nothing is imported then
            import_module("leasehold.stores.redis.rights")
        self.transport = self._transport = (make or single_transport(runtime))(
            runtime, settings, self._channel, self._waiters.receive, self._waiters.wake_all
        )
        self._waiters.notify = self._transport.notify
        self._ask: Ask | None = getattr(self._transport, "ask", None)  # a call without a coroutine, where it blocks
        # A wait without one, where tasks share a loop. In strict mode the waiter's own claim must confirm its grant.
        self._sleep: Asleep | None = getattr(self._transport, "sleep", None) if self._strict is None else None
        self.calls = self._calls = Calls(self._transport, self.where, self.address[0], self._check_rights)
        self._renewing = Renewing(runtime, namespace, self._transport, self._calls, self._waiters, slot_of)

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server; "" and 0 if it has none."""
        return str(self._settings.options.get("host", "")), int(self._settings.options.get("port", 0))

    # --- the store protocol --------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        if not self._rights_known:
            await self._check_rights(within)
        terms = ticket.terms
        slot = self._waiters.add(name, ticket) if join else None  # before the claim: a message may overtake its reply
        generation, since = self._transport.generation(), self._runtime.now()
        channel = self._channel if generation else b""  # without a subscription it retries once it has one
        unanswered, repeated = self._unanswered, ticket.id in self._unanswered
        unanswered[ticket.id] = None  # until there is a reply: a release may overtake this claim
        try:
            if self._strict is not None:
                reply = await self._claim_strictly(name, ticket, join=join, channel=channel, within=within)
            elif terms.mode.kind is MUTEX:
                packed, ask = self._templates.try_acquire(name, ticket, join, channel), self._ask
                reply = ask(packed, within)[0] if ask else await self._transport.call(packed, within=within)
                if isinstance(reply, ReplyError):
                    reply = await self._calls.resend_if_lacking(CLAIM, packed, reply, within)
            else:
                command = commands.try_acquire(self._namespace, name, ticket, join=join, channel=channel)
                reply = await self._calls.run(*command, within=within)
        except StoreUnavailable as error:
            if not error.unknown:
                if not repeated:
                    unanswered.pop(ticket.id, None)
                if slot is not None and not slot.last_reply:
                    self._waiters.give_up(ticket)  # the server does not know the ticket, so no release follows
            raise
        if not repeated:
            unanswered.pop(ticket.id, None)
        if reply[0] == 1:
            if slot is not None:
                self._waiters.granted(ticket)
            return Granted(int(reply[1]), since, terms.lease)
        return self._waits(name, ticket, slot, generation, since, reply)

    def _waits(self, name: str, ticket: Ticket, slot: Slot | None, mark: object, since: float, reply: Any) -> Wait:
        if reply[0] == 2:
            raise commands.used_otherwise(name, reply[1], ticket.terms.mode)
        if reply[0] == strict.QUARANTINED:
            why, after = strict.quarantine_reason(self.where), int(reply[1]) / 1000 + RETRY_AFTER_EXPIRY
            return Wait(mark, after, blocked_why=why)
        after = self._waiters.queued(slot, ticket, since, int(reply[1]), int(reply[2]) / 1000)
        return Wait(mark, after, inspecting.owner(reply))

    async def _claim_strictly(self, name: str, ticket: Ticket, *, join: bool, channel: bytes, within: float) -> Any:
        """Claim; release at once a grant that too few replicas have acknowledged."""
        command = commands.try_acquire(self._namespace, name, ticket, join=join, channel=channel)
        assert self._strict is not None
        try:
            reply = await self._strict.ask(self._transport, command, within=within)
        except strict.Unconfirmed as error:
            try:
                if (mine := self._waiters.get(ticket.id)) is not None:
                    self._waiters.cancel(mine, ticket)
                # A plain release: the same ticket is claimed again, so later claims must not be refused.
                await self._calls.run(
                    *commands.release(self._namespace, name, ticket, ReleaseReason.RELEASE), within=within
                )
            except StoreUnavailable:
                error.unknown = True  # so that the caller releases later
            raise
        if isinstance(reply, ReplyError):
            raise await self._calls.refused(reply, within)
        return reply

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        if not self._rights_known:
            await self._check_rights(within)
        since, answers = self._runtime.now(), list[Granted | Wait]()
        tickets = [ticket.id for _, ticket in claims]
        repeated = self._unanswered.keys() & tickets
        self._unanswered.update(dict.fromkeys(tickets))
        try:
            released, *replies = await self._calls.run(
                *commands.try_acquire_many(self._namespace, claims, keep=keep), within=within
            )
        except StoreUnavailable as error:
            if not error.unknown:
                self._unanswered.forget(repeated.symmetric_difference(tickets))
            raise
        self._unanswered.forget(repeated.symmetric_difference(tickets))
        for (name, ticket), reply in zip(claims[released:], replies, strict=False):
            if reply[0] == 2:
                raise commands.used_otherwise(name, reply[1], ticket.terms.mode)
            if reply[0] == 1:
                answers.append(Granted(int(reply[1]), since, ticket.terms.lease))
            else:
                answers.append(Wait(None, 0.0, inspecting.owner(reply)))
        return answers

    async def _check_rights(self, within: float) -> None:
        from leasehold.stores.redis import rights

        where, strict = self._settings.where, self._strict is not None
        await rights.check_rights(self._transport, where, self._namespace, self._channel, within=within, info=strict)
        self._rights_known = True

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        for _, ticket in releases:
            self._waiters.give_up(ticket)
        batch = [self._release_command(name, ticket, ReleaseReason.RELEASE) for name, ticket in releases]
        self._unanswered.limit()
        replies = await self._calls.run_all(batch, within=within)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise await self._calls.refused(reply, within)
        self._unanswered.forget(ticket.id for _, ticket in releases)
        return [reply == 1 for reply in replies]

    def _release_command(self, name: str, ticket: Ticket, reason: ReleaseReason) -> Command:
        if ticket.id in self._unanswered and reason is ReleaseReason.RELEASE:
            return commands.release_and_refuse(self._namespace, name, ticket)
        return commands.release(self._namespace, name, ticket, reason)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        if (mine := self._waiters.get(ticket.id)) is not None:
            self._waiters.cancel(mine, ticket)  # at the close of a client, another thread may still wait
        if ticket.terms.mode.kind is MUTEX and ticket.id not in self._unanswered:
            packed, ask = self._templates.release(name, ticket, reason), self._ask
            found = ask(packed, within)[0] if ask else await self._transport.call(packed, within=within)
            if isinstance(found, ReplyError):
                found = await self._calls.resend_if_lacking(RELEASE, packed, found, within)
        else:
            self._unanswered.limit()
            found = await self._calls.run(*self._release_command(name, ticket, reason), within=within)
            if reason is ReleaseReason.RELEASE:
                self._unanswered.forget((ticket.id,))
        return bool(found == 1)

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        results, refusals = await self.renewals(tickets, within=within)
        if refusals and not results and not any(self._waiters.get(ticket.id) for _, ticket in tickets):
            raise base.refused(self.where, refusals[0][1])  # so that the holders learn the reason
        return [results.get(ticket.id, RenewalResult.UNKNOWN) for _, ticket in tickets]

    async def renewals(
        self, tickets: Sequence[tuple[str, Ticket]], *, within: float, alone: bool = False
    ) -> tuple[dict[str, RenewalResult], list[Refusal]]:
        """Renew; see `Renewing.renew`."""
        return await self._renewing.renew(tickets, within=within, alone=alone)

    def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Awaitable[Granted | None]:
        slot, sleep = self._waiters.get(ticket.id), self._sleep
        if sleep is not None and slot is not None and mark and mark == self._transport.generation():
            return sleep(self._waiters, slot, ticket, timeout)
        return self._wait(slot, ticket, mark, timeout)

    async def _wait(self, slot: Slot | None, ticket: Ticket, mark: object, timeout: float) -> Granted | None:
        if slot is None:
            return None
        # With one server, `listen` need not be called while the subscription is unchanged.
        if self._ask is None or not mark or mark != self._transport.generation():
            try:
                if await self._transport.listen(max(min(SUBSCRIBE_WITHIN, timeout), 0.001)) != mark:
                    return None  # a release before the subscription sent us no message: retry once
            except NotPermitted:
                raise  # no message will ever come, and retrying for ever would hide that
            except Redirected as error:
                self._channel = self._choose_channel(error)  # the slot of its channel has moved
                self._transport.set_channel(self._channel)
                await self._runtime.sleep(min(timeout, 0.05))
                return None
            except StoreUnavailable:
                await self._runtime.sleep(min(timeout, 0.05 + 0.1 * self._runtime.jitter()))
                return None
        await self._waiters.sleep(self._transport, slot, timeout)
        if self._strict is not None:
            slot.read()
            return None  # its own claim must confirm the grant, and wait for the replicas
        return self._waiters.take_grant(slot, ticket)

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        return await inspecting.inspect(self._calls, self._namespace, prefix, exact=exact, within=within)

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        check_size(change)
        reply = await self._calls.run(*commands.compare_and_set(self._namespace, name, change), within=within)
        return Cell(reply[0], int(reply[1]), int(reply[2]), changed=reply[3] == 1)

    # --- around the protocol -------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.redis.doctor import doctor, strict

        found = await doctor.diagnose(self._runtime, self._transport, self._settings, self._namespace, self._channel)
        if (demanded := self._settings.strict) is None or self._strict is None:
            return found
        return [*strict.adjusted(found, demanded), await strict.state(self._transport, demanded, self._strict.marker)]

    async def close(self) -> None:
        await self._transport.close()

    def after_fork(self) -> None:
        self._waiters.forget_all()
        self._unanswered.clear()
        self._channel = self._choose_channel(None)
        self._transport.after_fork(self._channel)
        self._waiters.notify = self._transport.notify

    def drop(self, ticket: Ticket) -> None:
        """Forget a waiting ticket, which now waits at another server; a waiter that still sleeps here retries."""
        if (slot := self._waiters.get(ticket.id)) is not None:
            self._waiters.cancel(slot, ticket)

    def knows(self, ticket: Ticket) -> bool:
        """Return whether a ticket waits here, or is about to."""
        return ticket.id in self._waiters

    def _new_channel(self, moved: Redirected | None) -> bytes:
        return keys.channel(self._namespace, ticket_id(self._runtime.random_bytes(16)))

    def __repr__(self) -> str:
        return f"<RedisStore {self._settings.where} namespace={self._namespace!r}>"
