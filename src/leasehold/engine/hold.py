"""The life of a hold: five states, six things that can happen, and the table that joins them.

Theory of operation
-------------------
A `Lease` is one ticket's way through life, shared by the acquire loop, the keeper and the holder. It knows until
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
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from leasehold.engine.events import InDoubt, Lost, Observer, Renewed
from leasehold.errors import LeaseLost
from leasehold.model import DRIFT, MARGIN, Granted, Ticket
from leasehold.runtimes.base import Runtime, Scope

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


class Lease:
    """One ticket's life. Safe to use from any thread."""

    __slots__ = (
        "_mutex",
        "_observe",
        "_on_lost",
        "_runtime",
        "abandoned",
        "adopted",
        "confirmed",
        "deadline",
        "doubts",
        "full",
        "length",
        "max_hold",
        "name",
        "party",
        "renew",
        "scopes",
        "since",
        "state",
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
        mutex: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._runtime = runtime
        self._mutex = mutex or runtime.mutex()  # one for all leases of a client
        self._observe = observe
        self._on_lost: tuple[OnLost, ...] = ()
        self.name = name
        self.ticket = ticket
        self.renew = renew
        self.max_hold = max_hold
        self.state = State.QUEUED
        self.token = 0
        self.since = 0.0  # boot-time clock at the grant
        self.confirmed = 0.0  # boot-time clock when we heard of the grant
        self.deadline = 0.0
        self.full = 0.0  # boot-time clock beyond which renewals do not move the deadline of a fixed lease
        self.why = ""
        self.scopes: tuple[Scope, ...] = ()  # the blocks that a loss cuts short, outermost first
        self.party: Callable[[], bool] | None = None  # says whether the owner still lives, where that matters
        self.adopted = True  # False from the grant until a Hold has it: an interrupt may come in between
        self.abandoned = False  # set by the finalizer of the last Hold: nobody can release it any more
        self.doubts = 0  # renewals without an answer, in a row
        self.length = ticket.terms.lease  # seconds; a store with sessions may grant another length than was asked for

    # --- turns -------------------------------------------------------------------------------------------------

    def granted(self, grant: Granted) -> bool:
        """Take the grant; return False if it came too late to be believed (the hold stays queued)."""
        deadline, now = deadline_of(grant.since, grant.lease), self._runtime.now()
        if deadline <= now:
            return False
        with self._mutex:
            if not self._turn(Turn.GRANTED):
                return False
            self.token, self.since, self.confirmed, self.deadline = grant.token, grant.since, now, deadline
            self.length = grant.lease
            self.full = deadline if grant.lease >= self.ticket.terms.lease else self._end(grant.since)
        return True

    @property
    def renews(self) -> bool:
        """Whether it is to be renewed: unless its lease is fixed, and granted for as long as was asked."""
        return self.renew or self.deadline < self.full

    def renewed(self, since: float, *, anew: bool = False) -> None:
        """Take a confirmed renewal that was sent after ``since``; with ``anew`` a fixed lease begins anew."""
        with self._mutex:
            doubted = self.state is State.IN_DOUBT
            if self._runtime.now() >= self.deadline or not self._turn(Turn.RENEWED):
                return
            deadline = deadline_of(since, self.length)
            if not self.renew:
                if anew:
                    self.full = max(self.full, self._end(since))
                deadline = min(deadline, self.full)
            self.deadline = max(self.deadline, deadline)
            self.doubts = 0
        if doubted and self._observe is not None:
            self._observe(Renewed(*self._who(), self.token))

    def no_answer(self) -> None:
        """Take note that a renewal had no answer: the hold is in doubt until one has, or until its deadline."""
        with self._mutex:
            first = self.state is State.HELD
            if not self._turn(Turn.NO_ANSWER):
                return
            self.doubts += 1
        if first and self._observe is not None:
            self._observe(InDoubt(*self._who(), self.token, self.remaining()))

    def gone(self, why: str, later: Later | None = None) -> None:
        """Take note that the store no longer knows the ticket; ``later`` takes what the holder wants called."""
        self._lose(Turn.GONE, why, later)

    def was_gone(self, why: str) -> None:
        """Take note that the leave found nothing: it was lost before, and its holder hears of it only now."""
        self.why = why
        self._tell()

    def leaves(self) -> bool:
        """Begin to leave: from here on the holder does not hold. Return False if it had ended before."""
        if self.state in HOLDING and self._runtime.now() >= self.deadline:
            self.check_deadline()
        with self._mutex:
            return self._turn(Turn.LEAVES)

    def check_deadline(self, later: Later | None = None) -> bool:
        """Look at the clock; return whether the hold still holds. ``later`` as in `gone`."""
        if self.state in HOLDING and self._runtime.now() < self.deadline:
            return True
        self._lose(Turn.DEADLINE, "the lease ran out", later)
        return self.state in HOLDING  # a renewal may have moved the deadline meanwhile

    # --- what the holder sees ----------------------------------------------------------------------------------

    def remaining(self) -> float:
        """Return the seconds for which the hold may still be believed without another renewal; 0 when it has ended."""
        if self.state not in HOLDING:
            return 0.0
        return max(0.0, self.deadline - self._runtime.now())

    def after_fork(self) -> None:
        """End, in a forked child, what belongs to the parent: the child neither renews nor releases it."""
        self._mutex = self._runtime.mutex()  # the old one may be held by a thread that is not in this process
        self._observe = None  # the lease is not lost: its holder is another process
        self._on_lost = ()
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
        with self._mutex:
            if self.state is not State.LOST:
                self._on_lost = (*self._on_lost, callback)
                return
        self._call(callback)

    # --- inside ------------------------------------------------------------------------------------------------

    def _end(self, since: float) -> float:
        """Return when a lease that was asked for at ``since`` has lasted as long as was asked."""
        return deadline_of(since, max(self.ticket.terms.lease, self.length))

    def _turn(self, turn: Turn) -> bool:
        after = TABLE.get((self.state, turn))
        if after is None:
            return False
        self.state = after
        return True

    def _lose(self, turn: Turn, why: str, later: Later | None = None) -> None:
        with self._mutex:
            if turn is Turn.DEADLINE and self._runtime.now() < self.deadline:
                return
            if not self._turn(turn):
                return
            self.why = why
        self._tell(later)

    def _tell(self, later: Later | None = None) -> None:
        with self._mutex:
            callbacks, self._on_lost = self._on_lost, ()
            scopes, self.scopes = self.scopes, ()
        if self._observe is not None:
            self._observe(Lost(*self._who(), self.token, self.why))
        for scope in scopes:
            scope.interrupt()
        calls = [partial(self._call, callback) for callback in callbacks]
        if later is not None:
            later += calls
            return
        for call in calls:
            call()

    def _call(self, callback: OnLost) -> None:
        try:
            callback(self.error())
        except (Exception, SystemExit):  # an exit would end the keeper, and with it the renewal of all other holds
            log.exception("an on_lost callback of lock %r failed", self.name)

    def _who(self) -> tuple[str, str, float]:
        return self.name, str(self.ticket.terms.owner), self._runtime.now()
