"""The life of a hold: five states, six things that can happen, and the table that joins them.

Theory of operation
-------------------
A `Lease` is one ticket's way through life, shared by the acquire loop, the watchdog and the holder. It knows until
when the holder may believe that it holds:

    deadline = since + lease * (1 - DRIFT) - MARGIN

where ``since`` is the boot-time clock read *before* the request was sent that the store confirmed (the same reasoning
as in Gray and Cheriton, "Leases", SOSP 1989). The store started its own count later than that, so it cannot give the
name away before our deadline as long as our clock is not slower than its by more than DRIFT. No message is needed to
know that the deadline has passed: a look at the clock is enough, and every public call takes that look.

A store whose sessions are shorter than a fixed lease grants less than was asked for. Such a lease is renewed until what
was asked for has passed, and no longer.

Unknown is not lost: a renewal without an answer puts the hold *in doubt*, where the holder still holds until the
deadline. But unknown does not extend life either: only a confirmed renewal moves the deadline.

Who keeps a lease alive
-----------------------
One rule, for every primitive: a lease is kept while somebody can reach its `LeaseHandle`. The attempt that acquires it
has the handle first, then the hold that it becomes, or the block that this hold is used in. It does not matter which
thread or task acquired. When nobody has the handle any more, nobody can release the lease: the watchdog gives it up. It
does so as a loss, since somebody may have asked to be called back.

No mutex
--------
A signal handler may interrupt a thread anywhere here, and call in again. If it found a mutex locked by the frame that
it interrupted, it would wait for ever, and the watchdog behind it. So nothing here takes a mutex. A lease ends by one
step that cannot be interrupted: the first entry in a list decides how (`_end`). Whoever comes later, or finds a step
that somebody left half done, completes it.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from leasehold._model import DRIFT, MARGIN, Granted, Ticket
from leasehold._runtimes.base import Runtime, Scope, outside
from leasehold.errors import LeaseLost
from leasehold.events import InDoubt, Lost, Observer, Renewed

log = logging.getLogger("leasehold")


class State(enum.Enum):
    """Where a hold is in its life."""

    QUEUED = "queued"
    HELD = "held"
    IN_DOUBT = "in doubt"
    LOST = "lost"
    RELEASED = "released"

    __hash__ = object.__hash__  # members are single: the hash of an enum goes through its name, in Python


class Turn(enum.Enum):
    """What can happen to it."""

    GRANTED = "granted"
    RENEWED = "renewed"
    NO_ANSWER = "no answer"
    DEADLINE = "deadline"
    GONE = "gone"
    LEAVES = "leaves"

    __hash__ = object.__hash__


TABLE: dict[tuple[State, Turn], State] = {
    (State.QUEUED, Turn.GRANTED): State.HELD,
    (State.QUEUED, Turn.LEAVES): State.RELEASED,
    (State.HELD, Turn.RENEWED): State.HELD,
    (State.HELD, Turn.NO_ANSWER): State.IN_DOUBT,
    (State.HELD, Turn.DEADLINE): State.LOST,
    (State.HELD, Turn.GONE): State.LOST,
    (State.HELD, Turn.LEAVES): State.RELEASED,
    (State.IN_DOUBT, Turn.RENEWED): State.HELD,
    (State.IN_DOUBT, Turn.NO_ANSWER): State.IN_DOUBT,
    (State.IN_DOUBT, Turn.DEADLINE): State.LOST,
    (State.IN_DOUBT, Turn.GONE): State.LOST,
    (State.IN_DOUBT, Turn.LEAVES): State.RELEASED,
}
"""All moves there are. Whatever is not listed changes nothing: lost and released are final."""

HOLDING = frozenset({State.HELD, State.IN_DOUBT})

ENDED = frozenset({State.LOST, State.RELEASED})

OnLost = Callable[[LeaseLost], None]

Later = list[Callable[[], None]]
"""Takes users' callbacks for whoever has others to look after before it can call them: they may take their time."""


def deadline_of(since: float, lease: float) -> float:
    """Return the boot-time clock reading until which a grant confirmed for ``lease`` seconds may be believed."""
    return since + lease * (1.0 - DRIFT) - MARGIN


class LeaseHandle:
    """What keeps a lease alive: whoever can reach it may still release, or believes that it holds."""

    __slots__ = ("__weakref__", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        lease.handle = weakref.ref(self)


class Keeps(Protocol):
    """A lock object: it keeps holds for the threads and tasks that acquired them through it, for its `release`."""

    def drop_the_dead(self) -> None:
        """Keep no longer what a thread or task acquired that has ended."""
        ...


def _nobody() -> None:
    """Stand for a weak reference to what does not exist yet."""


class Lease:
    """One ticket's life. Safe to use from any thread, and from signal handlers."""

    __slots__ = (
        "_callbacks",
        "_ends",
        "_observe",
        "_runtime",
        "_state",
        "confirmed",
        "deadline",
        "doubts",
        "entry",
        "full",
        "handle",
        "kept",
        "length",
        "max_hold",
        "name",
        "renew",
        "scopes",
        "since",
        "ticket",
        "token",
        "why",
    )

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        ticket: Ticket,
        *,
        renew: bool,
        max_hold: float | None,
        observe: Observer | None,
    ) -> None:
        self._runtime = runtime
        self._observe = observe
        self._callbacks: list[OnLost] = []  # each is taken out by whoever calls it
        self._ends: list[tuple[State, str]] = []  # how it ended: the first entry counts
        self.name = name
        self.ticket = ticket
        self.renew = renew
        self.max_hold = max_hold
        self._state = State.QUEUED  # never in doubt: that is held, with doubts
        self.token = 0
        self.since = 0.0  # boot-time clock at the grant
        self.confirmed = 0.0  # boot-time clock when we heard of the grant
        self.deadline = 0.0
        self.full = 0.0  # boot-time clock beyond which renewals do not move the deadline of a fixed lease
        self.why = ""
        self.scopes: tuple[Scope, ...] = ()  # the blocks that a loss cuts short, outermost first
        self.handle: Callable[[], LeaseHandle | None] = _nobody
        self.kept: Callable[[], Keeps | None] = _nobody  # the lock object that keeps it for who acquired it
        self.entry: object = None  # what a re-entrant lock knows of it, kept here as long as the lease lasts
        self.doubts = 0  # renewals without an answer, in a row
        self.length = ticket.terms.lease  # seconds; a store with sessions may grant another length than was asked for

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return State.IN_DOUBT if self._state is State.HELD and self.doubts else self._state

    def is_kept(self) -> bool:
        """Return whether somebody can still release it; see "Who keeps a lease alive" above."""
        lock = self.kept()
        if lock is not None:
            lock.drop_the_dead()
        return self.handle() is not None

    # --- turns -------------------------------------------------------------------------------------------------

    def granted(self, grant: Granted) -> bool:
        """Take the grant; return False if it came too late to be believed, or the lease was ended meanwhile."""
        deadline, now = deadline_of(grant.since, grant.lease), self._runtime.now()
        if deadline <= now or self._state is not State.QUEUED:
            return False
        self.token, self.since, self.confirmed, self.deadline = grant.token, grant.since, now, deadline
        self.length = grant.lease
        self.full = deadline if grant.lease >= self.ticket.terms.lease else self._full_end(grant.since)
        return self._turn(Turn.GRANTED)

    @property
    def renews(self) -> bool:
        """Whether it is to be renewed: unless its lease is fixed, and granted for as long as was asked."""
        return self.renew or self.deadline < self.full

    def renewed(self, since: float, *, anew: bool = False) -> None:
        """Take a confirmed renewal that was sent after ``since``; with ``anew`` a fixed lease begins anew."""
        doubted = self.doubts > 0
        if self._runtime.now() >= self.deadline or not self._turn(Turn.RENEWED):
            return
        deadline = deadline_of(since, self.length)
        if not self.renew:
            if anew:
                self.full = max(self.full, self._full_end(since))
            deadline = min(deadline, self.full)
        # Two renewals at a time may leave the earlier of two deadlines here: the store confirmed that one, too.
        self.deadline = max(self.deadline, deadline)
        if doubted and self._observe is not None:
            self._observe(Renewed(*self._who(), self.token))

    def no_answer(self) -> None:
        """Take note that a renewal had no answer: the hold is in doubt until one has, or until its deadline."""
        first = not self.doubts
        if not self._turn(Turn.NO_ANSWER):
            return
        if first and self._observe is not None:
            self._observe(InDoubt(*self._who(), self.token, self.remaining()))

    def gone(self, why: str, later: Later | None = None) -> bool:
        """Take note that it is lost, whatever its deadline; return False if it had ended before.

        ``later`` takes what the holder wants called.
        """
        return self._lose(Turn.GONE, why, later)

    def was_gone(self, why: str) -> None:
        """Take note that the leave found nothing: it was lost before, and its holder hears of it only now."""
        self.why = why
        self._tell()

    def leaves(self) -> bool:
        """Begin to leave: from here on the holder does not hold. Return False if it had ended before."""
        if self._state is State.HELD and self._runtime.now() >= self.deadline:
            self.check_deadline()
        return self._turn(Turn.LEAVES)

    def check_deadline(self, later: Later | None = None) -> bool:
        """Look at the clock; return whether the hold still holds. ``later`` as in `gone`."""
        if self._state is State.HELD and self._runtime.now() < self.deadline:
            return True
        self._lose(Turn.DEADLINE, "the lease ran out", later)
        return self._state is State.HELD  # a renewal may have moved the deadline meanwhile

    # --- what the holder sees ----------------------------------------------------------------------------------

    def remaining(self) -> float:
        """Return the seconds for which the hold may still be believed without another renewal; 0 when it has ended."""
        if self._state is not State.HELD:
            return 0.0
        return max(0.0, self.deadline - self._runtime.now())

    def after_fork(self) -> None:
        """End, in a forked child, what belongs to the parent: the child neither renews nor releases it."""
        self._observe = None  # the lease is not lost: its holder is another process
        self._callbacks = []
        self.scopes = ()
        self._lose(Turn.GONE, "it belongs to the process that forked this one")

    def error(self) -> LeaseLost:
        """Make the error that tells the holder."""
        return LeaseLost(
            f"the lease of lock {self.name!r} was lost: {self.why or 'it has ended'}",
            name=self.name,
            owner=str(self.ticket.terms.owner),
            token=self.token or None,
        )

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback`` with the error when the hold is lost; at once if it is lost already."""
        self._callbacks.append(callback)
        if self._state is State.LOST:  # looked at after it was put there: whoever ended the lease may not have seen it
            self._call_back(None)

    def settle(self, later: Later | None = None) -> None:
        """Complete an end that was left half done: whoever ended it may have been interrupted before it told."""
        if self._ends:
            self._complete()
        if self._state is State.LOST:
            self._call_back(later)

    # --- inside ------------------------------------------------------------------------------------------------

    def _full_end(self, since: float) -> float:
        """Return when a lease that was asked for at ``since`` has lasted as long as was asked."""
        return deadline_of(since, max(self.ticket.terms.lease, self.length))

    def _turn(self, turn: Turn, why: str = "") -> bool:
        """Take a turn; return False if the table has none from here, or another ended the lease first."""
        state = self._state
        after = TABLE.get((State.IN_DOUBT if state is State.HELD and self.doubts else state, turn))
        if after is None:
            return False
        if after in ENDED:
            return self._end(after, why)
        if turn is Turn.GRANTED:
            self._state = State.HELD
            if self._ends:  # another thread ended it between the look and the step
                self._complete()
                return False
        self.doubts = 0 if after is State.HELD else self.doubts + 1
        return True

    def _end(self, how: State, why: str) -> bool:
        """End it, unless another has; return whether it was this call."""
        entry, ends = (how, why), self._ends
        ends.append(entry)  # this cannot be interrupted, and the first entry counts
        self._complete()
        return ends[0] is entry

    def _complete(self) -> None:
        state, why = self._ends[0]
        self.why = self.why or why
        self._state = state

    def _lose(self, turn: Turn, why: str, later: Later | None = None) -> bool:
        if turn is Turn.DEADLINE and self._runtime.now() < self.deadline:
            return False
        if not self._turn(turn, why):
            return False
        self._tell(later)
        return True

    def _tell(self, later: Later | None = None) -> None:
        if self._observe is not None:
            self._observe(Lost(*self._who(), self.token, self.why))
        self._call_back(later)

    def _call_back(self, later: Later | None) -> None:
        for scope in self.scopes:
            scope.interrupt()
        calls: Later = [] if later is None else later
        while self._callbacks:
            try:
                calls.append(partial(self._call, self._callbacks.pop(0)))
            except IndexError:  # another has taken it
                break
        if later is None:
            for call in calls:
                call()

    def _call(self, callback: OnLost) -> None:
        try:
            outside(callback, self.error())
        except (Exception, SystemExit):  # an exit would end the watchdog, and with it the renewal of all other holds
            log.exception("an on_lost callback of lock %r failed", self.name)

    def _who(self) -> tuple[str, str, float]:
        return self.name, str(self.ticket.terms.owner), self._runtime.now()
