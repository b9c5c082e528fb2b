"""The values that primitives, engine, rules and stores exchange. Frozen; no I/O; no clock.

A **ticket** is one attempt to acquire a name. Its id is 128 random bits, which the client chose *before* it sent the
request. So a request whose reply was lost can be repeated, and a cancelled one can be undone, whatever the store did
with it. An **entry** is a ticket in the queue of a name, as the store sees it: waiting, or holding with a token.
"""

from __future__ import annotations

import enum
from binascii import b2a_base64
from dataclasses import dataclass
from typing import Literal, NamedTuple

DRIFT = 0.01  # assumed bound on the relative error of clock rates between client and store
MARGIN = 0.002  # seconds subtracted for the granularity of clocks and timers
RESPONSE_TIMEOUT = 5.0  # seconds after which a store that has not answered counts as unavailable


class Kind(enum.StrEnum):
    """The primitive that uses a name. A name in use as one kind refuses the others (`NameInUse`)."""

    MUTEX = "mutex"
    READ_WRITE = "rw"
    SEMAPHORE = "semaphore"


@dataclass(frozen=True, slots=True)
class LockMode:
    """How a ticket holds a name."""

    kind: Kind = Kind.MUTEX
    exclusive: bool = True  # alone (a lock, a writer), or together with others (a reader)
    upgradeable: bool = False  # a reader that may become the writer; at most one holds at a time
    permits: int = 1  # of a semaphore, that it takes
    limit: int = 1  # permits that the semaphore has
    fair: bool = False  # it must not overtake the waiters ahead of it


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
    """What all tickets of one lock object have in common; times in seconds.

    A ``fixed`` lease is not renewed, from the start or after a while. A store with sessions, which other tickets of the
    client keep alive, gives it a session of its own.
    """

    mode: LockMode
    owner: Owner
    lease: float  # for which the store keeps the grant without a renewal
    lock_delay: float = 0.0  # for which the name stays blocked after this lease expired (not after a release)
    meta: str = ""  # JSON text shown to people, at most `META_LIMIT` bytes of UTF-8; empty for none
    fixed: bool = False
    at_least: float | None = None  # of a run of a scheduled job: for which the name is not free, however it ends


META_LIMIT = 1024


class Ticket(NamedTuple):
    """One attempt to acquire. Each acquire makes one, so it must be cheap.

    ``alongside`` is the id of a ticket of the same holder that holds the same name, with which this one may hold
    together: a writer that also reads, or an upgradeable reader that becomes the writer. While that ticket holds, this
    one waits only for conflicting holders, and for no waiter: the waiters wait for us.
    """

    id: str  # 128 random bits as 22 URL-safe characters
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

    ``since`` is the client's boot-time clock, read *before* the request that proved the grant was sent (or an earlier
    one). The store keeps the lease at least until ``since + lease``.
    """

    token: int  # fencing token, strictly larger than that of every earlier grant of the name
    since: float
    lease: float  # seconds


@dataclass(frozen=True, slots=True)
class Wait:
    """The ticket does not hold the name.

    After ``ask_again`` seconds it retries even if no notification arrives: by then the lease of the holder, or of the
    waiter ahead, has expired.
    """

    mark: object  # to pass to `wait`, so that no event since then is missed
    ask_again: float
    held_by: Owner | None = None  # for messages to people
    blocked_why: str = ""  # why the name is blocked until then, if the reason is not a lease; for messages


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


# --- between the primitives and the engine ----------------------------------------------------------------------------

Nested = Literal["warn", "raise"]
"""What a lock does if its thread or task waits for a hold of its own: warns, or raises RuntimeError."""


@dataclass(frozen=True, slots=True)
class NotAcquired:
    """An acquire that ended without the lock: it is held, or blocked (``blocked_why``, for messages)."""

    waited: float
    held_by: Owner | None
    blocked_why: str = ""


class AcquireRequest(NamedTuple):
    """What an acquire requests. Each lock object makes one, so it must be cheap."""

    name: str
    terms: LeaseTerms
    join: bool = True  # whether to wait in the queue; else it tries once
    renew: bool = True  # whether the watchdog renews the lease
    max_hold: float | None = None  # seconds for which the watchdog renews it; None for no limit
    alongside: str = ""  # see `Ticket`
    nested: Nested | None = None  # what to do if it waits for a hold of its own thread or task; None: nothing


# --- what stores report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A ticket in the queue of a name, as the store sees it."""

    ticket: Ticket
    order: int  # arrival number; smaller came first
    expires: float  # reading of the *store's* clock, in seconds
    token: int | None = None  # the fencing token while it holds; None while it waits


@dataclass(frozen=True, slots=True)
class View:
    """One name as `inspect` shows it; all times are seconds from now, those of `QueueEntry.expires` too."""

    name: str
    kind: Kind
    token: int  # the highest fencing token granted so far, 0 if none is known
    holders: tuple[QueueEntry, ...] = ()
    waiters: tuple[QueueEntry, ...] = ()  # first in the queue first
    free_in: float = 0.0  # for which it stays blocked after an expiry (lock delay); 0 otherwise


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a cell. The store makes it only if every given condition holds."""

    value: bytes | None = None  # the new value, at most `CELL_LIMIT` bytes; None only reads the cell
    if_version: int | None = None  # the version that the cell must have now (0: it must not exist)
    fence: int | None = None  # a fencing token that must not be below the highest one that ever wrote here
    ttl: float = 86_400.0  # seconds after the last write at which the cell expires


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
    """What a store promises. A primitive names what it needs and refuses at construction."""

    fencing: bool = True  # grants carry strictly increasing tokens
    fair: bool = True  # waiters can be served in order of arrival
    shared: bool = False  # several readers may hold together
    permits: bool = False  # semaphores
    lock_delay: bool = True  # blocks a name for a while after a holder's lease expired
    cells: bool = True  # values with versions
    notifies: bool = True  # waiters are woken by notifications; otherwise they poll
    hands_over: bool = True  # a release hands the name to the longest waiter; otherwise the first to try acquires it
    batches: bool = False  # several names can be acquired and released in one request (`BatchStore`)
    watches: bool = False  # has `leasehold.store_api.Watching.wait_for_cell`; otherwise waiters for a cell poll
    shortest: float = 0.0  # seconds of the shortest lease, or ttl of a cell; a shorter one is lengthened
    longest: float = float("inf")  # seconds of the longest lease plus lock delay
    expiry_delay: float = 0.0  # seconds by which it may detect the expiry of a lease or a cell too late
    crash_bound: str = "within the lease"  # when the lock of a dead holder is free again; for messages
    why_not: str = ""  # why it does not promise what others do, and what to use instead; for messages
    only_runs: bool = False  # carries runs of scheduled jobs without ticks (`LeaseTerms.at_least`), and no other lock
    fair_shared: bool = True  # readers, writers and permits can be served in order of arrival, too, if ``fair``
    upgrades: bool = True  # a reader can become the writer, if ``shared``
    meta: bool = True  # keeps what a holder shows to people (``meta=``)
    restarts: bool = False  # a failover may begin the ttl of a cell again, so that the cell lives for longer


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
