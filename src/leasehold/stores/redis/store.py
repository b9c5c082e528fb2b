"""The Redis store: claims, hand-overs and renewals as scripts, one round trip each.

Theory of operation
-------------------
All state of a name is in four keys of one slot (see ``scripts/common.lua``). The server's clock alone decides what
has expired. A lease is the time to live of the lock's key, less a constant by which the key, and with it the token,
outlives the lease; so a renewal is one PEXPIRE, which a server without memory still carries out.

A release hands the lock to the first waiter in the same script and tells that waiter's client alone, on a channel of
its own. Messages are hints that may be lost. Whoever waits asks again after each new subscription; the keeper's
renewal of its place, at a third of the lease, finds a grant that nobody heard of; and one waiter of each client has a
timer that ends with the holder's lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.model import (
    Capabilities,
    Cell,
    Change,
    Departure,
    Finding,
    Granted,
    Owner,
    Standing,
    Ticket,
    View,
    Wait,
    ticket_id,
)
from leasehold.runtimes.base import Colour, Runtime
from leasehold.stores.cells import check_size
from leasehold.stores.redis import commands, doctor, keys, rights, views
from leasehold.stores.redis.anchor import Anchor, Notice
from leasehold.stores.redis.commands import Command
from leasehold.stores.redis.scripts import CELL, LOOK, Script
from leasehold.stores.redis.slots import Slot, Slots
from leasehold.wires.redis.aio import AioWire
from leasehold.wires.redis.base import NotPermitted, ReplyError, Wire, pack, refused
from leasehold.wires.redis.blocking import BlockingWire
from leasehold.wires.redis.settings import Settings

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening the subscription may take."""

IDLE = 10
"""Leases after which a waiter asks again that need not: another watches the holder, and the keeper renews its place."""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds. The server counts in milliseconds, so a lease has surely ended one after its count did."""


class RedisStore:
    """See `leasehold.stores.base.Store` for what each method promises."""

    capabilities = Capabilities(shared=True, permits=True, crash_bound="within the lease + 250 ms")

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str) -> None:
        if runtime.colour is Colour.SIMULATED:
            raise Unsupported("a real Redis cannot be reached from the simulated world; use a memory: store there")
        wire = BlockingWire if runtime.colour is Colour.BLOCKING else AioWire
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._channel = keys.channel(namespace, ticket_id(runtime.random_bytes(16)))
        self._slots = Slots(runtime)
        self._anchor: Anchor | None = None
        self._rights_known = not settings.restricted
        self._wire: Wire = wire(runtime, settings, self._channel, self._heard, self._silence)

    # --- the six -----------------------------------------------------------------------------------------------

    async def claim(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        terms = ticket.terms
        if not self._rights_known:
            await rights.check(self._wire, self._settings.where, self._namespace, self._channel, within=within)
            self._rights_known = True
        slot = self._slots.add(name, ticket) if join else None  # before the claim: a message may overtake its reply
        epoch, since = self._wire.epoch(), self._runtime.now()
        channel = self._channel if epoch else b""  # without one it asks again as soon as it can be told
        try:
            command = commands.claim(self._namespace, name, ticket, join=join, channel=channel)
            reply = await self._run(*command, within=within)
        except StoreUnavailable as error:
            if slot is not None and not slot.asked and not error.unknown:
                self._forget(ticket)  # the server does not know it, so nobody will leave for it
            raise
        if reply[0] == 2:
            raise views.wrong_kind(name, reply[1], terms.rule)
        self._anchor = anchor = Anchor(since, int(reply[2 if reply[0] == 1 else 1]))
        if reply[0] == 1:
            self._slots.remove(ticket.id)
            return Granted(int(reply[1]), since, terms.lease)
        held_by = Owner.parse(reply[3].decode()) if len(reply) > 3 and reply[3] else None
        expiry = max(int(reply[2]) / 1000, 0.0) + ASK_AGAIN_AT_LEAST
        if slot is not None:
            slot.asked = anchor.server
        # Who waits beside a ticket of its own waits for others than the first in line does, and watches for itself.
        watches = slot is None or self._slots.watches(slot) or ticket.beside != ""
        return Wait(epoch, expiry if watches else expiry + IDLE * terms.lease, held_by)

    async def leave(self, name: str, ticket: Ticket, *, how: Departure, within: float) -> bool:
        mine = self._slots.get(ticket.id)
        self._forget(ticket)
        if mine is not None:
            self._wake(mine)  # the client closes, and somebody may still wait
        found: int = await self._run(*commands.leave(self._namespace, name, ticket, how), within=within)
        return found == 1

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[Standing]:
        standings: dict[str, Standing] = {}
        waiting = [(name, ticket) for name, ticket in tickets if ticket.id in self._slots]
        holding = [(name, ticket) for name, ticket in tickets if ticket.id not in self._slots]
        batches = [*commands.renewals(self._namespace, holding), *commands.stays(self._namespace, waiting)]
        since = self._runtime.now()
        replies = await self._run_all([batch.command for batch in batches], within=within)
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReplyError):
                continue
            if batch.stays:
                self._anchor = Anchor(since, int(reply.pop(0)))
            standings.update(zip((ticket.id for ticket in batch.tickets), map(_standing, reply), strict=True))
        self._wake_settled(standings)
        for name in {name for name, _ in waiting}:  # who watched may have got the name since
            if (heir := self._slots.unarmed(name)) is not None:
                self._wake(heir)
        return [standings.get(ticket.id, Standing.UNKNOWN) for _, ticket in tickets]

    async def changed(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        slot = self._slots.get(ticket.id)
        if slot is None:
            return None
        try:
            epoch = await self._wire.listen(max(min(SUBSCRIBE_WITHIN, timeout), 0.001))
        except NotPermitted:
            raise  # it will never be heard, and asking again and again would hide it
        except StoreUnavailable:
            await self._runtime.sleep(min(timeout, 0.05 + 0.1 * self._runtime.jitter()))
            return None
        if epoch != mark:
            return None  # a release before the subscription was told to nobody: ask once more
        slot.ready(self._runtime)
        await self._wire.hear(slot, timeout)
        notice = slot.read()
        if notice is not None and notice.at < slot.asked:
            notice = None  # of a grant that was over when the server answered "wait"
        since = None if notice is None else notice.since(self._anchor, self._runtime.now(), ticket.terms.lease)
        if notice is None or since is None:
            return None
        self._slots.remove(ticket.id)
        return Granted(notice.token, since, ticket.terms.lease)

    async def look(self, prefix: str, *, exact: bool = False) -> list[View]:
        names = [prefix] if exact else [name async for name in self._names(prefix)]
        found: list[View] = []
        for some in commands.chunks(names, commands.PER_SCRIPT):
            looks: list[Command] = [(LOOK, keys.shared_keys(self._namespace, name), ()) for name in some]
            for name, reply in zip(some, await self._run_all(looks, within=5.0), strict=True):
                if isinstance(reply, ReplyError):
                    raise refused(self._settings.where, reply)
                view = views.view(name, reply)
                if view.holders or view.waiters or view.free_in > 0:
                    found.append(view)
        return found

    async def cell(self, name: str, change: Change) -> Cell:
        check_size(change)
        reply = await self._run(
            CELL,
            (keys.cell_key(self._namespace, name),),
            (
                b"0" if change.value is None else b"1",
                change.value or b"",
                b"" if change.if_version is None else b"%d" % change.if_version,
                b"" if change.fence is None else b"%d" % change.fence,
                b"%d" % commands.ms(change.life),
            ),
            within=5.0,
        )
        return Cell(reply[0], int(reply[1]), int(reply[2]), changed=reply[3] == 1)

    # --- the rest ----------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        return await doctor.diagnose(self._runtime, self._wire, self._settings, self._namespace, self._channel)

    async def close(self) -> None:
        await self._wire.close()

    def after_fork(self) -> None:
        self._slots = Slots(self._runtime)
        self._anchor = None
        self._channel = keys.channel(self._namespace, ticket_id(self._runtime.random_bytes(16)))
        self._wire.after_fork(self._channel)

    async def _names(self, prefix: str) -> AsyncIterator[str]:
        cursor, seen = b"0", set[str]()
        pattern = keys.lock_pattern(self._namespace, prefix)
        while True:
            scan = pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
            reply = await self._wire.call(scan, within=5.0)
            if isinstance(reply, ReplyError):
                raise refused(self._settings.where, reply)
            cursor = reply[0]
            for key in reply[1]:
                name = keys.name_of(key)
                if name not in seen:
                    seen.add(name)
                    yield name
            if cursor == b"0":
                return

    async def _run(self, script: Script, mutex: Sequence[bytes], args: Sequence[bytes], *, within: float) -> Any:
        until = self._runtime.now() + within
        reply = await self._wire.call(script.by_digest(mutex, args), within=within)
        if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
            reply = await self._wire.call(script.by_text(mutex, args), within=max(until - self._runtime.now(), 0.001))
        if isinstance(reply, ReplyError):
            if reply.code == "NOPERM":  # of a script, a server does not say which right: find out
                await rights.check(self._wire, self._settings.where, self._namespace, self._channel, within=within)
            raise refused(self._settings.where, reply)
        return reply

    async def _run_all(self, asked: Sequence[Command], *, within: float) -> list[Any]:
        packed = [script.by_digest(mutex, args) for script, mutex, args in asked]
        replies = await self._wire.call_all(packed, within=within)
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                script, mutex, args = asked[index]
                replies[index] = await self._wire.call(script.by_text(mutex, args), within=within)
        return replies

    # --- messages ----------------------------------------------------------------------------------------------

    def _heard(self, message: bytes) -> None:
        notice = Notice.parse(message)
        slot = None if notice is None else self._slots.get(notice.ticket)
        if slot is not None:
            slot.notice = notice
            self._wake(slot)

    def _silence(self) -> None:
        for slot in self._slots:
            self._wake(slot)

    def _forget(self, ticket: Ticket) -> None:
        heir = self._slots.remove(ticket.id)
        if heir is not None:
            self._wake(heir)  # it watches the holder's lease from now on

    def _wake_settled(self, standings: dict[str, Standing]) -> None:
        """Wake waiters that hold by now, and heard nothing of it, or that the server has forgotten: they ask again."""
        for ticket, standing in standings.items():
            slot = self._slots.get(ticket)
            if slot is not None and standing in (Standing.HELD, Standing.GONE):
                self._wake(slot)

    def _wake(self, slot: Slot) -> None:
        slot.news = True
        self._wire.nudge(slot)

    def __repr__(self) -> str:
        return f"<RedisStore {self._settings.where} namespace={self._namespace!r}>"


_STANDINGS = (Standing.GONE, Standing.HELD, Standing.QUEUED, Standing.UNKNOWN)


def _standing(reply: int) -> Standing:
    return _STANDINGS[reply]
