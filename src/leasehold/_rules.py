"""Who may enter: the one decision that every lock in this library is made of. Pure. The page to read first.

Theory of operation
-------------------
A name has *holders* and a queue of *waiters*, each a `QueueEntry` with an expiry on the store's clock. Everything that
a primitive is, is a `LockMode` on that one queue:

* a **lock** conflicts with every holder;
* a **writer** conflicts with every holder, a **reader** with writers only, an *upgradeable* reader also with its like;
* a **semaphore** ticket conflicts when its permits and those of the holders exceed the limit.

Whoever conflicts with no holder may enter, unless the name is *blocked_until* (lock-delay: a holder's lease expired and
it asked that nobody gets the name for a while), or the ticket is *fair* and someone it must not overtake waits ahead.

When a holder leaves, the store hands the name to `successors` in the same step. There is thus no moment at which
the name is free while someone waits, no herd and no retry; a newcomer can be first only where a lease expired.

Stores in Python call these functions; the Redis scripts state the same in Lua and are compared with them by random
sequences of operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leasehold._model import Kind, LockMode, QueueEntry, Ticket

UNKNOWN = 0
"""The limit of a semaphore whose permit another program took, and did not say of how many."""


@dataclass(frozen=True, slots=True)
class Queue:
    """All that decides at one name. Times are readings of the store's clock in seconds.

    Attributes:
        fence: the highest token given out.
        blocked_until: nobody enters before this time.
        holders: who holds.
        waiters: who waits, in order of arrival.

    """

    name: str
    fence: int = 0
    blocked_until: float = 0.0
    holders: tuple[QueueEntry, ...] = ()
    waiters: tuple[QueueEntry, ...] = ()

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return holders, then waiters in order."""
        return self.holders + self.waiters


@dataclass(frozen=True, slots=True)
class Enter:
    """The ticket may hold the name now."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The ticket must wait; before ``until`` nothing changes unless someone leaves.

    Attributes:
        until: reading of the store's clock.
        by: the entry in the way, if it is an entry.

    """

    until: float
    by: QueueEntry | None = None


def decide(queue: Queue, me: Ticket, now: float) -> Enter | Blocked:
    """Say whether ticket ``me`` may hold the name at time ``now``. An entry that has expired does not count."""
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
    """Say whether the ticket beside which this one stands holds: then it overtakes all who wait for that one."""
    return any(entry.ticket.id == me.alongside and entry.expires > now for entry in queue.holders)


def conflicts(mode: LockMode, holding: Sequence[LockMode]) -> bool:
    """Say whether ``mode`` cannot hold beside all of ``holding``."""
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
    """Yield, in order of arrival, the waiters who hold the name next if each before them accepts.

    Those who stand beside a ticket of their own that holds come first. One of them that cannot enter is an upgrade,
    which waits for the readers to go: then nobody else enters, or readers who come and go could keep it waiting for
    ever. Else it stops at the first who cannot enter, even if a later one could: nobody starves. An upgradeable reader
    is passed over, for it may wait only for its like, and then it is nothing to the readers behind it; any writer
    behind it waits as well.
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
    """Say whether nobody behind this waiter may enter before it, wherever it may stand; see `successors`."""
    return not (entry.ticket.alongside or entry.ticket.terms.mode.upgradeable)


def same_use(mine: LockMode, other: LockMode) -> bool:
    """Say whether two tickets use the name as the same thing: the same kind, with the same limit as far as is known."""
    return mine.kind is other.kind and other.limit in (mine.limit, UNKNOWN)


def other_use(tickets: Iterable[Ticket], mode: LockMode) -> Ticket | None:
    """Return one of the tickets that uses its name as something else than ``mode`` does; None if none does."""
    return next((ticket for ticket in tickets if not same_use(mode, ticket.terms.mode)), None)


def clash(name: str, used: str, mode: LockMode) -> str:
    """Return the words of the error for a name that is in use as something else; they name both."""
    return (
        f"{name!r} is in use as a {used} and cannot be used as a {use_of(mode)}; choose another name, or wait until "
        "nobody uses it"
    )


def use_of(mode: LockMode) -> str:
    """Return what a rule uses its name as, for people."""
    return mode.kind.value + (f" of {mode.limit}" if mode.kind is Kind.SEMAPHORE and mode.limit != UNKNOWN else "")


def next_token(fence: int, floor: int) -> int:
    """Return the next fencing token: above the last one, and not below the store's clock in microseconds.

    The clock makes tokens go on increasing when the stored number was lost (flush, eviction, failover, an old
    backup), as long as the clock was not set back past the last grant.
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
    """Say whether a fair ticket must not overtake ``entry``: always, but a reader may enter beside a reader."""
    return mode.kind is not Kind.READ_WRITE or mode.exclusive or entry.ticket.terms.mode.exclusive
