"""What the locks of one client share: leases, releases, repeated requests, the close. The acquire loop is in `acquire`.

Theory of operation
-------------------
The ticket's id is chosen before anything is sent. So at every point where this can be cut off, the way out is the same:
*leave by ticket*. If the claim never arrived, the leave finds nothing; if it was queued, it takes it out; if it was
granted at the last moment, it frees the name and hands it on. A leave that gets no answer is owed to the watchdog.

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

from leasehold._engine.lease import HOLDING, Later, Lease, LeaseHandle
from leasehold._engine.request import AcquireRequest
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold._model import LeaseTerms, ReleaseReason, RenewalResult, Ticket, ticket_id
from leasehold._runtimes.base import INTERRUPTS, Runtime, Scope
from leasehold._runtimes.process import whoami
from leasehold.errors import LeaseholdError, LeaseLost, StoreUnavailable
from leasehold.events import Choosy, Released
from leasehold.store_api import ReportsLosses, Store

T = TypeVar("T")

FIRST_PAUSE = 0.005
"""Seconds before a request without an answer is sent again; each further pause is twice as long, with jitter."""

LEAVE_WITHIN = 1.0
"""Seconds that a caller waits at most for a leave to be confirmed; after that the watchdog repeats it."""

LONGEST_PAUSE = 1.0
"""Seconds between two attempts to reach a store that does not answer, at most."""


class Engine:
    """Everything that the locks of one client share."""

    def __init__(self, runtime: Runtime, store: Store, *, response_timeout: float, observe: Choosy) -> None:
        self.runtime = runtime
        self.store = store
        self.owner = whoami(runtime)
        self.response_timeout = response_timeout
        self.observe = observe
        self.watchdog = Watchdog(runtime, store, response_timeout)
        self._terms: LeaseTerms | None = None  # those of the last lock that was made
        self.leave_within = min(response_timeout, LEAVE_WITHIN)  # for which a caller waits at most for a leave
        if isinstance(store, ReportsLosses):
            store.report_losses(self.watchdog.on_report)
        self.closed = False  # whether the client was closed
        self.attempts: set[object] = set()  # acquires and releases under way: a close waits for them
        self._ended = runtime.signal()  # one of them ended, while the client closes

    def ready(self) -> None:
        """Check, at the start of each public operation, that it may begin."""
        if self.closed:
            self.refuse_closed()
        self.runtime.before_blocking()

    def refuse_closed(self) -> None:
        """Raise if the client was closed, by whomever, before or meanwhile."""
        if self.closed:
            raise RuntimeError("this leasehold client is closed; make another")

    def owns(self, lease: Lease) -> bool:
        """Say whether a lease is of this process; one that a fork copied from the parent is ended here."""
        ours = lease.ticket.terms.owner is self.owner
        if not ours:
            lease.after_fork()
        return ours

    async def close(self, within: float) -> None:
        """End every hold as a loss, leave with every ticket, and end the watchdog; in about ``within`` seconds."""
        if self.closed:
            return
        if self.runtime.interrupts():
            raise RuntimeError(INTERRUPTS)
        self.closed = True
        calls: Later = []
        ended = [lease for lease in self.watchdog.leases() if self._ends(lease, calls)]
        # A block that is cut short here is its task's to leave; our own block, if there is one, cannot be waited for.
        blocks = [scope for lease in ended for scope in lease.scopes if not (scope.is_mine() or scope.is_over())]
        await self.runtime.shield(self._close(ended, blocks, calls, within))

    def _ends(self, lease: Lease, calls: Later) -> bool:
        """End a hold whose client is closed; ``calls`` takes what its holder wants called."""
        why = "its client was closed"
        if lease.state not in HOLDING:
            lease.why = lease.why or why
            return lease.leaves()
        return lease.gone(why, calls)

    async def _close(self, ended: list[Lease], blocks: list[Scope], calls: Later, within: float) -> None:
        until = self.runtime.now() + within
        try:
            await self._holders_know(ended, blocks, calls, within / 2)
            for lease in ended:
                if self.runtime.now() < until:
                    await self.leave(lease)
            await self._attempts_end(until)
        finally:
            await self.watchdog.close(max(0.0, until - self.runtime.now()))
            await self.store.close()
            self.runtime.close()

    async def _holders_know(self, ended: list[Lease], blocks: list[Scope], calls: Later, within: float) -> None:
        """Call holders back, and wait until their blocks have ended; for so many seconds at most."""
        until = self.runtime.now() + within

        async def call_all() -> None:
            for call in calls:
                call()

        if calls:
            try:
                job = self.runtime.spawn(call_all, "leasehold-close")
            except RuntimeError:  # no thread to be had
                await call_all()
            else:
                await job.join(within)
        while self.runtime.now() < until:
            self._ended.clear()
            if all(scope.is_over() for scope in blocks):
                return
            await self._ended.wait(until - self.runtime.now())

    def block_ended(self) -> None:
        """Take note that a block ended: the client may be closing, and wait for it."""
        if self.closed:
            self._ended.set()

    async def _attempts_end(self, until: float) -> None:
        """Let those who still try find out: a claim that was under way when we left for it is left by them.

        And let those who release have their answer: without it nobody knows whether the store was reached.
        """
        while self.attempts and self.runtime.now() < until:
            self._ended.clear()
            if self.attempts:
                await self._ended.wait(until - self.runtime.now())

    def after_fork(self) -> None:
        """Drop, in a forked child, what belongs to the parent: nothing is sent, and the client can be used anew."""
        self.owner = whoami(self.runtime)
        self._terms = None
        self.attempts, self._ended = set(), self.runtime.signal()
        self.watchdog.after_fork()
        self.store.after_fork()

    def same(self, terms: LeaseTerms) -> LeaseTerms:
        """Return terms equal to these, the same as before if they are: most locks of a client share one object then."""
        known = self._terms
        if known is None or known != terms:
            known = self._terms = terms
        return known

    def ticket(self, terms: LeaseTerms, alongside: str = "") -> Ticket:
        """Make a ticket with an id that nobody has."""
        if terms.owner is not self.owner:  # the lock object was made before a fork
            terms = replace(terms, owner=self.owner)
        return Ticket(ticket_id(self.runtime.random_bytes(16)), terms, alongside)

    def lease(self, request: AcquireRequest) -> LeaseHandle:
        """Begin the life of a ticket; it is kept while somebody can reach the handle."""
        terms = request.terms
        if not request.renew or request.max_hold is not None:
            terms = replace(terms, fixed=True)
        ticket = self.ticket(terms, request.alongside)
        lease = Lease(
            self.runtime,
            request.name,
            ticket,
            renew=request.renew,
            max_hold=request.max_hold,
            observe=self.observe,
        )
        return LeaseHandle(lease)

    def ended(self) -> None:
        """Take note that one of the attempts ended: the client may be closing, and wait for it.

        Whoever ends takes itself out: a signal handler may raise in any call of ours before its first line.
        """
        if self.closed:
            self._ended.set()

    async def release(self, lease: Lease) -> bool:
        """Leave; return whether the store confirmed. If not, the name is free by the end of the lease at the latest.

        Raises:
            LeaseLost: it was lost before; whoever has the name now keeps it.

        """
        attempts = self.attempts
        try:
            attempts.add(lease)  # before it is forgotten: a close finds it in one of both, and waits
            if not self.departs(lease):
                raise lease.error()
            was_there = await self.leave(lease)
        except (GeneratorExit, LeaseLost):  # the loop is gone with the task in it: nothing can be awaited any more
            raise
        except BaseException:
            # Cut off while it asked, or, by a signal handler, before: asked once more, since a leave may be repeated,
            # where nothing cuts it off. Only then is that worth a task of its own.
            await self.runtime.shield(self.leave_again(lease))
            raise
        finally:
            attempts.discard(lease)
            if self.closed:
                self._ended.set()
        return self.departed(lease, was_there)

    async def leave_again(self, lease: Lease) -> None:
        """Leave after a release that was cut off, at whatever step."""
        if not self.owns(lease):
            return
        lease.leaves()
        self.watchdog.forget(lease)
        was_there = await self.leave(lease)
        self.attempts.discard(lease)  # before the holder is told: it may close the client
        self.departed(lease, was_there or None)  # it may have been the first that took it out

    def departs(self, lease: Lease) -> bool:
        """Begin to leave: look after it no longer. Return False if it was lost before."""
        ours = self.owns(lease)
        holding = lease.leaves()
        self.watchdog.forget(lease)
        if ours and not holding and not self.closed:  # a close leaves with all of them
            self.watchdog.retry_release(lease.name, lease.ticket)  # the store may have renewed it without our knowing
        return holding

    def departed(self, lease: Lease, was_there: bool | None) -> bool:
        """End a release with what the store said; return whether it confirmed.

        Raises:
            LeaseLost: it was gone, so whoever has the name now keeps it.

        """
        if was_there is False:
            lease.was_gone("it was gone when it was released (expired, broken or evicted)")
            raise lease.error()
        confirmed = was_there is not None
        if not confirmed or self.observe.wants(Released):
            now = self.runtime.now()
            self.observe(Released(lease.name, str(self.owner), now, lease.token, now - lease.since, confirmed))
        return confirmed

    async def leave(self, lease: Lease) -> bool | None:
        """Take the ticket off the store; return whether it was there, None if that is not known.

        Without an answer the watchdog goes on trying. It does all of it where a signal handler releases in the middle
        of another call of its own thread.
        """
        if self.runtime.interrupts():
            self.watchdog.retry_release(lease.name, lease.ticket)
            return None
        until = self.runtime.now() + self.leave_within
        try:
            return await self.store.release(
                lease.name, lease.ticket, reason=ReleaseReason.RELEASE, within=self.leave_within
            )
        except StoreUnavailable as error:
            failed = error

        def ask(within: float) -> Coroutine[Any, Any, bool]:
            return self.store.release(lease.name, lease.ticket, reason=ReleaseReason.RELEASE, within=within)

        try:
            was_there, repeated = await self.again(failed, ask, until)
        except StoreUnavailable:
            self.watchdog.retry_release(lease.name, lease.ticket)
            return None
        return was_there or (None if repeated else False)

    async def renew(self, *leases: Lease) -> None:
        """Set leases to their full length now, in one request.

        Raises:
            LeaseLost: one has ended.
            StoreUnavailable: no answer; the hold goes on as it was until its deadline.

        """
        for lease in leases:
            self.owns(lease)
            if not lease.check_deadline():
                raise lease.error()
        sent = self.runtime.now()
        asked = [(lease.name, lease.ticket) for lease in leases]
        results = await self.store.renew(asked, within=self.response_timeout)
        errors = [self._extended(*answer, sent) for answer in zip(leases, results, strict=True)]
        for error in filter(None, errors):
            raise error

    def _extended(self, lease: Lease, result: RenewalResult, sent: float) -> LeaseholdError | None:
        if result is RenewalResult.UNKNOWN:
            why = f"the store did not confirm the renewal of {lease.name!r}"
            return StoreUnavailable(why, name=lease.name, unknown=True)
        if result is not RenewalResult.HELD:
            lease.gone("the store no longer knows it (expired, broken or evicted)")
        lease.renewed(sent, anew=True)
        if not lease.check_deadline():
            return lease.error()
        self.watchdog.granted(lease)
        return None

    async def repeat(
        self, ask: Callable[[float], Coroutine[Any, Any, T]], within: float, *, through_outage: bool = False
    ) -> tuple[T, bool]:
        """Ask until there is an answer, for at most ``within`` seconds; return it, and whether it was asked twice.

        A refusal ends it at once, unless ``through_outage``.
        """
        until = self.runtime.now() + within
        try:
            return await ask(within), False
        except StoreUnavailable as error:
            failed = error
        return await self.again(failed, ask, until, through_outage=through_outage)

    async def again(
        self,
        failed: StoreUnavailable,
        ask: Callable[[float], Coroutine[Any, Any, T]],
        until: float,
        *,
        through_outage: bool = False,
    ) -> tuple[T, bool]:
        """Do as `repeat` does, after the first time has failed, until a reading of the clock."""
        pause, repeated = FIRST_PAUSE, False
        while True:
            left = until - self.runtime.now() - pause
            if left <= 0 or failed.lasting or not (failed.unknown or through_outage):
                failed.unknown = failed.unknown or repeated  # what was refused now may have been done before
                raise failed
            repeated = repeated or failed.unknown
            await self.runtime.sleep(pause * (0.5 + self.runtime.jitter() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                return await ask(max(until - self.runtime.now(), FIRST_PAUSE)), repeated
            except StoreUnavailable as error:
                failed = error
