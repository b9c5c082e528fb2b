"""The store for locks in the format of another library, on one Redis server or its primary under Sentinel.

Theory of operation
-------------------
The key of the other library alone says whose the lock is. Each acquisition has an id of its own there, made from the
ticket. So a repeated claim finds itself, and a release frees only what its own claim has acquired. The token counter
and the queue of our waiters are in keys of our own (``scripts/common.lua``), which the other programs do not see:

* A release wakes the first waiter in the queue, which claims again. It hands nothing over, since the other programs
  contend for the free key, too. The first claim acquires: our waiters have no precedence.
* A release of another program may send no message. So the first waiter polls, with jitter, and each of the others
  polls seldom, in case the first has died. Each is a waiter of another client: those of one client take turns.

The other programs know neither our tokens nor lock delays. What rests on a promise that they cannot keep is refused by
`Capabilities` when a lock is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from leasehold._model import (
    RESPONSE_TIMEOUT,
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
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import NameInUse, StoreUnavailable, Unsupported
from leasehold.layouts.redis import doctor, inspecting, rights
from leasehold.layouts.redis.connection.topics import Topics
from leasehold.layouts.redis.connection.transports import topic_transport
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.scripts import Scripts
from leasehold.stores.redis.connection.base import (
    DEMOTED,
    MakeTransport,
    NotPermitted,
    OnMessage,
    OnSilence,
    ReplyError,
    RetryableError,
    Transport,
)
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.renewing import Refusal
from leasehold.stores.redis.scripts import Script
from leasehold.stores.redis.scripts.calls import Calls
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, Command, chunks, ms
from leasehold.stores.redis.store import SUBSCRIBE_WITHIN, RedisStore

SELDOM = 10.0
"""How many times more seldom than the first waiter the waiters behind it look."""

RESULTS = (RenewalResult.GONE, RenewalResult.HELD, RenewalResult.QUEUED)
"""What each number in a reply of the scripts that renew means."""

REFUSED_PAUSE = 0.05
"""Seconds after a subscription that was refused for a while: the node has no such slot, or the cluster is down."""

Named = Sequence[tuple[str, Ticket]]
"""Tickets, each with its name."""


class LayoutStore(RedisStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        namespace: str,
        *,
        layout: Layout | None = None,
        make: MakeTransport | None = None,
        **of_node: Any,
    ) -> None:
        """Make the store of one server; ``layout`` is left out after `_prepare`. ``of_node``: see `RedisStore`."""
        if layout is not None:
            make = self._prepare(runtime, layout, make)
        super().__init__(runtime, settings, namespace, make=make, **of_node)
        self.capabilities = self.layout.capabilities

    def _prepare(self, runtime: Runtime, layout: Layout, make: MakeTransport | None) -> MakeTransport | None:
        """Set the layout; return what makes the transports to servers."""
        self.layout = layout
        self._permitted = set[Kind]()  # kinds of lock for which the user has all rights
        self._topics = Topics(runtime, self._news, in_shards=layout.clustered) if layout.topics else None
        if self._topics is not None:
            return topic_transport(runtime, self._topics) if make is None else make
        return self._by_ticket(make or single_transport(runtime))

    def _by_ticket(self, make: MakeTransport) -> MakeTransport:
        """Return what makes the same transports; they pass on the ticket of a waiter whose id is the message."""

        def make_it(
            runtime: Runtime, settings: Any, channel: bytes, on_message: OnMessage, on_silence: OnSilence
        ) -> Transport:
            def receive(message: bytes) -> None:
                on_message(self.layout.ticket_of(message.decode("ascii", "replace")).encode())

            return make(runtime, settings, channel, receive, on_silence)

        return make_it

    # --- the store protocol --------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        kind, until = ticket.terms.mode.kind, self._runtime.now() + within
        if self._settings.restricted and kind not in self._permitted:
            if lacking := await self._lacking(name, ticket, within):
                raise rights.error(self.where, lacking)
            self._permitted.add(kind)
            within = max(until - self._runtime.now(), 0.001)
        slot = self._waiters.add(name, ticket) if join else None  # before the claim: a message may overtake its reply
        mark, since = self._mark(name, ticket), self._runtime.now()
        repeated = ticket.id in self._unanswered
        self._unanswered[ticket.id] = None  # until there is a reply: a release may overtake this claim
        try:
            reply = await self._calls_of(name, ticket).run(*self._claim(name, ticket, join), within=within)
        except StoreUnavailable as error:
            if not error.unknown:
                if not repeated:
                    self._unanswered.pop(ticket.id, None)
                if slot is not None and not slot.last_reply:
                    self._waiters.give_up(ticket)  # the server does not know the ticket, so no release follows
            raise
        if not repeated:
            self._unanswered.pop(ticket.id, None)
        if reply[0] == 1:
            if slot is not None:
                self._waiters.granted(ticket)
                self._unfollow(ticket)
            return Granted(int(reply[1]), since, ticket.terms.lease)
        if reply[0] == 2:
            if slot is not None:
                self._waiters.give_up(ticket)
                self._unfollow(ticket)
            raise self._no_lock(name, reply[1].decode())
        left = self._until_next_look(int(reply[2]) / 1000, first=reply[4] == 1)
        after = self._waiters.queued(slot, ticket, since, int(reply[1]), left)
        return Wait(mark, after, inspecting.owner(reply))

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        if (mine := self._waiters.get(ticket.id)) is not None:
            self._waiters.cancel(mine, ticket)  # at the close of a client, another thread may still wait
        self._unfollow(ticket)  # also where an interrupt came between the end of its wait and this
        self._unanswered.limit()
        refuse = ticket.id in self._unanswered and reason is ReleaseReason.RELEASE
        args = self._id(ticket), b"1" if refuse else b"0", self._topic(name, ticket)
        command = self._command(self._scripts(ticket).release, name, ticket, *args)
        found = await self._calls_of(name, ticket).run(*command, within=within)
        if reason is ReleaseReason.RELEASE:
            self._unanswered.forget((ticket.id,))
        return bool(found == 1)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        topics, slot = self._topics, self._waiters.get(ticket.id)
        if topics is None or slot is None:
            return await super().wait(name, ticket, mark, timeout=timeout)
        try:
            await self._transport.listen(max(min(SUBSCRIBE_WITHIN, timeout), 0.001))
        except NotPermitted:
            raise  # no message will ever come, and retrying for ever would hide that
        except StoreUnavailable:
            await self._runtime.sleep(min(timeout, 0.05 + 0.1 * self._runtime.jitter()))
            return None
        topic = self._topic(name, ticket)
        topics.follow(topic, ticket.id)
        if ticket.id not in self._waiters:  # released meanwhile, by another thread
            self._unfollow(ticket)
        elif topics.refusal(topic) is None and ((version := topics.version(topic)) == 0 or version == mark):
            await self._waiters.sleep(self._transport, slot, timeout)
        slot.read()
        if (reply := topics.refusal(topic)) is not None:
            error = rights.unheard(self.where, self.layout.lock_key(self._namespace, name), topic, reply)
            self._unfollow(ticket)  # so that it asks anew; the claim learns where the slot is by now
            if not isinstance(error, RetryableError):
                raise error
            await self._runtime.sleep(min(timeout, REFUSED_PAUSE))
        return None

    async def renewals(
        self, tickets: Sequence[tuple[str, Ticket]], *, within: float, alone: bool = False
    ) -> tuple[dict[str, RenewalResult], list[Refusal]]:
        """Renew holders and waiters, each name by a command; return results by ticket, and refused commands."""
        results, refusals, batches = dict[str, RenewalResult](), list[Refusal](), self._batches(tickets)
        replies = await self._calls.run_all([command for command, _ in batches], within=within)
        for (_, some), reply in zip(batches, replies, strict=True):
            if isinstance(reply, ReplyError):
                refusals.append(([ticket for _, ticket in some], reply))
                continue
            numbers = [reply] if isinstance(reply, int) else reply
            results.update({ticket.id: RESULTS[number] for (_, ticket), number in zip(some, numbers, strict=True)})
        self._waiters.renewed(results, {name for name, ticket in tickets if ticket.id in self._waiters})
        if any(reply.code in DEMOTED for _, reply in refusals):
            self._transport.hang_up()
        return results, refusals

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        views, names = dict[str, View](), [prefix]
        if not exact:
            names = await inspecting.names(self._transport, self.where, self.layout, self._namespace, prefix, within)
        looked = [(name, kind) for name in names for kind in self.layout.kinds]
        for some in chunks(looked, PER_SCRIPT):
            looks: list[Command] = [
                (self.layout.scripts_of(kind).inspect, self.layout.keys(self._namespace, name, kind), ())
                for name, kind in some
            ]
            replies = await self._calls.run_all(looks, within=within)
            for (name, kind), reply in zip(some, replies, strict=True):
                if isinstance(reply, ReplyError):
                    raise await self._calls.refused(reply, within)
                view = inspecting.view(self.layout, name, kind, reply)
                if view.holders or view.waiters:
                    views.setdefault(name, view)
        return list(views.values())

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        raise Unsupported(f"{self!r} keeps no values with versions; leave out layout=, or use another store")

    def _calls_of(self, name: str, ticket: Ticket) -> Calls:
        """Return the calls of a ticket's scripts: if one is denied a right, they name those that its user lacks."""

        async def check(within: float) -> None:
            raise rights.error(self.where, await self._lacking(name, ticket, within))

        return Calls(self._transport, self.where, self.address[0], check)

    async def _check_rights(self, within: float) -> None:
        """Raise the error of a script without a ticket that was denied a right."""
        raise rights.error(self.where, ())

    async def _lacking(self, name: str, ticket: Ticket, within: float) -> Sequence[str]:
        where, left = (self._transport, self.layout, self._namespace), rights.deadline(self._runtime, within)
        try:
            return await rights.missing(*where, name, ticket, self._channel, left)
        except ReplyError as reply:
            raise await self._calls.refused(reply, left()) from None

    async def diagnose(self) -> list[Finding]:
        where = self._transport, self.layout, self._namespace, self._channel
        return await doctor.adjusted(await super().diagnose(), *where, rights.deadline(self._runtime, doctor.WITHIN))

    def after_fork(self) -> None:
        if self._topics is not None:
            self._topics.clear()
        super().after_fork()

    # --- news of releases ----------------------------------------------------------------------------------------

    def _mark(self, name: str, ticket: Ticket) -> int:
        """Return a value that changes when a waiter may have missed a message about a name."""
        topics = self._topics
        return self._transport.generation() if topics is None else topics.version(self._topic(name, ticket))

    def _news(self, topic: bytes) -> None:
        """Let the first waiter of this client claim again, of those that follow the channel, or all."""
        following = [] if self._topics is None else self._topics.followers(topic)
        slots = [slot for ticket in following if (slot := self._waiters.get(ticket)) is not None]
        deaf = self._topics is not None and self._topics.version(topic) == 0
        all_of_them = deaf or self.layout.wakes_all(topic)
        if slots and not all_of_them:
            first = self._waiters.first(slots[0].name)
            slots = [first if first in slots else slots[0]]
        for slot in slots:
            self._waiters.wake(slot)

    def _topic(self, name: str, ticket: Ticket) -> bytes:
        return self.layout.topic(self.layout.lock_key(self._namespace, name), ticket)

    def _unfollow(self, ticket: Ticket) -> None:
        if self._topics is not None:
            self._topics.unfollow(ticket.id)

    # --- inside --------------------------------------------------------------------------------------------------

    def _claim(self, name: str, ticket: Ticket, join: bool) -> Command:
        terms = ticket.terms
        # Without a subscription it retries once it has one. Where no channel of ours is needed, its kind is stored.
        channel = self._channel if self._transport.generation() else b""
        if self._topics is not None:
            channel = terms.mode.kind.value.encode() + (b" fair" if terms.mode.fair else b"")
        args = self._id(ticket), b"%d" % ms(terms.lease), b"%d" % join, channel, str(terms.owner).encode()
        with_ = terms.meta.encode(), self.layout.claimed_with(ticket)
        return self._command(self._scripts(ticket).claim, name, ticket, *args, *with_)

    def _batches(self, tickets: Sequence[tuple[str, Ticket]]) -> Sequence[tuple[Command, Named]]:
        """Return the commands that renew: one for each holder, and one or more for the waiters of each name."""
        waiting = defaultdict[tuple[str, Kind], list[tuple[str, Ticket]]](list)
        groups = list[tuple[Script, Named]]()
        for name, ticket in tickets:
            if ticket.id in self._waiters:
                waiting[name, ticket.terms.mode.kind].append((name, ticket))
            else:
                groups.append((self._scripts(ticket).renew, [(name, ticket)]))
        for (_, kind), all_of_it in waiting.items():
            groups += [(self.layout.scripts_of(kind).renew_waiters, some) for some in chunks(all_of_it, PER_SCRIPT)]
        return [
            (self._command(script, *some[0], *(arg for _, ticket in some for arg in self._renewed(ticket))), some)
            for script, some in groups
        ]

    def _scripts(self, ticket: Ticket) -> Scripts:
        return self.layout.scripts_of(ticket.terms.mode.kind)

    def _command(self, script: Script, name: str, ticket: Ticket, *args: bytes) -> Command:
        renews = script is self._scripts(ticket).renew
        return script, self.layout.keys_of(self._namespace, name, ticket, renews=renews), args

    def _renewed(self, ticket: Ticket) -> tuple[bytes, bytes]:
        return self._id(ticket), b"%d" % ms(ticket.terms.lease)

    def _id(self, ticket: Ticket) -> bytes:
        return self.layout.id_in(ticket).encode()

    def _until_next_look(self, left: float, *, first: bool) -> float:
        """Return seconds until a waiter claims again without a message: the lease's end, or earlier where it polls."""
        poll = (self.layout.poll or inspecting.ENDLESS) * (0.5 + self._runtime.jitter()) * (1 if first else SELDOM)
        return poll if left < 0 else min(left, poll) if self.layout.poll else left

    def _no_lock(self, name: str, kind: str) -> NameInUse:
        key = self.layout.lock_key(self._namespace, name)
        text = f"{name!r} cannot be a lock: its key {key.decode()!r} at {self.where} is a {kind} of another program"
        other = f", or another {self.layout.option}= in the URL" if self.layout.option else ""
        if kind.startswith("semaphore"):
            keys = ", ".join(repr(each.decode()) for each in (key, *self.layout.more_keys(key, Kind.SEMAPHORE)))
            other = f", or this number; if a key of it was lost, delete {keys} while nobody holds it"
        return NameInUse(f"{text}; choose another name{other}", name=name)

    def __repr__(self) -> str:
        return f"<LayoutStore {self.layout.name} {self.where} namespace={self._namespace!r}>"
