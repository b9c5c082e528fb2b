"""The tickets of one client that stand in etcd, and the one watch that tells those who wait.

Theory of operation
-------------------
Who waits knows the keys of which one must go first. All of a client share one watch on the namespace, without
writes, from the revision at which the first of them was told to wait: etcd delivers every deletion since, also those
that came before the watch was opened or while it was broken, so nothing is missed and nobody polls. Each deletion wakes
those who wait for that key, and no others.

If etcd has compacted the history that a watch would need, all are woken and ask again. It says so of a watch that
begins before the revision up to which it compacted, while one that begins at that very revision misses a deletion made
there (etcd issue 18089, mended there in 2024). So the watch begins at a revision of which nothing more is to be told.

If the watch breaks and cannot be had again, all are woken, too, and find out what is the matter. If it is silently
dead, the watchdog's renewal of a waiter, at a third of its lease, sees that the key is gone, wakes the waiter and has
the watch opened anew elsewhere.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any, cast

from leasehold._model import Ticket
from leasehold._runtimes.base import Job, Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.confirming import KeepAlive
from leasehold.stores.etcd.connection.errors import Meaning, Refused, refusal
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.http.base import Stream, Unanswered
from leasehold.stores.etcd.keys import Keys, deletions, entry_key, span, unb64
from leasehold.stores.etcd.sessions import Session

REMEMBERED = 4096
"""Deletions kept in mind: one may be told before the answer arrives that says whom a ticket waits for."""

LINGER = 5.0
"""Seconds for which a watch stays open when nobody waits any more."""

OPEN_WITHIN = 2.0
"""Seconds that opening the watch may take."""

PAUSES = (0.02, 0.1, 0.3, 1.0)
"""Seconds before a broken watch is opened again, by how many attempts failed; the last for all further ones."""

log = logging.getLogger("leasehold")


class Mine:
    """A ticket of this client that etcd knows, or may know. Its news are set before its signal, and read after."""

    __slots__ = (
        *("blockers", "claiming", "doomed", "held", "kept", "key", "mark", "name", "news", "entry"),
        *("session", "signal", "ticket", "unknown", "until"),
    )

    def __init__(
        self, runtime: Runtime, name: str, ticket: Ticket, session: Session, kept: KeepAlive, keys: Keys
    ) -> None:
        self.name = name
        self.ticket = ticket
        self.session = session
        self.kept = kept  # the keep-alive on which its claim rests, which a transaction has yet to confirm
        self.entry = entry_key(session.id, ticket.id)
        self.key = keys.queue(name) + self.entry
        self.mark = keys.marks(name) + self.entry  # made if it enters a shared lock past others
        self.held = False
        # A claim was sent whose answer did not come: it may arrive yet, whatever later ones are told.
        self.unknown = False
        self.claiming = True  # a claim is under way: what etcd says to it counts, and nobody takes its key out
        self.doomed = False  # its key is being taken out: nobody may enter under it any more
        self.until = kept.sent + kept.length  # boot-time clock at which its own lease ends, if it is not renewed
        self.blockers: frozenset[str] = frozenset()
        self.news = False
        self.signal: Signal = runtime.signal()

    def dooms(self) -> bool:
        """Begin to take its key out; return False if a claim is under way, which may enter under it.

        Whoever claims says so before it looks whether it is doomed, and here it is the other way round: so at least one
        of two threads sees the other.
        """
        self.doomed = True
        if self.claiming:
            self.doomed = False
        return self.doomed

    def set(self) -> None:
        """Wake who waits, from any thread."""
        self.news = True
        self.signal.set()


class Watch:
    """See the top of this file. Used from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child."""
        self._mutex = self._runtime.mutex()
        self._waiting: defaultdict[str, dict[Mine, None]] = defaultdict(dict)
        self._recent: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0  # the last revision of a deletion that is not remembered any more
        self._job: Job | None = None
        self._stream: Stream | None = None
        self._next = 0  # the revision from which the watch goes on: what was deleted there is known already
        self._from = 0  # the revision from which it has seen everything
        self._wake_up = self._runtime.signal()
        self._closed = False
        self.denied: StoreUnavailable | None = None

    # --- who waits ---------------------------------------------------------------------------------------------

    def wait_for(self, mine: Mine, keys: Iterable[str], revision: int) -> None:
        """Wake a ticket when one of the keys is gone, which all were there at ``revision``."""
        with self._mutex:
            self._drop(mine)
            mine.blockers = frozenset(keys)
            for key in mine.blockers:
                self._waiting[key][mine] = None
            gone = any(self._recent.get(key, 0) > revision for key in mine.blockers) or self._forgotten > revision
        if gone:
            mine.set()

    def stop(self, mine: Mine) -> None:
        """Wake a ticket no more."""
        with self._mutex:
            self._drop(mine)

    def listen(self, mine: Mine, revision: int) -> bool:
        """Make sure that the watch runs and has seen all since ``revision``; return False if it may not have.

        Raises:
            StoreUnavailable: it is not permitted.

        """
        with self._mutex:
            if self.denied is not None:
                error, self.denied = self.denied, None
                raise error
            if self._closed:
                return False
            if self._job is None or not self._job.alive():
                self._next, self._from = revision, revision + 1
                self._job = self._runtime.spawn(self._run, "leasehold-watch")
                return True
            return self._from <= revision + 1

    def suspect(self) -> None:
        """Have the watch opened anew: it did not tell what it should have told."""
        stream = self._stream
        if stream is not None:
            stream.close()

    def _drop(self, mine: Mine) -> None:
        for key in mine.blockers:
            self._waiting[key].pop(mine, None)
            if not self._waiting[key]:
                del self._waiting[key]
        mine.blockers = frozenset()

    def _set_all(self) -> None:
        with self._mutex:
            everybody = dict.fromkeys(mine for some in self._waiting.values() for mine in some)
        for mine in everybody:
            mine.set()

    # --- the watch ---------------------------------------------------------------------------------------------

    async def close(self, within: float) -> None:
        """End it, and with it all waiting."""
        with self._mutex:
            self._closed = True
            job, self._job = self._job, None
        self._wake_up.set()
        self._set_all()
        self.suspect()
        if job is not None:
            await job.join(within)

    async def _run(self) -> None:
        failures = 0
        while not self._closed:
            try:
                if await self._follow():
                    failures = 0
            except Refused as refused:
                if not self._refused(refused):
                    return
            except StoreUnavailable as error:
                if error.lasting:
                    self._bar(error)
                    return
            except Exception:
                log.exception("the watch stumbled; it goes on")
            if self._is_idle():
                return
            if failures:
                self._set_all()  # they ask, and find out what is the matter
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            failures += 1
            await self._wake_up.wait(pause * (0.5 + self._runtime.jitter() / 2))

    async def _follow(self) -> bool:
        """Open the watch and read it until it ends; return whether it told anything."""
        stream = await self._gateway.watch(deletions(span(self._keys.locks), self._next), within=OPEN_WITHIN)
        self._stream, told, rest = stream, False, b""
        try:
            if self._closed:
                return told
            while True:
                data = await stream.read(LINGER)
                if not data and not self._waiting:
                    return told
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    told = self._told(json.loads(line)) or told
        except Unanswered:
            return told
        finally:
            self._stream = None
            stream.close()
            self._gateway.turn_from_watched()

    def _told(self, message: dict[str, Any]) -> bool:
        """Take one message; return whether it is more than a greeting."""
        if "error" in message:
            raise refusal(message["error"], "", 200)
        result = message["result"]
        revision = int(result["header"].get("revision", 0))
        if result.get("canceled"):
            raise self._cancelled(result)
        if result.get("created"):
            if revision < self._next:  # the cluster was restored from an older copy
                self._restart(revision)
            return False
        events = cast(list[dict[str, Any]], result.get("events", []))
        for event in events:
            kv = event["kv"]
            self._gone(unb64(kv["key"]).decode("utf-8", "replace"), int(kv["mod_revision"]))
        if not events:
            self._next = max(self._next, revision)
        return True

    def _gone(self, key: str, revision: int) -> None:
        with self._mutex:
            self._next = max(self._next, revision - 1)  # another of the same transaction may follow
            self._recent[key] = revision
            self._recent.move_to_end(key)
            if len(self._recent) > REMEMBERED:
                self._forgotten = max(self._forgotten, self._recent.popitem(last=False)[1])
            waiting = list(self._waiting.get(key, ()))
        for mine in waiting:
            mine.set()

    def _cancelled(self, result: dict[str, Any]) -> Refused:
        compacted = int(result.get("compact_revision", 0))
        if compacted:
            self._restart(compacted)
            return refusal("", "mvcc: required revision has been compacted", 200)
        return refusal("", str(result.get("cancel_reason", "the watch was cancelled")), 200)

    def _restart(self, revision: int) -> None:
        """Go on after ``revision``, with a gap before it: all who wait ask again, and with what they hear wait anew."""
        with self._mutex:
            self._next, self._from = revision, revision + 1
            self._recent.clear()
            self._forgotten = 0
        self._set_all()

    def _refused(self, refused: Refused) -> bool:
        """Take note of an error; return whether to go on."""
        if refused.meaning is Meaning.LASTING:
            self._bar(refused.unavailable("its members"))
            return False
        return True

    def _bar(self, error: StoreUnavailable) -> None:
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
