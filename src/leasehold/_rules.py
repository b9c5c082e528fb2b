"""The rules that decide who may acquire a lock. Every primitive uses them. Pure functions; read this file first.

Theory of operation
-------------------
A name has *holders* and a queue of *waiters*. Each is a `QueueEntry` with an expiry on the store's clock. Each
primitive is a `LockMode` on that one queue:

* a **lock** conflicts with every holder;
* a **writer** conflicts with every holder;
* a **reader** conflicts with writers only; an *upgradeable* reader also with another upgradeable reader;
* a **semaphore** ticket conflicts when its permits and those of the holders exceed the limit.

A ticket that conflicts with no holder may acquire, with two exceptions:

* The name is blocked (`Queue.blocked_until`): a holder with a lock delay let its lease expire, so no ticket may
  acquire for that delay.
* The ticket is *fair*, and a waiter that it must not overtake is ahead of it.

When a holder releases, the store hands the name over to `successors` in the same step. So the name is never free while
there are waiters; these do not race, and need not retry. A newcomer can be first only after a lease expired.

Stores in Python call these functions. The Redis scripts implement the same rules in Lua; tests compare the two with
random sequences of operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leasehold._model import Kind, LockMode, QueueEntry, Ticket

UNKNOWN = 0  # the limit of a semaphore of which a foreign program holds a permit without naming the limit


@dataclass(frozen=True, slots=True)
class Queue:
    """The state of one name. Times are readings of the store's clock in seconds."""

    name: str
    fence: int = 0  # the highest token granted so far
    blocked_until: float = 0.0  # no ticket may acquire before this time (lock delay)
    holders: tuple[QueueEntry, ...] = ()
    waiters: tuple[QueueEntry, ...] = ()  # in order of arrival

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return holders, then waiters in order."""
        return self.holders + self.waiters


@dataclass(frozen=True, slots=True)
class Enter:
    """The ticket may acquire the name now."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The ticket must wait; before ``until`` nothing changes without a release."""

    until: float  # reading of the store's clock
    by: QueueEntry | None = None  # the entry that blocks it; None if the lock delay does


def decide(queue: Queue, me: Ticket, now: float) -> Enter | Blocked:
    """Decide whether ticket ``me`` may acquire the name at time ``now``. Expired entries do not count."""
    if queue.blocked_until > now:
        return Blocked(queue.blocked_until)
    others = _others(queue, me, now)
    mode = me.terms.mode
    if conflicts(mode, [entry.ticket.terms.mode for entry in others]):
        return Blocked(min(entry.expires for entry in others), others[0])
    if not mode.fair or is_inside(queue, me, now):
        return Enter()
    ahead = next((entry for entry in _ahead(queue, me.id, now) if entry.expires > now and _before(entry, mode)), None)
    return Enter() if ahead is None else Blocked(ahead.expires, ahead)


def is_inside(queue: Queue, me: Ticket, now: float) -> bool:
    """Return whether this ticket is alongside a holder: then it overtakes all that wait for that holder."""
    return any(entry.ticket.id == me.alongside and entry.expires > now for entry in queue.holders)


def conflicts(mode: LockMode, holding: Sequence[LockMode]) -> bool:
    """Return whether ``mode`` cannot hold together with all of ``holding``."""
    match mode.kind:
        case Kind.MUTEX:
            return bool(holding)
        case Kind.READ_WRITE if mode.exclusive:
            return bool(holding)
        case Kind.READ_WRITE:
            return any(other.exclusive or (mode.upgradeable and other.upgradeable) for other in holding)
        case Kind.SEMAPHORE:
            return sum(other.permits for other in holding) + mode.permits > mode.limit


def successors(queue: Queue, now: float) -> Iterator[QueueEntry]:
    """Yield, in order of arrival, the waiters that acquire the name next, if each waiter before them accepts.

    * Waiters alongside a ticket of their own that holds come first.
    * Such a waiter that must still wait is an upgrade, which waits for the readers to release. Then no other
      acquires: a stream of new readers could keep it waiting for ever.
    * Otherwise the hand-over stops at the first waiter that must wait, even if a later one could acquire. So no
      waiter starves.
    * An upgradeable reader that must wait is skipped. It waits only for another upgradeable reader, which does not
      concern the readers behind it. A writer behind it must wait anyway.
    """
    if queue.blocked_until > now:
        return
    now_holding = [entry for entry in queue.holders if entry.expires > now]
    inside, others_wait = _inside_first(queue, now)
    upgrade_waits = False
    for entry in (*inside, *others_wait):
        if entry.expires <= now:
            continue
        if upgrade_waits and entry not in inside:
            return
        others = [other.ticket.terms.mode for other in now_holding if other.ticket.id != entry.ticket.alongside]
        if not conflicts(entry.ticket.terms.mode, others):
            yield entry
            now_holding.append(entry)
        elif entry in inside:
            upgrade_waits = True
        elif not entry.ticket.terms.mode.upgradeable:
            return


def stops(entry: QueueEntry) -> bool:
    """Return whether no waiter behind this one may acquire before it, wherever it is in the queue; see `successors`."""
    return not (entry.ticket.alongside or entry.ticket.terms.mode.upgradeable)


def same_use(mine: LockMode, other: LockMode) -> bool:
    """Return whether two tickets use the name as the same primitive, with the same limit as far as it is known."""
    return mine.kind is other.kind and other.limit in (mine.limit, UNKNOWN)


def other_use(tickets: Iterable[Ticket], mode: LockMode) -> Ticket | None:
    """Return one of the tickets that uses its name as another primitive than ``mode``; None if none does."""
    return next((ticket for ticket in tickets if not same_use(mode, ticket.terms.mode)), None)


def clash(name: str, used: str, mode: LockMode) -> str:
    """Return the error message for a name that is in use as another primitive."""
    return (
        f"{name!r} is in use as a {used} and cannot be used as a {use_of(mode)}; choose another name, or wait until "
        "it is unused"
    )


def use_of(mode: LockMode) -> str:
    """Return the primitive of a mode, for messages."""
    return mode.kind.value + (f" of {mode.limit}" if mode.kind is Kind.SEMAPHORE and mode.limit != UNKNOWN else "")


def next_token(fence: int, floor: int) -> int:
    """Return the next fencing token: above the last one, and not below the store's clock in microseconds.

    The clock keeps tokens increasing after the stored number was lost (flush, eviction, failover, an old backup),
    unless the clock was set back beyond the last grant.
    """
    return max(fence + 1, floor)


def _others(queue: Queue, me: Ticket, now: float) -> list[QueueEntry]:
    return [entry for entry in queue.holders if entry.expires > now and entry.ticket.id not in (me.id, me.alongside)]


def _inside_first(queue: Queue, now: float) -> tuple[list[QueueEntry], list[QueueEntry]]:
    inside = [entry for entry in queue.waiters if is_inside(queue, entry.ticket, now)]
    return inside, [entry for entry in queue.waiters if entry not in inside]


def _ahead(queue: Queue, me: str, now: float) -> Iterator[QueueEntry]:
    inside, others = _inside_first(queue, now)
    for entry in (*inside, *others):
        if entry.ticket.id == me:
            return
        yield entry


def _before(entry: QueueEntry, mode: LockMode) -> bool:
    """Return whether a fair ticket must not overtake ``entry``. Only a reader may overtake, and only a reader."""
    return mode.kind is not Kind.READ_WRITE or mode.exclusive or entry.ticket.terms.mode.exclusive
