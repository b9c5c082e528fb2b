"""A lease: one ticket from its request to its end, with the deadline until which its holder may believe in it.

Theory of operation
-------------------
A `Lease` is shared by the acquire loop, the watchdog and the holder. Its states and transitions are a table
(`leasehold._engine.lease_states`). Its deadline is

    deadline = since + lease * (1 - DRIFT) - MARGIN

``since`` is the boot-time clock, read *before* the client sent the request that the store confirmed. (The reasoning is
that of Gray and Cheriton, "Leases", SOSP 1989.) The store started its own count later. So it cannot give the name away
before our deadline, as long as our clock is not slower than the store's by more than DRIFT. No message is needed to
detect that the deadline has passed: every public call compares it with the clock.

A store whose sessions are shorter than a fixed lease grants less than was requested. Such a lease is renewed until the
requested time has passed, and no longer.

A renewal without an answer puts the lease *in doubt*. It is not lost: the holder still holds until the deadline. But
doubt does not extend it either: only a confirmed renewal moves the deadline.

Who keeps a lease alive
-----------------------
One rule holds for every primitive: a lease is renewed while the program refers to its `LeaseHandle`. First the
acquire loop has the handle, then the hold, or the block in which the hold is used. It does not matter which thread or
task acquired. When nothing refers to the handle any more, the program cannot release the lease. The watchdog ends it
as a loss, since an `on_lost` callback may be registered.

No mutex
--------
A signal handler may interrupt a thread at any line here and call this code again. A mutex that the interrupted frame
holds would block the handler, and then the watchdog, for ever. So nothing here takes a mutex. A lease ends by one
atomic step: the first entry in a list decides how (`_end`). A later caller, or one that finds a half-done end,
completes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from leasehold._engine.lease_states import ENDED, TABLE, State, Transition
from leasehold._model import DRIFT, MARGIN, Granted, Ticket
from leasehold._runtimes.base import Caller, Flavor, Runtime, Scope, call_each, call_user_code, is_own_error
from leasehold._runtimes.log import log
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import InDoubt, Lost, Observer, Renewed, RenewedLate

OnLost = Callable[[LeaseLost], None]

Later = list[Callable[[], None]]
"""Calls of users' callbacks that are made later: they may be slow, and other leases must be checked first."""

LATE = 1 / 3  # a renewal counts as late if a smaller part of the lease was left; two thirds are usual


def deadline_of(since: float, lease: float) -> float:
    """Return the boot-time clock reading until which a grant confirmed for ``lease`` seconds may be believed."""
    return since + lease * (1.0 - DRIFT) - MARGIN


class LeaseHandle:
    """Keeps a lease alive: code that refers to the handle can still release, or believes that it holds."""

    __slots__ = ("__weakref__", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        lease.handle = weakref.ref(self)


class KeepsHolds(Protocol):
    """A lock object: it keeps holds alive for the threads and tasks that acquired them, until these have ended."""

    def drop_ended_callers(self) -> None: ...

    def lists(self, lease: object, caller: Caller) -> bool:
        """Return whether a thread or task acquired this lease through it, and has not released it."""
        ...


_made: dict[Lease, list[OnLost]] = {}
"""Lists of callbacks that are just made: two threads that make one for the same lease get the same."""


def _nothing() -> None:
    """Be the weak reference to an object that does not exist yet."""


class Lease:
    """One ticket from its request to its end. Safe to use from any thread, and from signal handlers."""

    __slots__ = (
        *("_callbacks", "_ends", "_runtime", "_state", "confirmed", "deadline", "doubts", "entry", "failure"),
        *("fixed_end", "handle", "length", "lock_object", "max_hold", "name", "observer", "origin", "released"),
        *("renew", "scopes", "since", "ticket", "token", "why"),
    )

    handle: Callable[[], LeaseHandle | None]
    lock_object: Callable[[], KeepsHolds | None]

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        ticket: Ticket,
        length: float,  # seconds; a store with sessions may grant another length than was requested
        renew: bool = True,
        max_hold: float | None = None,
        observer: Observer | None = None,
        origin: tuple[str, str] = ("", ""),  # for events: the store, described for people, and the namespace
    ) -> None:
        self._runtime = runtime
        self.name = name
        self.ticket = ticket
        self.length = length
        self.renew = renew
        self.max_hold = max_hold
        self.observer = observer
        self.origin = origin
        self._state = State.QUEUED  # never in doubt: that is held, with doubts
        self.token = 0
        self.since = self.confirmed = 0.0  # boot-time clock at the grant, and when the grant arrived here
        self.deadline = 0.0
        self.released = 0.0  # boot-time clock when its holder released it
        self.fixed_end = 0.0  # boot-time clock beyond which renewals do not move the deadline of a fixed lease
        self.doubts = 0  # renewals without an answer, in a row
        self.why = ""
        self.failure: StoreUnavailable | None = None  # why the last renewal failed, in doubt and if that lost the lease
        self.scopes: tuple[Scope, ...] = ()  # the blocks that a loss interrupts, outermost first
        self.handle = self.lock_object = _nothing  # the lock object keeps the hold for who acquired it
        self.entry: object = None  # of a re-entrant lock: its record, which lives as long; of a plain one: its `Caller`
        self._ends: list[tuple[State, str]] = []  # how it ended: the first entry counts
        self._callbacks: list[OnLost] | None = None  # each is removed before it is called

    @property
    def state(self) -> State:
        """The state of the lease."""
        return State.IN_DOUBT if self._state is State.HELD and self.doubts else self._state

    def is_reachable(self) -> bool:
        """Return whether the program can still release it; see "Who keeps a lease alive" above."""
        lock = self.lock_object()
        if lock is not None:
            lock.drop_ended_callers()
        return self.handle() is not None

    # --- transitions -------------------------------------------------------------------------------------------------

    def granted(self, grant: Granted) -> bool:
        """Take the grant; return False if it arrived after its deadline, or the lease has ended meanwhile."""
        deadline, now = deadline_of(grant.since, grant.lease), self._runtime.now()
        if deadline <= now or self._state is not State.QUEUED:
            return False
        self.token, self.since, self.confirmed, self.deadline = grant.token, grant.since, now, deadline
        self.length = grant.lease
        self.fixed_end = deadline if grant.lease >= self.ticket.terms.lease else self._fixed_end(grant.since)
        self._state = State.HELD  # as the table: only from queued
        if self._ends:  # another thread ended it between the check and this step
            self._complete()
            return False
        return True

    @property
    def renews(self) -> bool:
        """Whether the watchdog renews it: not if the lease is fixed and was granted for the requested time."""
        return self.renew or self.deadline < self.fixed_end

    def renewed(self, since: float, *, restart: bool = False) -> None:
        """Take a confirmed renewal that was sent after ``since``; with ``restart`` a fixed lease starts again."""
        doubted, left = self.doubts > 0, self.remaining()
        if self._runtime.now() >= self.deadline or not self._transition(Transition.RENEWED):
            return
        self.failure = None
        deadline = deadline_of(since, self.length)
        if not self.renew:
            if restart:
                self.fixed_end = max(self.fixed_end, self._fixed_end(since))
            deadline = min(deadline, self.fixed_end)
        # Two renewals may be under way: the answer to the older one must not shorten what the newer one gave.
        self.deadline = max(self.deadline, deadline)
        if doubted and self.observer is not None:
            self.observer(Renewed(*self.event_fields(), self.token))
        if left < self.length * LATE and self.renew and not restart and self.observer is not None:
            self.observer(RenewedLate(*self.event_fields(), self.token, left))

    def mark_in_doubt(self, failure: StoreUnavailable | None = None) -> None:
        """Record a renewal without an answer: the lease is in doubt until one is confirmed, or until its deadline."""
        first = not self.doubts
        if not self._transition(Transition.NO_ANSWER):
            return
        self.failure = failure or self.failure
        if first and self.observer is not None:
            self.observer(InDoubt(*self.event_fields(), self.token, self.remaining(), error=self.failure))

    def mark_lost(self, why: str, later: Later | None = None) -> bool:
        """End it as lost, whatever its deadline; return False if it had ended before.

        With ``later``, the holder's callbacks are not called here but put there.
        """
        return self._lose(Transition.LOST, why, later)

    def lost_before_release(self, why: str) -> None:
        """Notify the holder of a loss that its release discovered: the store did not know the ticket any more."""
        self.why, self.failure = why, None
        self._notify()

    def begin_release(self) -> bool:
        """End it as released: from here on the holder does not hold. Return False if it had ended before."""
        if self._state is State.HELD:
            self.released = self._runtime.now()
            if self.released >= self.deadline:
                self.check_deadline()
        return self._state not in ENDED and self._end(State.RELEASED, "")  # as the table

    def check_deadline(self, later: Later | None = None) -> bool:
        """Compare the deadline with the clock; return whether it is held. ``later`` as in `mark_lost`."""
        if self._state is State.HELD and self._runtime.now() < self.deadline:
            return True
        self._lose(Transition.DEADLINE, "the lease expired", later)
        return self._state is State.HELD  # a renewal may have moved the deadline meanwhile

    # --- for the holder ----------------------------------------------------------------------------------------

    def remaining(self) -> float:
        """Return the seconds for which it is held without another renewal; 0 when it has ended."""
        if self._state is not State.HELD:
            return 0.0
        return max(0.0, self.deadline - self._runtime.now())

    def after_fork(self) -> None:
        """End it in a forked child: it belongs to the parent, and the child neither renews nor releases it."""
        self.observer = None  # the lease is not lost: its holder is another process
        self._callbacks = None
        self.scopes = ()
        self._lose(Transition.LOST, "it belongs to the process that forked this one")

    def error(self) -> LeaseLost:
        """Make the error that is raised to the holder."""
        lost = LeaseLost(
            f"the lease of lock {self.name!r} was lost: {self.why or 'it has ended'}",
            name=self.name,
            owner=str(self.ticket.terms.owner),
            token=self.token or None,
        )
        if self.failure is not None:
            lost.__cause__ = self.failure
        return lost

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback`` with the error when the hold is lost; at once if it is lost already."""
        if self._callbacks is None:
            try:
                made = _made.setdefault(self, [])
                if self._callbacks is None:  # else another thread has made it just now
                    self._callbacks = made
            finally:
                _made.pop(self, None)
        self._callbacks.append(callback)
        if self._state is State.LOST:  # checked after the append: the code that ended the lease may have missed it
            self._call_back(None)

    def drop_callback(self, callback: OnLost) -> None:
        """Undo an `on_lost`, unless the callback was called."""
        with suppress(ValueError):
            (self._callbacks or []).remove(callback)

    def complete_end(self, later: Later | None = None) -> None:
        """Complete an end that is half done: a signal handler may have interrupted it before the notification."""
        if self._ends:
            self._complete()
        if self._state is State.LOST:
            self._call_back(later)

    # --- inside ------------------------------------------------------------------------------------------------

    def _fixed_end(self, since: float) -> float:
        """Return when a lease that was requested at ``since`` has lasted for the requested time."""
        return deadline_of(since, max(self.ticket.terms.lease, self.length))

    def _transition(self, transition: Transition, why: str = "") -> bool:
        """Make a transition; return False if the table has none from here, or another call ended the lease first."""
        state = self._state
        after = TABLE.get((State.IN_DOUBT if state is State.HELD and self.doubts else state, transition))
        if after is None:
            return False
        if after in ENDED:
            return self._end(after, why)
        self.doubts = 0 if after is State.HELD else self.doubts + 1
        return True

    def _end(self, how: State, why: str) -> bool:
        """End it, unless another call did; return whether it was this one."""
        entry, ends = (how, why), self._ends
        ends.append(entry)  # atomic, and the first entry counts
        first = ends[0]
        self.why = self.why or first[1]
        self._state = first[0]
        return first is entry

    def _complete(self) -> None:
        state, why = self._ends[0]
        self.why = self.why or why
        self._state = state

    def _lose(self, transition: Transition, why: str, later: Later | None = None) -> bool:
        if transition is Transition.DEADLINE and self._runtime.now() < self.deadline:
            return False
        if not self._transition(transition, why):
            return False
        if transition is not Transition.DEADLINE:
            self.failure = None  # it was not lost for want of a renewal
        self._notify(later)
        return True

    def _notify(self, later: Later | None = None) -> None:
        if self.observer is not None:
            held = self._runtime.now() - self.since
            self.observer(Lost(*self.event_fields(), self.token, self.why, error=self.failure, held=held))
        self._call_back(later)

    def _call_back(self, later: Later | None) -> None:
        for scope in self.scopes:
            scope.interrupt()
        calls: Later = [] if later is None else later
        while self._callbacks:
            try:
                calls.append(partial(self._call, self._callbacks.pop(0)))
            except IndexError:  # another call has removed it
                break
        if later is None:
            call_each(calls)

    def _call(self, callback: OnLost) -> None:
        try:
            call_user_code(callback, self.error())
        except BaseException as error:  # SystemExit or CancelledError would end the watchdog, and with it all renewals
            swallowed = GeneratorExit if self._runtime.flavor is Flavor.SYNC else (SystemExit, GeneratorExit)
            if not isinstance(error, swallowed) and not is_own_error(error):
                raise
            log.exception("an on_lost callback of lock %r failed", self.name)

    def event_fields(self) -> tuple[str, str, float, float, str, str, str]:
        """Return the fields that all events have."""
        runtime, terms = self._runtime, self.ticket.terms
        return self.name, str(terms.owner), runtime.now(), runtime.wall_us() / 1e6, *self.origin, terms.mode.kind.value
