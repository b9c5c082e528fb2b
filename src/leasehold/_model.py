"""The values that primitives, engine, rules and stores exchange. Frozen; no I/O; no clock.

A **ticket** is one attempt to acquire a name. Its id is 128 random bits, which the client chose *before* it sent the
request. So a request whose reply was lost can be repeated, and a cancelled one can be undone, whatever the store did
with it. An **entry** is a ticket in the queue of a name, as the store sees it: waiting, or holding with a token.
"""

from __future__ import annotations

import enum
from binascii import b2a_base64
from dataclasses import dataclass
from typing import NamedTuple

DRIFT = 0.01
"""Assumed bound on the relative error of clock rates between client and store."""

MARGIN = 0.002
"""Seconds subtracted for the granularity of clocks and timers."""


class Kind(enum.StrEnum):
    """The primitive that uses a name. A name in use as one kind refuses the others (`NameInUse`)."""

    MUTEX = "mutex"
    READ_WRITE = "rw"
    SEMAPHORE = "semaphore"


@dataclass(frozen=True, slots=True)
class LockMode:
    """How a ticket holds a name.

    Attributes:
        kind: the primitive.
        exclusive: whether it holds alone (a lock, a writer) or together with others (a reader).
        upgradeable: a reader that may become the writer; at most one holds at a time.
        permits: how many permits of a semaphore it takes.
        limit: how many permits the semaphore has.
        fair: whether it must not overtake the waiters ahead of it.
    """

    kind: Kind = Kind.MUTEX
    exclusive: bool = True
    upgradeable: bool = False
    permits: int = 1
    limit: int = 1
    fair: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The client of a ticket: shown to people, never used to decide."""

    host: str
    pid: int
    client: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.client}"

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Parse what `str` wrote. Text of another form becomes an owner with that host and pid 0."""
        host, _, rest = text.rpartition(":")
        head, _, pid = host.rpartition(":")
        if head and pid.isdecimal():
            return cls(head, int(pid), rest)
        return cls(text, 0, "")


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What all tickets of one lock object have in common.

    Attributes:
        mode: how they hold the name.
        owner: the client.
        lease: seconds for which the store keeps the grant without a renewal.
        lock_delay: seconds for which nobody may acquire the name after this lease expired (not after a release).
        meta: JSON text shown to people, at most `META_LIMIT` bytes of UTF-8; empty for none.
        fixed: it is not renewed, from the start or after a while. A store with sessions, which other tickets of the
            client keep alive, gives it a session of its own.
    """

    mode: LockMode
    owner: Owner
    lease: float
    lock_delay: float = 0.0
    meta: str = ""
    fixed: bool = False


META_LIMIT = 1024


class Ticket(NamedTuple):
    """One attempt to acquire. Each acquire makes one, so it must be cheap.

    Attributes:
        id: 128 random bits as 22 URL-safe characters.
        terms: those of its lock object.
        alongside: the id of a ticket of the same holder that holds the same name, with which this one may hold
            together: a writer that also reads, or an upgradeable reader that becomes the writer. While that ticket
            holds, this one waits only for conflicting holders, and for no waiter: the waiters wait for us.
    """

    id: str
    terms: LeaseTerms
    alongside: str = ""


def ticket_id(random: bytes) -> str:
    """Encode 16 random bytes as 22 URL-safe characters."""
    if len(random) != 16:
        raise ValueError("a ticket id is made of 16 random bytes")
    return b2a_base64(random)[:22].translate(_URL_SAFE).decode("ascii")


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Granted(NamedTuple):
    """The ticket holds the name. Each acquire makes one, so it must be cheap.

    Attributes:
        token: fencing token, strictly larger than that of every earlier grant of the name.
        since: reading of the client's boot-time clock *before* the request that proved the grant was sent (or an
            earlier one): the store keeps the lease at least until ``since + lease``.
        lease: seconds.
    """

    token: int
    since: float
    lease: float


@dataclass(frozen=True, slots=True)
class Wait:
    """The ticket does not hold the name.

    Attributes:
        mark: a value of the store to pass to `wait`, so that no event since then is missed.
        ask_again: seconds after which to retry even if no notification arrives: by then the lease of the holder, or
            of the waiter ahead, has expired.
        held_by: who holds it, for messages to people.
        blocked_why: why nobody may acquire it until then, if the reason is not a lease; for messages.
    """

    mark: object
    ask_again: float
    held_by: Owner | None = None
    blocked_why: str = ""


class RenewalResult(enum.Enum):
    """The result for one ticket in a batch of renewals."""

    HELD = "held"  # holds, and the lease was set to its full length
    QUEUED = "queued"  # waits, and its entry was renewed
    GONE = "gone"  # the store knows nothing of it: expired, broken, evicted, or never arrived
    UNKNOWN = "unknown"  # no answer, or the store could not do it now


class ReleaseReason(enum.Enum):
    """Why a ticket is released."""

    RELEASE = "release"  # by its own client: the next waiter may acquire at once
    BREAK = "break"  # by an operator: the holder may still be working, so its lock delay applies as after an expiry


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A ticket in the queue of a name, as the store sees it.

    Attributes:
        ticket: the ticket.
        order: arrival number; smaller came first.
        expires: reading of the *store's* clock, in seconds, at which the entry expires.
        token: the fencing token while it holds; None while it waits.
    """

    ticket: Ticket
    order: int
    expires: float
    token: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One name as `inspect` shows it; times in seconds from now.

    Attributes:
        name: the name.
        kind: the primitive that uses it.
        token: the highest fencing token granted so far, 0 if none is known.
        holders: the entries that hold, with `QueueEntry.expires` as seconds remaining.
        waiters: the entries that wait, first in the queue first, likewise.
        free_in: seconds for which nobody may acquire it after an expiry (lock delay); 0 otherwise.
    """

    name: str
    kind: Kind
    token: int
    holders: tuple[QueueEntry, ...] = ()
    waiters: tuple[QueueEntry, ...] = ()
    free_in: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a cell; without a value it only reads the cell.

    The store makes the change only if every given condition holds.

    Attributes:
        value: the new value, at most `CELL_LIMIT` bytes; None only reads.
        if_version: the version that the cell must have now (0: it must not exist).
        fence: a fencing token that must not be below the highest one that ever wrote here.
        ttl: seconds after the last write at which the cell expires.
    """

    value: bytes | None = None
    if_version: int | None = None
    fence: int | None = None
    ttl: float = 86_400.0


CELL_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell after `Store.compare_and_set`: its value or None, version and fence, and whether it was changed."""

    value: bytes | None
    version: int
    fence: int = 0
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store promises. A primitive names what it needs and refuses at construction.

    Attributes:
        fencing: grants carry strictly increasing tokens.
        fair: waiters can be served in order of arrival.
        shared: several readers may hold together.
        permits: semaphores.
        lock_delay: blocks a name for a while after a holder's lease expired.
        cells: values with versions.
        notifies: waiters are woken by notifications; otherwise they poll.
        hands_over: a release hands the name over to the longest waiter; otherwise the first to try acquires it.
        together: several names can be acquired and released in one request (`ManyStore`).
        watches: it has `leasehold.store_api.Watching.wait_for_cell`; otherwise waiters for a cell poll.
        shortest: seconds of the shortest lease, or ttl of a cell, that it supports; a shorter one is lengthened.
        longest: seconds of the longest lease plus lock delay that it supports; infinity for any.
        tardy: seconds by which it may detect the expiry of a lease or a cell too late.
        crash_bound: when the lock of a dead holder is free again; for messages.
        why_not: why it does not promise what others do, and what to use instead; for messages.
    """

    fencing: bool = True
    fair: bool = True
    shared: bool = False
    permits: bool = False
    lock_delay: bool = True
    cells: bool = True
    notifies: bool = True
    hands_over: bool = True
    together: bool = False
    watches: bool = False
    shortest: float = 0.0
    longest: float = float("inf")
    tardy: float = 0.0
    crash_bound: str = "within the lease"
    why_not: str = ""


class Severity(enum.IntEnum):
    """How bad a finding of `doctor` is."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`: what was checked, what was found, what it means for the promises, what to do."""

    severity: Severity
    subject: str
    found: str
    meaning: str = ""
    remedy: str = ""
