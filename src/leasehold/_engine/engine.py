"""What the locks of one client share: leases and releases. The acquire loop is in `acquire`, the close in `closing`.

Theory of operation
-------------------
The client chooses the ticket's id before it sends anything. So an attempt can be undone wherever it is interrupted, and
always in the same way: *release the ticket*.

* The request never arrived: the release finds nothing.
* The ticket waits in the queue: the release removes it.
* The ticket was granted at the last moment: the release frees the name and hands it to the next waiter.

A release that gets no answer is repeated by the watchdog in the background.

A request whose reply was lost is repeated with the same ticket. A repeated acquire finds its own grant, with the same
token. A repeated release finds nothing, and that is no loss. On the first contact, a refusal is an error at once.
A queued waiter tolerates an outage of up to one lease.

A lease counts from before its request was sent. A grant that arrives after its deadline is released, and the client
tries again with a new ticket.

Every lock and hold refers to its engine, and so does the watchdog, whose thread or task runs while it has leases. So
the engine, unlike the client object, is there as long as anything of it can be used. It is what a fork makes anew, and
what the end of the interpreter closes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from leasehold._engine import closing
from leasehold._engine.lease import Lease, LeaseHandle
from leasehold._engine.retry import Contact, Request, asked, repeat, retry
from leasehold._engine.watchdog.background import RELEASE_WITHIN
from leasehold._engine.watchdog.timers import renewable_until
from leasehold._engine.watchdog.watchdog import Watchdog
from leasehold._model import AcquireRequest, LeaseTerms, LockMode, ReleaseReason, RenewalResult, Ticket, ticket_id
from leasehold._runtimes.base import INTERRUPTS_MESSAGE, Runtime
from leasehold._runtimes.process import notify_after_fork, whoami
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.events import Released, SelectiveObserver, Tally
from leasehold.store_api import ReportsLosses, Store

T = TypeVar("T")

PROBE = "leasehold/ping"
"""The name for which `Engine.ping` releases an unused ticket. If the name is in use, its holders notice nothing."""


class Table(Protocol):
    """A table that can be emptied."""

    def clear(self) -> None: ...


class Engine:
    """What the locks of one client share.

    Attributes:
        of_process: tables of the client whose contents belong to this process: a forked child empties them.
    """

    def __init__(
        self, runtime: Runtime, store: Store, *, response_timeout: float, observer: SelectiveObserver, namespace: str
    ) -> None:
        self.runtime = runtime
        self.store = store
        self.owner = whoami(runtime)
        self.response_timeout = response_timeout
        self.observer = observer
        self.tally: Tally | None = getattr(observer, "tally", None)
        self.contact = Contact(observer)
        self.origin = (repr(store), namespace)  # for events; a client made from a URL replaces the repr by the URL
        self.watchdog = Watchdog(runtime, store, response_timeout, self.contact)
        self.watchdog.engine = self
        self._terms: LeaseTerms | None = None  # of the lock that was made last
        self.release_within = min(response_timeout, RELEASE_WITHIN)
        if isinstance(store, ReportsLosses):
            store.report_losses(self.watchdog.on_report)
        self.closed = False  # whether the client was closed
        self.attempts: dict[object, None] = {}  # acquires and releases under way; a close waits for them
        self.ended = runtime.signal()  # set when one of them ends while the client closes
        self.unwaited: set[Lease] = set()  # whose releases are left to the watchdog, as the store was silent just now
        self.of_process: tuple[Table, ...] = ()
        notify_after_fork(self)

    def ready(self) -> None:
        """Check at the start of each public operation that it may begin."""
        if self.closed:
            self.refuse_closed()
        self.runtime.before_blocking()

    def refuse_closed(self) -> None:
        """Raise RuntimeError if the client was closed."""
        if self.closed:
            raise RuntimeError("this leasehold client is closed; make another")

    def check_owner(self, lease: Lease) -> bool:
        """Return whether a lease belongs to this process; end one that a fork copied from the parent."""
        ours = lease.ticket.terms.owner is self.owner
        if not ours:
            lease.after_fork()
        return ours

    async def close(self, within: float = closing.CLOSE_WITHIN) -> None:
        """End every hold as a loss, release every ticket, and end the watchdog, in about ``within`` seconds."""
        if self.closed:
            return
        if self.runtime.interrupts():
            raise RuntimeError(INTERRUPTS_MESSAGE)
        await closing.close(self, within)

    def after_fork(self) -> None:
        """Drop what belongs to the parent, in a forked child; nothing is sent, and the client can be used there."""
        self.owner = whoami(self.runtime)
        self._terms = None
        for table in self.of_process:
            table.clear()
        self.attempts, self.ended = {}, self.runtime.signal()
        self.watchdog.after_fork()
        self.store.after_fork()

    def shared_terms(self, terms: LeaseTerms) -> LeaseTerms:
        """Return the terms of the last lock if they are equal to these: most locks of a client share one object."""
        known = self._terms
        if known is None or known != terms:
            known = self._terms = terms
        return known

    def ticket(self, terms: LeaseTerms, alongside: str = "") -> Ticket:
        """Make a ticket with a new random id."""
        return Ticket(ticket_id(self.runtime.random_bytes(16)), self._ours(terms), alongside)

    def lease(self, request: AcquireRequest) -> LeaseHandle:
        """Make a lease with a new ticket; it is renewed while the program refers to the returned handle."""
        name, terms, _, renew, max_hold, alongside, _ = request
        if not renew or max_hold is not None:
            terms = replace(terms, fixed=True)
        if terms.owner is not self.owner:
            terms = self._ours(terms)
        ticket = Ticket(ticket_id(self.runtime.random_bytes(16)), terms, alongside)
        return LeaseHandle(Lease(self.runtime, name, ticket, terms.lease, renew, max_hold, self.observer, self.origin))

    def _ours(self, terms: LeaseTerms) -> LeaseTerms:
        """Return terms of this process: the lock object may have been made before a fork."""
        return terms if terms.owner is self.owner else replace(terms, owner=self.owner)

    def wake_close(self) -> None:
        """Wake a `close` that waits for attempts and blocks, after one of them has ended.

        The caller removes the attempt from `attempts` first: a signal handler may raise as the call begins.
        """
        if self.closed:
            self.ended.set()

    def begin_release(self, lease: Lease) -> bool:
        """End the lease and its renewals; return False if it was lost before."""
        ours = self.check_owner(lease)
        holding = lease.begin_release()
        self.watchdog.forget(lease)
        if ours and not holding and not self.closed:  # `close` releases all tickets itself
            # The store may have renewed it though the answer was lost.
            self.watchdog.retry_release(lease.name, lease.ticket)
        return holding

    def end_release(self, lease: Lease, was_there: bool | None) -> bool:
        """End a release with the answer of the store; return whether it confirmed.

        Raises:
            LeaseLost: the store did not know the ticket; the present holder is not affected.
        """
        if was_there is False:
            lease.lost_before_release("it was gone when it was released (expired, broken or evicted)")
            raise lease.error()
        confirmed = was_there is not None
        if self.tally is not None:
            self.tally.released(lease.name, self.runtime.now() - lease.since)
        if not confirmed or self.observer.wants(Released):
            now = self.runtime.now()
            facts = lease.token, now - lease.since, confirmed
            self.observer(Released(*lease.event_fields(), *facts, took=now - lease.released))
        return confirmed

    async def send_release(self, lease: Lease) -> bool | None:
        """Release the ticket in the store; return whether the store knew it, None if that is unknown.

        Without an answer the watchdog repeats it in the background. If a signal handler releases while it interrupts
        another call of its own thread, the watchdog sends the first request, too.
        """
        if lease in self.unwaited or self.runtime.interrupts():
            self.watchdog.retry_release(lease.name, lease.ticket)
            return None
        until = self.runtime.now() + self.release_within
        try:
            return await self.store.release(
                lease.name, lease.ticket, reason=ReleaseReason.RELEASE, within=self.release_within
            )
        except StoreUnavailable as error:
            return await self.send_release_again(lease, error, until)
        except BaseException as error:
            if not isinstance(error, Exception | GeneratorExit):  # the program cancelled the shielded task, too
                self.watchdog.retry_release(lease.name, lease.ticket)
            raise

    async def send_release_again(self, lease: Lease, failed: StoreUnavailable, until: float) -> bool | None:
        """Retry a release after its first failure, until the boot-time clock reads ``until``."""
        self.contact.failed(lease, "release", failed)

        def request(within: float) -> Coroutine[Any, Any, bool]:
            return self.store.release(lease.name, lease.ticket, reason=ReleaseReason.RELEASE, within=within)

        try:
            was_there, repeated = await retry(self.runtime, failed, request, until)
        except StoreUnavailable:
            self.watchdog.retry_release(lease.name, lease.ticket)
            return None
        return was_there or (None if repeated else False)

    def check_renewable(self, lease: Lease) -> None:
        """Raise LeaseLost if a lease has ended, and RuntimeError if its ``max_hold`` is over."""
        self.check_owner(lease)
        if not lease.check_deadline():
            raise lease.error()
        if self.runtime.now() >= renewable_until(lease):
            why = f"it would last beyond its max_hold and one lease; it ends within {lease.remaining():.1f} s"
            raise RuntimeError(f"the hold of lock {lease.name!r} is renewed no more: {why}")

    async def renew(self, *leases: Lease) -> None:
        """Set leases to their full length now, in one request.

        Raises:
            LeaseLost: one has ended.
            RuntimeError: the ``max_hold`` of one is over; nothing was sent.
            StoreUnavailable: no answer; the hold stays as it was until its deadline.
        """
        for lease in leases:
            self.check_renewable(lease)
        sent = self.runtime.now()
        pairs = [(lease.name, lease.ticket) for lease in leases]
        try:
            results = await asked(self.store.renew(pairs, within=self.response_timeout))
        except StoreUnavailable as failure:
            self.contact.failed(leases[0], "renew", failure)
            raise
        errors = [self._take_renewal(*answer, sent) for answer in zip(leases, results, strict=True)]
        for error in filter(None, errors):
            raise error

    def _take_renewal(self, lease: Lease, result: RenewalResult, sent: float) -> LeaseholdError | None:
        if result is RenewalResult.UNKNOWN:
            why = f"the store did not confirm the renewal of {lease.name!r}"
            return StoreUnavailable(why, name=lease.name, unknown=True)
        if result is not RenewalResult.HELD:
            lease.mark_lost("the store no longer knows it (expired, broken or evicted)")
        lease.renewed(sent, restart=True)
        if not lease.check_deadline():
            return lease.error()
        self.watchdog.granted(lease)
        return None

    async def ping(self) -> None:
        """Send a forced release of an unused ticket: it changes nothing, but needs a store that accepts writes.

        A read is not enough: a replica, a read-only file and a read-only database answer reads.
        """
        ticket = self.ticket(LeaseTerms(LockMode(), self.owner, lease=0.001))  # no store repeats it for longer

        def request(within: float) -> Coroutine[Any, Any, bool]:
            return self.store.release(PROBE, ticket, reason=ReleaseReason.BREAK, within=within)

        await self.repeat(request, self.response_timeout)

    def repeat(
        self, request: Request[T], within: float, *, through_outage: bool = False
    ) -> Coroutine[Any, Any, tuple[T, bool]]:
        """Send a request until it has an answer; see `leasehold._engine.retry.repeat`."""
        return repeat(self.runtime, request, within, through_outage=through_outage)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store!r}>"
