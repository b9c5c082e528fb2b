"""The one acquire loop, and its counterpart: claim, wait, claim again, until the deadline; then leave.

Theory of operation
-------------------
The ticket's id is chosen before anything is sent. So at every point where this can be cut off, the way out is the same:
*leave by ticket*. If the claim never arrived, the leave finds nothing; if it was queued, it takes it out; if it was
granted at the last moment, it frees the name and hands it on. A leave that gets no answer is owed to the keeper.

A request whose reply was lost is repeated with the same ticket: a claim finds its own grant, with the same token; a
leave finds nothing, and that is no loss. At first contact a store that refuses is an error at once; a waiter that has
been in the queue rides over an outage for as long as its own lease.

Validity counts from before the request was sent. A grant that arrives too late to be believed is left, and tried again
with a fresh ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from leasehold.engine.attempt import FIRST_PAUSE, Attempt, Missed
from leasehold.engine.events import Observer, Released
from leasehold.engine.hold import Lease
from leasehold.engine.keeper import Keeper
from leasehold.errors import StoreUnavailable
from leasehold.model import Departure, Standing, Terms, Ticket, ticket_id
from leasehold.runtimes.base import Runtime
from leasehold.runtimes.process import whoami
from leasehold.stores.base import Store

T = TypeVar("T")

LEAVE_WITHIN = 1.0
"""Seconds that a caller waits at most for a leave to be confirmed; after that the keeper repeats it."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts to reach a store that does not answer, at most."""


class Engine:
    """Everything that the locks of one client share."""

    def __init__(self, runtime: Runtime, store: Store, *, response_timeout: float, observe: Observer | None) -> None:
        self.runtime = runtime
        self.store = store
        self.owner = whoami(runtime)
        self.response_timeout = response_timeout
        self.observe = observe
        self.keeper = Keeper(runtime, store, response_timeout)
        self._closed = False
        self._attempts: set[Attempt] = set()
        self._ended = runtime.signal()  # one of them ended, while the client closes

    def ready(self) -> None:
        """Check, at the start of each public operation, that it may begin."""
        self.refuse_closed()
        self.runtime.before_blocking()

    def refuse_closed(self) -> None:
        """Raise if the client was closed, by whomever, before or meanwhile."""
        if self._closed:
            raise RuntimeError("this leasehold client is closed; make another")

    def owns(self, lease: Lease) -> bool:
        """Say whether a lease is of this process; one that a fork copied from the parent is ended here."""
        ours = lease.ticket.terms.owner is self.owner
        if not ours:
            lease.after_fork()
        return ours

    async def close(self, within: float) -> None:
        """Leave with every ticket, end the keeper, close the store; in about ``within`` seconds."""
        if not self._closed:
            self._closed = True
            await self.runtime.shield(self._close(within))

    async def _close(self, within: float) -> None:
        until = self.runtime.now() + within
        try:
            for lease in self.keeper.leases():
                if lease.leaves():
                    lease.why = "its client was closed"
                    if self.runtime.now() < until:
                        await self.leave(lease)
            await self._attempts_end(until)
        finally:
            await self.keeper.close(max(0.0, until - self.runtime.now()))
            await self.store.close()
            self.runtime.close()

    async def _attempts_end(self, until: float) -> None:
        """Let those who still try find out: a claim that was under way when we left for it is left by them."""
        while self._attempts and self.runtime.now() < until:
            self._ended.clear()
            if self._attempts:
                await self._ended.wait(until - self.runtime.now())

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent: nothing is sent, and the client can be used anew."""
        self.owner = whoami(self.runtime)
        self._attempts, self._ended = set(), self.runtime.signal()
        self.keeper.after_fork()
        self.store.after_fork()

    def ticket(self, terms: Terms, beside: str = "") -> Ticket:
        """Make a ticket with an id that nobody has."""
        if terms.owner is not self.owner:  # the lock object was made before a fork
            terms = replace(terms, owner=self.owner)
        return Ticket(ticket_id(self.runtime.random_bytes(16)), terms, beside)

    async def acquire(
        self,
        name: str,
        terms: Terms,
        *,
        timeout: float | None,
        join: bool = True,
        renew: bool = True,
        max_hold: float | None = None,
        beside: str = "",
    ) -> Lease | Missed:
        """Get ``name``, waiting at most ``timeout`` seconds (None: for ever); without ``join`` try once.

        With ``beside`` it may stand beside the ticket with that id, which is the caller's own (see `Ticket`).

        Returns:
            The lease, held; or `Missed` if someone else had the name.

        Raises:
            StoreUnavailable: the store did not answer, so nobody knows who has it. Nothing is left behind for longer
                than a lease.
            LeaseLost: it was granted, but until the timeout the answer came too late to be of use.
            WrongKind: the name is in use as another primitive.

        """

        def fresh() -> Lease:
            ticket = self.ticket(terms, beside)
            return Lease(self.runtime, name, ticket, renew=renew, max_hold=max_hold, observe=self.observe)

        attempt = Attempt(self, fresh, timeout=timeout, join=join)
        self._attempts.add(attempt)
        try:
            return await attempt.run()
        except GeneratorExit:  # the loop is gone with the task in it: nothing can be awaited any more
            attempt.abandon()
            raise
        except BaseException as error:
            await attempt.give_up(type(error).__name__)
            raise
        finally:
            self._attempts.discard(attempt)
            if self._closed:
                self._ended.set()

    async def release(self, lease: Lease) -> bool:
        """Leave; return whether the store confirmed. If not, the name is free by the end of the lease at the latest.

        Raises:
            LeaseLost: it was lost before; whoever has the name now keeps it.

        """
        return await self.runtime.shield(self._release(lease))

    async def _release(self, lease: Lease) -> bool:
        ours = self.owns(lease)
        holding = lease.leaves()
        self.keeper.forget(lease)
        if not holding:
            if ours:
                self.keeper.owe(lease.name, lease.ticket)  # the store may have renewed it without our knowing
            raise lease.error()
        was_there = await self.leave(lease)
        if was_there is False:
            lease.was_gone("it was gone when it was released (expired, broken or evicted)")
            raise lease.error()
        if self.observe is not None:
            now = self.runtime.now()
            confirmed = was_there is not None
            self.observe(Released(lease.name, str(self.owner), now, lease.token, now - lease.since, confirmed))
        return was_there is not None

    async def leave(self, lease: Lease) -> bool | None:
        """Take the ticket off the store; return whether it was there, None if that is not known.

        Without an answer the keeper goes on trying.
        """

        def ask(within: float) -> Coroutine[Any, Any, bool]:
            return self.store.leave(lease.name, lease.ticket, how=Departure.RELEASE, within=within)

        try:
            was_there, repeated = await self.repeat(ask, min(self.response_timeout, LEAVE_WITHIN))
        except StoreUnavailable:
            self.keeper.owe(lease.name, lease.ticket)
            return None
        return was_there or (None if repeated else False)

    async def extend(self, lease: Lease) -> None:
        """Set the lease to its full length now.

        Raises:
            LeaseLost: it has ended.
            StoreUnavailable: no answer; the hold goes on as it was until its deadline.

        """
        self.owns(lease)
        if not lease.check_deadline():
            raise lease.error()
        sent = self.runtime.now()
        (standing,) = await self.store.renew([(lease.name, lease.ticket)], within=self.response_timeout)
        if standing is Standing.UNKNOWN:
            raise StoreUnavailable(
                f"the store did not confirm the renewal of {lease.name!r}", name=lease.name, unknown=True
            )
        if standing is not Standing.HELD:
            lease.gone("the store no longer knows it (expired, broken or evicted)")
        lease.renewed(sent)
        if not lease.check_deadline():
            raise lease.error()
        self.keeper.granted(lease)

    async def repeat(
        self, ask: Callable[[float], Coroutine[Any, Any, T]], within: float, *, through_outage: bool = False
    ) -> tuple[T, bool]:
        """Ask until there is an answer, for at most ``within`` seconds; return it, and whether it was asked twice.

        A refusal ends it at once, unless ``through_outage``.
        """
        until = self.runtime.now() + within
        pause, repeated = FIRST_PAUSE, False
        while True:
            try:
                return await ask(max(until - self.runtime.now(), FIRST_PAUSE)), repeated
            except StoreUnavailable as error:
                left = until - self.runtime.now() - pause
                if left <= 0 or error.lasting or not (error.unknown or through_outage):
                    raise
                repeated = repeated or error.unknown
            await self.runtime.sleep(pause * (0.5 + self.runtime.jitter() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)
