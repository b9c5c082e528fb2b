"""The tickets of one client in etcd, and the one watch that wakes its waiters.

Theory of operation
-------------------
A waiter knows the keys of which one must be deleted first (its *blockers*). All waiters of a client share one watch on
the deletions in the namespace. The watch begins at the revision at which the first of them began to wait. etcd delivers
every deletion since then, also those from before the watch was opened or while it was broken. So no deletion is missed,
and no waiter polls. A deletion wakes the waiters for that key, and no others.

etcd may have compacted the history that the watch needs. It reports that for a watch that begins before the compacted
revision. But a watch that begins at that very revision misses a deletion made there (etcd issue 18089, fixed in 2024).
So the watch begins at a revision whose deletions are known already. After a compaction all waiters are woken and retry.

If the watch breaks and cannot be opened again, all waiters are woken, too; their retries report the error. If the watch
is silently dead, the renewal of a waiter, at a third of its lease, finds that the blocker is gone. It wakes the waiter
and reopens the watch at another member.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from leasehold._model import Kind, Ticket
from leasehold._runtimes.base import Job, Runtime, Signal
from leasehold._runtimes.log import log
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.errors import refusal
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.http.base import Stream, Unanswered
from leasehold.stores.etcd.keys import Json, Keys, deleted, deletions, entry_key, key_of, only, put, revision_of, span
from leasehold.stores.etcd.sessions import KeepAlive, Session

if TYPE_CHECKING:
    from leasehold.stores.etcd.guarded import GuardedWrites

REMEMBERED = 4096
"""Deletions remembered: one may be reported before the response that names the blockers of a ticket."""

LINGER = 5.0
"""Seconds for which a watch stays open without a waiter."""

OPEN_WITHIN = 2.0
"""Seconds that opening the watch may take."""

PAUSES = (0.02, 0.1, 0.3, 1.0)
"""Seconds before a broken watch is reopened, by the number of failed attempts; the last value repeats."""

WATCH = "leasehold-watch"  # the name of the job


class TicketState:
    """A ticket of this client that etcd knows, or may know. ``notified`` is set before ``signal``, and read after."""

    __slots__ = (
        *("acquiring", "being_removed", "blockers", "guarded", "held", "key", "mark", "marks", "name", "notified"),
        *("_mutex", "queue", "renewal", "session", "signal", "ticket", "tombstone", "unknown", "until", "written"),
    )

    def __init__(
        self, runtime: Runtime, name: str, ticket: Ticket, session: Session, renewal: KeepAlive, keys: Keys
    ) -> None:
        self._mutex = runtime.mutex()
        self.name = name
        self.ticket = ticket
        self.session = session
        self.renewal = renewal  # the keep-alive on which its grant depends; a transaction has yet to confirm it
        entry = entry_key(session.id, ticket.id)
        self.queue, self.marks = keys.queue(name), keys.marks(name)
        self.key = self.queue + entry
        self.mark = self.marks + entry  # written if it overtakes waiters of a shared lock
        self.tombstone = keys.tombstone(entry)
        self.held = False
        self.written = False  # an acquire request wrote its key
        # An acquire request has no response, or had none at its release: it may still arrive, whatever the responses to
        # later ones say.
        self.unknown = False
        self.acquiring = True  # a request is under way: its response decides, and the key must not be removed
        self.being_removed = False  # its key is being deleted: no acquire may succeed under it any more
        self.until = renewal.sent + renewal.length  # boot-time clock at which its lease ends, unless it is renewed
        self.blockers: frozenset[str] = frozenset()
        self.guarded: GuardedWrites | None = None
        self.notified = False
        self.signal: Signal = runtime.signal()

    def begin_acquire(self) -> bool:
        """Mark an acquire as under way; return False if the removal of its key has begun, which may arrive late."""
        with self._mutex:
            self.acquiring = not self.being_removed
            return self.acquiring

    def begin_removal(self, now: float) -> bool:
        """Begin to remove its key; return False if an acquire is under way, or has just succeeded under it.

        An acquire that succeeds sets ``until`` before it clears ``acquiring``. A removal that has begun stays so.
        """
        with self._mutex:
            if self.acquiring or now < self.until:
                return False
            self.being_removed = True
            return True

    def guard(self, runtime: Runtime) -> GuardedWrites:
        """Return the guarded writes under it, the same for all guards."""
        from leasehold.stores.etcd.guarded import GuardedWrites

        with self._mutex:
            if self.guarded is None:
                self.guarded = GuardedWrites(runtime, f"{self.tombstone}.guard", self.session.id)
            return self.guarded

    def removal(self) -> list[Json]:
        """Delete its key, its mark and its guards' count, and let an acquire request that arrives later do nothing."""
        operations = [deleted(only(self.key))]
        if self.ticket.terms.mode.kind is not Kind.MUTEX:
            operations.append(deleted(only(self.mark)))
        if self.guarded is not None:
            operations.append(deleted(only(self.guarded.key)))
        if self.unknown:
            operations.append(put(self.tombstone, b"", self.session.id))
            self.session.graves += 1
        return operations

    def set(self) -> None:
        """Wake the waiter, from any thread."""
        self.notified = True
        self.signal.set()


class Watch:
    """See the top of this file. Used from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self.forget()

    def forget(self) -> None:
        """Forget the watch in a forked child: it is the parent's."""
        self._mutex = self._runtime.mutex()
        self._waiting: defaultdict[str, dict[TicketState, None]] = defaultdict(dict)
        self._recent: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0  # the last revision of a deletion that was dropped from memory
        self._job: Job | None = None
        self._stream: Stream | None = None
        self._next = 0  # the revision at which the watch resumes: its deletions are known already
        self._from = 0  # the revision since which it has seen every deletion
        self._wake_up = self._runtime.signal()
        self._closed = False
        self.denied: StoreUnavailable | None = None

    # --- the waiters --------------------------------------------------------------------------------------------

    def wait_for(self, state: TicketState, keys: Iterable[str], revision: int) -> None:
        """Wake a ticket when one of the keys, which all existed at ``revision``, is deleted."""
        with self._mutex:
            self._drop(state)
            state.blockers = frozenset(keys)
            for key in state.blockers:
                self._waiting[key][state] = None
            gone = any(self._recent.get(key, 0) > revision for key in state.blockers) or self._forgotten > revision
        if gone:
            state.set()

    def stop(self, state: TicketState) -> None:
        with self._mutex:
            self._drop(state)

    def listen(self, revision: int) -> bool:
        """Start the watch if needed; return whether it has seen all deletions since ``revision``.

        Raises:
            StoreUnavailable: etcd does not permit the watch.
        """
        with self._mutex:
            if self.denied is not None:
                error, self.denied = self.denied, None
                raise error
            if self._closed:
                return False
            if self._job is None or not self._job.alive():
                self._next, self._from = revision, revision + 1
                self._job = self._runtime.spawn_loop(self._run, WATCH)
                return True
            return self._from <= revision + 1

    def reopen(self) -> None:
        """Open the watch again: it missed a deletion."""
        stream = self._stream
        if stream is not None:
            stream.close()

    def _drop(self, state: TicketState) -> None:
        for key in state.blockers:
            self._waiting[key].pop(state, None)
            if not self._waiting[key]:
                del self._waiting[key]
        state.blockers = frozenset()

    def _set_all(self) -> None:
        with self._mutex:
            states = dict.fromkeys(state for some in self._waiting.values() for state in some)
        for state in states:
            state.set()

    # --- the watch ---------------------------------------------------------------------------------------------

    async def close(self, within: float) -> None:
        """Close the watch, and wake all waiters."""
        with self._mutex:
            self._closed = True
            job, self._job = self._job, None
        self._wake_up.set()
        self._set_all()
        self.reopen()
        if job is not None:
            await job.join(within)

    async def _run(self) -> None:
        failures, denied = 0, False
        while not self._closed:
            try:
                if await self._runtime.attempt(self._follow(), WATCH, False):
                    failures = 0
                denied = False
            except StoreUnavailable as error:
                # Until 3.5.5 etcd calls an expired token a missing right (etcd issue 12385): a new token shows it.
                if error.lasting and (denied or not self._gateway.forget_token()):
                    self._deny(error)
                    return
                denied = error.lasting
            except Exception:
                log.exception("the watch failed unexpectedly; it continues")
            if self._is_idle():
                return
            if failures:
                self._set_all()  # their retries report the error
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            failures += 1
            await self._wake_up.wait(pause * (0.5 + self._runtime.jitter() / 2))

    async def _follow(self) -> bool:
        """Open the watch and read it until it ends; return whether a message came."""
        until = self._runtime.now() + OPEN_WITHIN
        stream = await self._gateway.watch(deletions(span(self._keys.locks), self._next), until)
        self._stream, received, rest, idle = stream, False, b"", False
        try:
            if self._closed:
                return received
            while True:
                data = await stream.read(LINGER)
                if not data and not self._waiting:
                    idle = True
                    return received
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    received = self._receive(json.loads(line)) or received
        except Unanswered:
            return received
        finally:
            self._stream = None
            stream.close()
            if not (idle or self._closed):
                self._gateway.leave_watched_endpoint()

    def _receive(self, message: Json) -> bool:
        """Process one message; return whether it is more than the confirmation that the watch exists.

        Raises:
            StoreUnavailable: etcd has ended the watch.
        """
        if "error" in message:
            raise refusal(message["error"], "", 200).unavailable("its members")
        result = message["result"]
        revision = revision_of(result)
        if result.get("canceled"):
            compacted = int(result.get("compact_revision", 0))
            if compacted:
                self._restart(compacted)
            why = "required revision has been compacted" if compacted else result.get("cancel_reason")
            raise refusal("", str(why or "the watch was cancelled"), 200).unavailable("its members")
        if result.get("created"):
            if revision < self._next:  # the cluster was restored from an older copy
                self._restart(revision)
            return False
        events: list[Json] = result.get("events", [])
        for event in events:
            kv = event["kv"]
            self._deleted(key_of(kv), int(kv["mod_revision"]))
        if not events:
            self._next = max(self._next, revision)
        return True

    def _deleted(self, key: str, revision: int) -> None:
        with self._mutex:
            self._next = max(self._next, revision - 1)  # another of the same transaction may follow
            self._recent[key] = revision
            self._recent.move_to_end(key)
            if len(self._recent) > REMEMBERED:
                self._forgotten = max(self._forgotten, self._recent.popitem(last=False)[1])
            waiting = list(self._waiting.get(key, ()))
        for state in waiting:
            state.set()

    def _restart(self, revision: int) -> None:
        """Continue after ``revision``, with a gap before it: all waiters retry, and wait again after the response."""
        with self._mutex:
            self._next, self._from = revision, revision + 1
            self._recent.clear()
            self._forgotten = 0
        self._set_all()

    def _deny(self, error: StoreUnavailable) -> None:
        with self._mutex:
            self.denied = error
            self._job = None
        self._set_all()

    def _is_idle(self) -> bool:
        with self._mutex:
            if self._closed or not self._waiting:
                self._job = None
                return True
            return False
