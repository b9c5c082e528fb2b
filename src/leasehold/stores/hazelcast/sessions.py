"""The CP sessions of one client: all its locks are attached to one, and end with it.

The servers end a session that was not kept alive for its time to live, which their configuration sets. Each request
of a lock, and each heartbeat, begins that time anew when the leader commits it. So the session lives at least until the
reading of our clock *before* the last confirmed request was sent, plus that time. A member that becomes the leader may
take the end of a session, on the wall clock, from another member. So a part of the time is left out: one interval
between heartbeats, the difference between the members' clocks that is tolerated.

The servers remember the result of a failed try until its session ends, and a claim without an answer may reach them
as long as it lives. So a session with many failed tries, or one such claim, is retired: new tickets get another one,
and it is closed when its last ticket has ended.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Driver
from leasehold.stores.hazelcast.connection.errors import SessionEnded, no_cp
from leasehold.stores.hazelcast.connection.settings import GROUP

T = TypeVar("T")

PROBE = "leasehold"
"""A name to ask for its CP group; no lock is made."""

MOST_FAILED = 1000
"""Failed tries after which a session is retired."""

BEATS = 4
"""Heartbeats that are sent in one time to live, at least."""

CLOSE_AGAIN = 5.0
"""Seconds before a retired session is closed again whose end the servers did not confirm."""


@dataclass(eq=False, slots=True)
class Session:
    """One session.

    Attributes:
        id: its number in its group.
        group: the CP group, as the driver knows it.
        ttl: seconds of silence after which the servers end it.
        interval: seconds between heartbeats that the servers recommend.
        since: our clock before the last confirmed request was sent.
        beat_at: when the next heartbeat is due, or the next try to close it.
        ended: whether the servers have ended it, or may have.
        retired: whether it takes no more tickets.
        tickets: how many it has.
    """

    id: int
    group: Any
    ttl: float
    interval: float
    since: float
    beat_at: float = 0.0
    ended: bool = False
    retired: bool = False
    tickets: int = 0
    failed: int = 0
    _threads: int = 0
    _free: deque[int] = field(default_factory=deque[int])

    @property
    def valid(self) -> float:
        """Seconds after `since` for which the session certainly lives."""
        return max(self.ttl - self.interval, self.ttl / 2)

    @property
    def every(self) -> float:
        """Seconds between heartbeats."""
        return min(self.interval, self.ttl / BEATS)

    def alive_at(self, since: float) -> None:
        """Record a confirmed request, which was sent at ``since``."""
        self.since = max(self.since, since)
        self.beat_at = max(self.beat_at, since + self.every)

    def enter(self) -> int:
        """Return a thread's number for a new ticket: the owner, together with the session.

        The number that has been free for longest: an owner that `inspect` has shown is then not reused soon.
        """
        self.tickets += 1
        if self._free:
            return self._free.popleft()
        self._threads += 1
        return self._threads

    def leave(self, thread: int, *, reuse: bool) -> None:
        """End a ticket; if its number is used again, the servers forget its results at the next release."""
        self.tickets -= 1
        if reuse:
            self._free.append(thread)


class Sessions:
    """The sessions of one client; one of them takes new tickets."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        group: str,
        mutex: AbstractContextManager[Any],
        on_end: Callable[[Session], None],
    ) -> None:
        """Make one without sessions; ``mutex`` guards them, and the tickets of the client."""
        self._runtime = runtime
        self._driver = driver
        self._name = group
        self._mutex = mutex
        self._on_end = on_end
        self._closed = False
        self._making = KeyedLock(self._runtime, f"no CP session with Hazelcast at {self._driver.where} in time")
        self._current: Session | None = None
        self._group: Any = None
        self.all: list[Session] = []
        self.closing: list[Session] = []  # retired ones, until the servers confirm their end
        self.without_cp = ""  # why the cluster has no CP subsystem, when that is known

    def now(self) -> float:
        """Return our clock."""
        return self._runtime.now()

    async def enter(self, until: float) -> tuple[Session, int]:
        """Return a session and a thread's number in it, for a new ticket; as `current`."""
        while True:
            await self.current(until)
            with self._mutex:
                session = self._usable()
                if session is not None:
                    return session, session.enter()

    async def current(self, until: float) -> Session:
        """Return the session for new tickets.

        Raises:
            Unsupported: the cluster has no CP subsystem.
            StoreUnavailable: it could not be made.
        """
        with self._mutex:
            session = self._usable()
        if session is not None:
            return session
        async with self._making.hold("session", until):
            with self._mutex:
                session = self._usable()
            if session is None:
                session = await self.in_group(lambda group: self._make(group, until), until)
                with self._mutex:
                    closed = self._closed
                    if not closed:
                        self._current = session
                        self.all.append(session)
                if closed:
                    await self._close(session, until)
                    raise StoreUnavailable("the connection with Hazelcast was closed")
        return session

    def _usable(self) -> Session | None:
        """Return the session that takes tickets, under the mutex; the servers have ended one that was idle for long."""
        session = self._current
        if session is None or session.retired:
            return None
        if session.tickets or self._runtime.now() < session.since + session.valid:
            return session
        session.ended = True
        self._drop(session)
        return None

    async def _make(self, group: Any, until: float) -> Session:
        since = self._runtime.now()
        name = f"leasehold-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        made = await self._driver.ask(*requests.create_session(group, name), until)
        ttl, interval = made["ttl_millis"] / 1000, made["heartbeat_millis"] / 1000
        return Session(made["session_id"], group, ttl, interval, since, since + min(interval, ttl / BEATS))

    async def in_group(self, work: Callable[[Any], Awaitable[T]], until: float) -> T:
        """Call ``work`` with the CP group; once more if the group was destroyed: it may exist again by now.

        Raises:
            Unsupported: the cluster has no CP subsystem.
            StoreUnavailable: it was destroyed again, or does not answer.
        """
        for _ in range(2):
            group = await self._find_group(until)
            try:
                return await work(group)
            except SessionEnded:
                self._group = None
        raise StoreUnavailable(f"the CP group of Hazelcast at {self._driver.where} was destroyed")

    async def _find_group(self, until: float) -> Any:
        group = self._group
        if group is None:
            # A cluster without CP members answers, too, but with a group that is called as the lock.
            try:
                group = await self._driver.ask(*requests.group(PROBE), until)
            except Unsupported:
                raise self._no_cp("it is a feature of the Enterprise edition from version 5.5 on") from None
            if group.name != GROUP:
                raise self._no_cp("its cp-member-count is 0, the unsafe mode")
            if self._name != GROUP:
                group = await self._driver.ask(*requests.group(f"{PROBE}@{self._name}"), until)
            self._group = group
        return group

    def _no_cp(self, why: str) -> Unsupported:
        self.without_cp = why
        return no_cp(self._driver.where, why)

    async def beat(self, session: Session, until: float) -> None:
        """Keep a session alive.

        Raises:
            SessionEnded: it has ended.
            StoreUnavailable: no answer.
        """
        since = self._runtime.now()
        try:
            await self._driver.ask(*requests.beat(session.group, session.id), until)
        except SessionEnded:
            self.end(session)
            raise
        session.alive_at(since)

    def end(self, session: Session) -> None:
        """Record that a session has ended; tell the store, once."""
        with self._mutex:
            if session.ended:
                return
            session.ended = True
            self._drop(session)
        self._on_end(session)

    def _drop(self, session: Session) -> None:
        if session in self.all:
            self.all.remove(session)
        if self._current is session:
            self._current = None
            self._group = None  # it may have been created again

    def failed(self, session: Session) -> None:
        """Count a failed try."""
        with self._mutex:
            session.failed += 1
            session.retired = session.retired or session.failed >= MOST_FAILED

    async def close_retired(self, until: float) -> None:
        """Close the retired sessions without tickets, each again until the servers confirm it.

        A late claim may take a lock as long as its session lives, and that lock would never be released.
        """
        now = self._runtime.now()
        with self._mutex:
            for session in [session for session in self.all if session.retired and not session.tickets]:
                session.ended, session.beat_at = True, now
                self._drop(session)
                self.closing.append(session)
            due = [session for session in self.closing if session.beat_at <= now]
        for session in due:
            session.beat_at = self._runtime.now() + CLOSE_AGAIN
            if await self._close(session, until):
                self.closing.remove(session)

    async def close(self, until: float) -> None:
        """Close all: the servers free their locks at once. Without an answer they end at their time to live."""
        with self._mutex:
            self._closed = True
            sessions = [*self.all, *self.closing]
            for session in sessions:
                session.ended = True
                self._drop(session)
        for session in sessions:
            await self._close(session, until)

    async def _close(self, session: Session, until: float) -> bool:
        """Close a session; return whether it has ended certainly."""
        try:
            await self._driver.ask(*requests.close_session(session.group, session.id), until)
        except SessionEnded:
            pass
        except StoreUnavailable:
            return False
        return True
