"""The values that travel between primitives, engine, rules and stores. Frozen; no I/O; no clock.

A **ticket** is one attempt to get a name. Its id is 128 random bits that the client chose *before* it asked, so a
request whose reply was lost can be repeated, and one that was cancelled can be undone, whatever the store did
with it. A **queue entry** is a ticket at a name as the store sees it: waiting, or holding with a token.
"""

from __future__ import annotations

import enum
from binascii import b2a_base64
from dataclasses import dataclass
from typing import NamedTuple

DRIFT = 0.01
"""Assumed bound on the relative error of clock rates between client and store."""

MARGIN = 0.002
"""Seconds kept back for the granularity of clocks and timers."""


class Kind(enum.StrEnum):
    """What a name is used as. A name in use as one kind refuses the others (`NameInUse`)."""

    MUTEX = "mutex"
    READ_WRITE = "rw"
    SEMAPHORE = "semaphore"


@dataclass(frozen=True, slots=True)
class LockMode:
    """What a ticket asks for: the kind, how many permits of how many, shared or alone, in turn or not.

    Attributes:
        exclusive: alone (a lock, a writer), or beside others (a reader).
        upgradeable: a reader that may become the writer; there is one of them at a time.
        permits: how many of ``limit`` a semaphore's ticket takes.
        fair: it does not overtake who waits ahead.

    """

    kind: Kind = Kind.MUTEX
    exclusive: bool = True
    upgradeable: bool = False
    permits: int = 1
    limit: int = 1
    fair: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: shown to people, never used to decide."""

    host: str
    pid: int
    client: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.client}"

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Read back what `str` wrote. Text of another form becomes an owner with that host and pid 0."""
        host, _, rest = text.rpartition(":")
        head, _, pid = host.rpartition(":")
        if head and pid.isdecimal():
            return cls(head, int(pid), rest)
        return cls(text, 0, "")


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What all tickets of one lock object have in common.

    Attributes:
        mode: what the ticket asks for.
        owner: who asks.
        lease: seconds for which the store keeps the grant without news.
        lock_delay: seconds for which nobody gets the name after this holder's lease expired (not after a release).
        meta: JSON text shown to people, at most `META_LIMIT` bytes of UTF-8; empty for none.
        fixed: it will hold unrenewed, at once or after a while: a store whose sessions live on for the other tickets of
            a client gives it a session of its own.

    """

    mode: LockMode
    owner: Owner
    lease: float
    lock_delay: float = 0.0
    meta: str = ""
    fixed: bool = False


META_LIMIT = 1024


class Ticket(NamedTuple):
    """One attempt: 128 random bits as 22 URL-safe characters, and its terms. One is made for each acquire, so cheaply.

    Attributes:
        id: chosen by the client before the first request, so that a repeated request is recognized.
        terms: what the ticket asks for.
        alongside: the id of a ticket of the same holder that holds the same name, alongside which this one may hold: a
            writer that also reads, or an upgradeable reader that becomes the writer. While that one holds, this one
            waits for conflicting holders only, and for nobody in the queue: they wait for us.

    """

    id: str
    terms: LeaseTerms
    alongside: str = ""


def ticket_id(random: bytes) -> str:
    """Spell 16 random bytes as 22 URL-safe characters."""
    if len(random) != 16:
        raise ValueError("a ticket id is made of 16 random bytes")
    return b2a_base64(random)[:22].translate(_URL_SAFE).decode("ascii")


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Granted(NamedTuple):
    """The ticket holds the name. One is made for each acquire, so cheaply.

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
        mark: what the store wants back in `wait`, so that nothing that happened since is missed.
        ask_again: seconds after which it is worth asking again even if no message arrives: the holder's lease,
            or that of the waiter ahead, has run out by then.
        held_by: who holds it, for messages to people.
        blocked_why: words that say why nobody may have it until then, where that is nobody's lease; for messages.

    """

    mark: object
    ask_again: float
    held_by: Owner | None = None
    blocked_why: str = ""


class RenewalResult(enum.Enum):
    """What a store answers about one ticket in a batch of renewals."""

    HELD = "held"  # holds, and the lease was set to its full length
    QUEUED = "queued"  # waits, and its place was kept alive
    GONE = "gone"  # the store knows nothing of it: expired, broken, evicted, or never arrived
    UNKNOWN = "unknown"  # no answer, or the store could not do it now


class ReleaseReason(enum.Enum):
    """Why a ticket leaves."""

    RELEASE = "release"  # by its own client: the next may enter at once
    BREAK = "break"  # by an operator: the holder may still be at work, so its delay applies as after an expiry


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A ticket's place at a name, as the store sees it.

    Attributes:
        order: arrival number; smaller came first.
        expires: reading of the *store's* clock, in seconds, at which the entry is void.
        token: the fencing token while it holds; None while it waits.

    """

    ticket: Ticket
    order: int
    expires: float
    token: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One name as `inspect` shows it; times in seconds from the moment of looking.

    Attributes:
        token: the highest fencing token given out so far, 0 if none is known.
        holders: who holds, with `QueueEntry.expires` as seconds remaining.
        waiters: who waits, first in line first, likewise.
        free_in: seconds for which the name is kept free after an expiry (lock-delay); 0 otherwise.

    """

    name: str
    kind: Kind
    token: int
    holders: tuple[QueueEntry, ...] = ()
    waiters: tuple[QueueEntry, ...] = ()
    free_in: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a cell, or with all fields None a look at it.

    The change is made only if every condition given holds; otherwise nothing changes.

    Attributes:
        value: the new value, at most `CELL_LIMIT` bytes; None only looks.
        if_version: the version that the cell must have now (0: it must not exist).
        fence: a fencing token that must not be below the highest one that ever wrote here.
        ttl: seconds after which an untouched cell is forgotten.

    """

    value: bytes | None = None
    if_version: int | None = None
    fence: int | None = None
    ttl: float = 86_400.0


CELL_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell after `Store.compare_and_set`: its value (None for none), version and fence; whether it was changed."""

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
        shared: readers beside readers.
        permits: semaphores.
        lock_delay: keeps a name free for a while after a holder's lease expired.
        cells: values with versions.
        notifies: waiters are woken by messages; otherwise they poll.
        hands_over: who leaves hands the name to who waits longest; otherwise it is free for whoever asks first.
        together: several names can be claimed and left in one request (`ManyStore`).
        watches: it has `leasehold.store_api.Watching.wait_for_cell`; otherwise who waits for a cell polls.
        shortest: seconds of the shortest lease, or life of a cell, that it can keep; what is shorter is lengthened.
        longest: seconds of the longest lease with its delay that it takes; infinity for any.
        tardy: seconds by which it may be late to notice that a lease or a cell's life has run out.
        crash_bound: words that say when a dead holder's lock is free again.
        why_not: words that say why it does not promise what others do, and what to use instead; for messages.

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
    """One line of `doctor`: what was looked at, what was found, what it means for the promises, what to do."""

    severity: Severity
    subject: str
    found: str
    meaning: str = ""
    remedy: str = ""
