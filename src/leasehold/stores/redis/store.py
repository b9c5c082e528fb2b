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

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from leasehold.errors import StoreUnavailable, Unsupported, WrongKind
from leasehold.model import (
    Capabilities,
    Cell,
    Change,
    Departure,
    Finding,
    Granted,
    Kind,
    Owner,
    Standing,
    Ticket,
    View,
    Wait,
    ticket_id,
)
from leasehold.runtimes.base import Colour, Runtime
from leasehold.stores.cells import check_size
from leasehold.stores.redis import doctor, keys, rights, views
from leasehold.stores.redis.anchor import Anchor, Notice
from leasehold.stores.redis.scripts import CELL, CLAIM, LEAVE, LOOK, RENEW, STAY, Script
from leasehold.stores.redis.slots import Slot, Slots
from leasehold.wires.redis.aio import AioWire
from leasehold.wires.redis.base import NotPermitted, ReplyError, Wire, pack, refused
from leasehold.wires.redis.blocking import BlockingWire
from leasehold.wires.redis.settings import Settings

SUBSCRIBE_WITHIN = 2.0
"""Seconds that opening the subscription may take."""

IDLE = 10
"""Leases after which a waiter asks again that need not: another watches the holder, and the keeper renews its place."""

PER_SCRIPT = 100
"""Tickets in one renewal script: it keeps the server from others for well under a millisecond."""

ASK_AGAIN_AT_LEAST = 0.001
"""Seconds. The server counts in milliseconds, so a lease has surely ended one after its count did."""


class RedisStore:
    """See `leasehold.stores.base.Store` for what each method promises."""

    capabilities = Capabilities(crash_bound="within the lease + 250 ms")

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
        if terms.rule.kind is not Kind.MUTEX:
            raise Unsupported(f"this Redis store has no {terms.rule.kind.value} locks")
        if not self._rights_known:
            await rights.check(self._wire, self._settings.where, self._namespace, self._channel, within=within)
            self._rights_known = True
        slot = self._slots.add(name, ticket) if join else None  # before the claim: a message may overtake its reply
        epoch, since = self._wire.epoch(), self._runtime.now()
        args = (
            ticket.id.encode(),
            b"%d" % _ms(terms.lease),
            b"%d" % _ms(terms.delay),
            b"1" if join else b"0",
            b"1" if terms.rule.fair else b"0",
            self._channel if epoch else b"",  # without one it asks again as soon as it can be told
            str(terms.owner).encode(),
            terms.meta.encode(),
        )
        try:
            reply = await self._run(CLAIM, keys.mutex_keys(self._namespace, name), args, within=within)
        except StoreUnavailable as error:
            if slot is not None and not slot.asked and not error.unknown:
                self._forget(ticket)  # the server does not know it, so nobody will leave for it
            raise
        if reply[0] == 2:
            raise WrongKind(f"{name!r} is in use as a {reply[1].decode()}; choose another name", name=name)
        self._anchor = anchor = Anchor(since, int(reply[2 if reply[0] == 1 else 1]))
        if reply[0] == 1:
            self._slots.remove(ticket.id)
            return Granted(int(reply[1]), since, terms.lease)
        held_by = Owner.parse(reply[3].decode()) if len(reply) > 3 and reply[3] else None
        expiry = max(int(reply[2]) / 1000, 0.0) + ASK_AGAIN_AT_LEAST
        if slot is not None:
            slot.asked = anchor.server
        watches = slot is None or self._slots.watches(slot)
        return Wait(epoch, expiry if watches else expiry + IDLE * terms.lease, held_by)

    async def leave(self, name: str, ticket: Ticket, *, how: Departure, within: float) -> bool:
        mine = self._slots.get(ticket.id)
        self._forget(ticket)
        if mine is not None:
            self._wake(mine)  # the client closes, and somebody may still wait
        broken = b"1" if how is Departure.BREAK else b"0"
        mutex = keys.mutex_keys(self._namespace, name)
        found: int = await self._run(LEAVE, mutex, (ticket.id.encode(), broken), within=within)
        return found == 1

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[Standing]:
        standings: dict[str, Standing] = {}
        waiting: dict[str, list[Ticket]] = defaultdict(list)
        holding: list[tuple[str, Ticket]] = []
        for name, ticket in tickets:
            if ticket.id in self._slots:
                waiting[name].append(ticket)
            else:
                holding.append((name, ticket))
        commands = [*self._renewals(holding), *self._stays(waiting)]
        since = self._runtime.now()
        replies = await self._run_all([(script, mutex, args) for script, mutex, args, _ in commands], within=within)
        for (script, _, _, those), reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                continue
            if script is STAY:
                self._anchor = Anchor(since, int(reply.pop(0)))
            standings.update(zip((ticket.id for ticket in those), map(_standing, reply), strict=True))
        self._wake_settled(standings)
        for name in waiting:  # who watched may have got the name since
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
        for some in _chunks(names, PER_SCRIPT):
            commands = [(LOOK, keys.mutex_keys(self._namespace, name), ()) for name in some]
            for name, reply in zip(some, await self._run_all(commands, within=5.0), strict=True):
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
                b"%d" % _ms(change.life),
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

    def _renewals(self, holding: Sequence[tuple[str, Ticket]]) -> Iterable[Batch]:
        for some in _chunks(holding, PER_SCRIPT):
            locks = tuple(keys.mutex_keys(self._namespace, name)[0] for name, _ in some)
            yield RENEW, locks, _leases(ticket for _, ticket in some), [ticket for _, ticket in some]

    def _stays(self, waiting: dict[str, list[Ticket]]) -> Iterable[Batch]:
        for name, tickets in waiting.items():
            for some in _chunks(tickets, PER_SCRIPT):
                yield STAY, keys.mutex_keys(self._namespace, name), _leases(some), list(some)

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

    async def _run_all(self, commands: Sequence[Command], *, within: float) -> list[Any]:
        packed = [script.by_digest(mutex, args) for script, mutex, args in commands]
        replies = await self._wire.call_all(packed, within=within)
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                script, mutex, args = commands[index]
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


Command = tuple[Script, Sequence[bytes], Sequence[bytes]]
Batch = tuple[Script, Sequence[bytes], Sequence[bytes], list[Ticket]]

_STANDINGS = (Standing.GONE, Standing.HELD, Standing.QUEUED, Standing.UNKNOWN)


def _standing(reply: int) -> Standing:
    return _STANDINGS[reply]


def _leases(tickets: Iterable[Ticket]) -> tuple[bytes, ...]:
    pairs = ((ticket.id.encode(), b"%d" % _ms(ticket.terms.lease)) for ticket in tickets)
    return tuple(itertools.chain.from_iterable(pairs))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
